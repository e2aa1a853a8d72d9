package healthz

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

const (
	// maxConnections is how many connections are open at the same time; further ones wait until one is closed.
	maxConnections = 128
	// readLimit is how long a client may take to send its request, and writeLimit how long to receive the answer.
	readLimit, writeLimit = 5 * time.Second, 10 * time.Second
	// maxHeader is the size limit of a request, in bytes.
	maxHeader = 8 << 10
	// acceptPause is the pause after an error that may pass, such as that of too many open files.
	acceptPause = 100 * time.Millisecond
	plainText   = "text/plain; charset=utf-8"
)

// Paths are what a server answers. A path that ends in a slash is for all below it, too.
type Paths map[string]Respond

// Serve listens at an address, such as ":9808", and serves paths until ctx ends. It fails if it cannot listen.
func Serve(ctx context.Context, address string, paths Paths, log *slog.Logger) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("serve health at %s: %w", address, err)
	}
	log.Info("health is served", "address", l.Addr())
	serve(ctx, l, paths)
	return nil
}

// serve accepts connections until ctx ends, and returns when none is left.
func serve(ctx context.Context, l net.Listener, paths Paths) {
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	var open sync.WaitGroup
	defer open.Wait()
	free := make(chan struct{}, maxConnections)
	for ctx.Err() == nil {
		c, err := l.Accept()
		if err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(acceptPause):
			}
			continue
		}
		free <- struct{}{}
		open.Go(func() {
			defer func() { <-free }()
			answer(ctx, c, paths)
		})
	}
}

// answer reads the request of a connection, answers it, and closes the connection.
func answer(ctx context.Context, c net.Conn, paths Paths) {
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	_ = c.SetReadDeadline(time.Now().Add(readLimit))
	r, err := http.ReadRequest(bufio.NewReaderSize(io.LimitReader(c, maxHeader), 1<<10))
	a := Text(http.StatusBadRequest, "no request, or too large")
	body := true
	if err == nil {
		a, body = paths.find(r.URL.Path)(ctx, r.URL.Query()), r.Method != http.MethodHead
	}
	_ = c.SetWriteDeadline(time.Now().Add(writeLimit))
	head := fmt.Sprintf("HTTP/1.1 %d %s\r\nContent-Type: %s\r\nX-Content-Type-Options: nosniff\r\nContent-Length: %d\r\n"+
		"Connection: close\r\n\r\n", a.Code, http.StatusText(a.Code), cmp.Or(a.Type, plainText), len(a.Body))
	if _, err := io.WriteString(c, head); err == nil && body {
		_, _ = c.Write(a.Body)
	}
}

// find returns what answers for a path.
func (p Paths) find(path string) Respond {
	for prefix := path; prefix != ""; prefix = prefix[:strings.LastIndexByte(prefix[:len(prefix)-1], '/')+1] {
		if h := p[prefix]; h != nil {
			return h
		}
	}
	return notFound
}
