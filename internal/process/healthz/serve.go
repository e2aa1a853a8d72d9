package healthz

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"runtime/pprof"
	"strconv"
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

const (
	profilesPath = "/debug/pprof/"
	// profileTime is how long the processor is watched unless a request says otherwise, and maxProfileTime the longest.
	profileTime, maxProfileTime = 30 * time.Second, 5 * time.Minute
	octets                      = "application/octet-stream"
)

func notFound(context.Context, url.Values) Answer {
	return Text(http.StatusNotFound, "404 page not found")
}

// Profiles adds the profiles of the program below /debug/pprof/, as go tool pprof reads them.
func (p Paths) Profiles() {
	p[profilesPath] = func(context.Context, url.Values) Answer {
		var names strings.Builder
		for _, profile := range pprof.Profiles() {
			fmt.Fprintf(&names, "%s%s\n", profilesPath, profile.Name())
		}
		return Text(http.StatusOK, names.String()+profilesPath+"profile\n")
	}
	p[profilesPath+"cmdline"] = func(context.Context, url.Values) Answer {
		return Text(http.StatusOK, strings.Join(os.Args, "\x00"))
	}
	p[profilesPath+"profile"] = processorProfile
	for _, profile := range pprof.Profiles() {
		p[profilesPath+profile.Name()] = func(_ context.Context, query url.Values) Answer {
			var body bytes.Buffer
			debug, _ := strconv.Atoi(query.Get("debug")) // 0 unless it is a number
			if err := profile.WriteTo(&body, debug); err != nil {
				return Text(http.StatusInternalServerError, err.Error())
			}
			if debug > 0 {
				return Answer{Code: http.StatusOK, Body: body.Bytes()}
			}
			return Answer{Code: http.StatusOK, Type: octets, Body: body.Bytes()}
		}
	}
}

// processorProfile says what the processor does for some seconds.
func processorProfile(ctx context.Context, query url.Values) Answer {
	seconds, _ := strconv.Atoi(query.Get("seconds")) // 0 unless it is a number
	pause := min(cmp.Or(time.Duration(max(seconds, 0))*time.Second, profileTime), maxProfileTime)
	var body bytes.Buffer
	if err := pprof.StartCPUProfile(&body); err != nil {
		return Text(http.StatusInternalServerError, err.Error())
	}
	select {
	case <-ctx.Done():
	case <-time.After(pause):
	}
	pprof.StopCPUProfile()
	return Answer{Code: http.StatusOK, Type: octets, Body: body.Bytes()}
}

// Answer is what a path answers.
type Answer struct {
	// Code is the HTTP status.
	Code int
	// Type is the content type; empty means plain text.
	Type string
	Body []byte
}

// Respond answers a request for a path. It must return when ctx ends.
type Respond func(ctx context.Context, query url.Values) Answer

// Text returns an answer in plain text.
func Text(code int, text string) Answer { return Answer{Code: code, Body: []byte(text)} }

// shared makes one check at a time. Who asks while it is made gets its answer, so that a driver which hangs costs one
// connection and not one for each request.
type shared struct {
	limit time.Duration
	check func(ctx context.Context) Answer

	mu      sync.Mutex
	running *result
}

// result is that of a check, when done is closed.
type result struct {
	done   chan struct{}
	answer Answer
}

// Check returns a Respond that makes a check, within a time limit, for each request that comes while none is made. The
// check must return when its context ends.
func Check(limit time.Duration, check func(ctx context.Context) Answer) Respond {
	s := &shared{limit: limit, check: check}
	return func(ctx context.Context, _ url.Values) Answer {
		r := s.join(ctx)
		select {
		case <-r.done:
			return r.answer
		case <-ctx.Done():
			return Text(http.StatusServiceUnavailable, "the program ends")
		}
	}
}

// join returns the check that is made, or starts one.
func (s *shared) join(ctx context.Context) *result {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running != nil {
		return s.running
	}
	r := &result{done: make(chan struct{})}
	s.running = r
	go func() {
		ctx, cancel := context.WithTimeout(ctx, s.limit)
		defer cancel()
		r.answer = s.check(ctx)
		s.mu.Lock()
		s.running = nil
		s.mu.Unlock()
		close(r.done)
	}()
	return r
}
