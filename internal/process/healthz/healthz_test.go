package healthz

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// patience bounds what must not hang.
const patience = time.Minute

// served serves paths until the test ends, and returns their address.
func served(t *testing.T, paths Paths) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		serve(ctx, l, paths)
	}()
	t.Cleanup(func() {
		end()
		select {
		case <-ended:
		case <-time.After(patience):
			t.Error("the server does not end")
		}
	})
	return l.Addr().String()
}

// get asks for a path and returns the status and the body.
func get(t *testing.T, address, path string) string {
	t.Helper()
	r, err := http.Get("http://" + address + path)
	if err != nil {
		t.Error(err)
		return ""
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Error(err)
	}
	return fmt.Sprintf("%d %s: %.40s", r.StatusCode, r.Header.Get("Content-Type"), body)
}

// TestPaths: what a client gets for each path.
func TestPaths(t *testing.T) {
	paths := Paths{"/healthz": Check(patience, func(context.Context) Answer { return Text(http.StatusOK, "ok") })}
	paths.Profiles()
	address := served(t, paths)
	for path, want := range map[string]string{
		"/healthz":                       "200 text/plain; charset=utf-8: ok",
		"/healthz?verbose=1":             "200 text/plain; charset=utf-8: ok",
		"/healthz/more":                  "404 text/plain; charset=utf-8: 404 page not found",
		"/":                              "404 text/plain; charset=utf-8: 404 page not found",
		"/debug/pprof/":                  "200 text/plain; charset=utf-8: /debug/pprof/allocs\n",
		"/debug/pprof/goroutine?debug=1": "200 text/plain; charset=utf-8: goroutine profile:",
		"/debug/pprof/heap":              "200 application/octet-stream: \x1f\x8b",
	} {
		if got := get(t, address, path); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	if got := get(t, address, "/debug/pprof/profile?seconds=1"); !strings.HasPrefix(got, "200 application/octet-stream") {
		t.Error(got)
	}
	r, err := http.Head("http://" + address + "/healthz")
	if err != nil || r.StatusCode != http.StatusOK || r.ContentLength != 2 {
		t.Errorf("HEAD: %+v, %v", r, err)
	}
	_ = r.Body.Close()
}

// TestCheckIsShared: concurrent requests share one check; a later request causes a new one.
func TestCheckIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made, leave := 0, make(chan struct{})
		h := Check(patience, func(context.Context) Answer {
			made++
			<-leave
			return Text(made, "")
		})
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				if got := h(t.Context(), nil).Code; got != 1 {
					t.Errorf("check %d was made", got)
				}
			})
		}
		synctest.Wait()
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if got := h(gone, nil).Code; got != http.StatusServiceUnavailable {
			t.Errorf("at the end of the program it is %d", got)
		}
		close(leave)
		all.Wait()
		if got := h(t.Context(), nil).Code; got != 2 {
			t.Errorf("a later request gets check %d", got)
		}
	})
}

// TestCheckHasALimit: the context of a check ends when its time is over.
func TestCheckHasALimit(t *testing.T) {
	h := Check(time.Millisecond, func(ctx context.Context) Answer {
		<-ctx.Done()
		return Text(http.StatusInternalServerError, ctx.Err().Error())
	})
	if got := string(h(t.Context(), nil).Body); got != "context deadline exceeded" {
		t.Error(got)
	}
}

// TestHostileClients: nonsense and requests without an end are answered by a refusal, and cost no more than their
// limit; many silent connections do not keep others from being answered, as long as they are not more than are served.
func TestHostileClients(t *testing.T) {
	ok := func(context.Context, url.Values) Answer { return Text(http.StatusOK, "ok") }
	address := served(t, Paths{"/": ok})
	for range maxConnections - 2 {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	for _, request := range []string{
		"\x00\x01\x02\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9.9\r\n\r\n",
		"GET / HTTP/1.1\r\nA: " + strings.Repeat("a", maxHeader-20),
	} {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, request); err != nil {
			t.Error(err)
		}
		_ = c.(*net.TCPConn).CloseWrite()
		answer, err := io.ReadAll(c)
		if !strings.HasPrefix(string(answer), "HTTP/1.1 400 Bad Request\r\n") {
			t.Errorf("%.20q is answered by %q, %v", request, answer, err)
		}
		_ = c.Close()
	}
	if got := get(t, address, "/"); got != "200 text/plain; charset=utf-8: ok" {
		t.Error(got)
	}
}

// TestAddressIsTaken: a server that cannot listen says so.
func TestAddressIsTaken(t *testing.T) {
	address := served(t, Paths{})
	err := Serve(t.Context(), address, Paths{}, nil)
	if err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Error(err)
	}
}
