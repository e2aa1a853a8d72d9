package healthz

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// patience bounds what must not hang.
const patience = time.Minute

// served serves paths until the test ends, and returns their address.
func served(t *testing.T, h http.Handler) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		serve(ctx, l, h)
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
	mux := http.NewServeMux()
	AddProfiles(mux)
	profiles := served(t, mux)
	address := served(t, Paths{"/healthz": Check(patience, func(context.Context) (int, string) {
		return http.StatusOK, "ok"
	})})
	for path, want := range map[string]string{
		"/healthz":           "200 text/plain; charset=utf-8: ok",
		"/healthz?verbose=1": "200 text/plain; charset=utf-8: ok",
		"/healthz/more":      "404 text/plain; charset=utf-8: 404 page not found",
		"/":                  "404 text/plain; charset=utf-8: 404 page not found",
		"/debug/pprof/":      "404 text/plain; charset=utf-8: 404 page not found",
	} {
		if got := get(t, address, path); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	for path, want := range map[string]string{
		"/debug/pprof/":                  "200 text/html; charset=utf-8: <html>",
		"/debug/pprof/goroutine?debug=1": "200 text/plain; charset=utf-8: goroutine profile:",
		"/debug/pprof/heap":              "200 application/octet-stream: \x1f\x8b",
		"/debug/pprof/profile?seconds=1": "200 application/octet-stream: \x1f\x8b",
	} {
		if got := get(t, profiles, path); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	r, err := http.Head("http://" + address + "/healthz")
	if err != nil || r.StatusCode != http.StatusOK || r.ContentLength != 2 {
		t.Errorf("HEAD: %+v, %v", r, err)
	}
	_ = r.Body.Close()
}

// TestCheckIsShared: however many ask while a check is made, it is made once; later it is made anew.
func TestCheckIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made, leave := 0, make(chan struct{})
		h := Check(patience, func(context.Context) (int, string) {
			made++
			<-leave
			return 200 + made, ""
		})
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				if got := code(t.Context(), h); got != 201 {
					t.Errorf("check %d was made", got)
				}
			})
		}
		synctest.Wait()
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if got := code(gone, h); got != http.StatusServiceUnavailable {
			t.Errorf("at the end of the program it is %d", got)
		}
		close(leave)
		all.Wait()
		if got := code(t.Context(), h); got != 202 {
			t.Errorf("a later request gets check %d", got)
		}
	})
}

// code returns the status of an answer to a request with a context.
func code(ctx context.Context, h http.Handler) int {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil))
	return w.Code
}

// TestCheckHasALimit: the context of a check ends with its time limit.
func TestCheckHasALimit(t *testing.T) {
	h := Check(time.Millisecond, func(ctx context.Context) (int, string) {
		<-ctx.Done()
		return http.StatusGatewayTimeout, ctx.Err().Error()
	})
	if got := code(t.Context(), h); got != http.StatusGatewayTimeout {
		t.Error(got)
	}
}

// TestHostileClients: nonsense and requests without an end are answered by a refusal, and cost no more than their
// limit; many silent connections do not keep others from being answered, as long as they are not more than are served.
func TestHostileClients(t *testing.T) {
	ok := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { Text(w, http.StatusOK, "ok") })
	address := served(t, Paths{"/": ok})
	for range maxConnections - 2 {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	for request, want := range map[string]string{
		"\x00\x01\x02\r\n\r\n": "400 Bad Request", "GET\r\n\r\n": "400 Bad Request",
		"GET / HTTP/9.9.9\r\n\r\n": "400 Bad Request",
		// net/http allows 4 KiB more than the limit.
		"GET / HTTP/1.1\r\nA: " + strings.Repeat("a", maxHeader+4<<10): "431 Request Header Fields Too Large",
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
		if !strings.HasPrefix(string(answer), "HTTP/1.1 "+want+"\r\n") {
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
