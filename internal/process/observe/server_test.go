package observe

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
)

// serve serves a registry and returns the addresses.
func serve(t *testing.T, r *Registry, ready []Check, all ...Address) []string {
	t.Helper()
	for i := range all {
		all[i].Address = "127.0.0.1:0"
	}
	s, err := Listen(all, r, ready, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		for _, a := range s.Addresses() {
			if c, err := net.Dial("tcp", a); err == nil {
				c.Close()
				t.Errorf("%s is still served", a)
			}
		}
	})
	return s.Addresses()
}

func get(t *testing.T, url string, headers ...string) (code int, kind, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, answer.Header.Get("Content-Type"), string(text)
}

// TestServer: each address serves what any of them has.
func TestServer(t *testing.T) {
	r := full()
	addresses := serve(t, r, nil, Address{MetricsPath: "/{odd"}, Address{LeaderHealth: true})
	for _, at := range addresses {
		for path, want := range map[string]string{
			"/{odd": "process_start_time_seconds", "/{odd?": "promhttp_metric_handler_requests_total",
			"/metrics": "volplane_build_info", "/livez": "ok", "/readyz": "ok",
			"/healthz/leader-election": "ok",
		} {
			if code, _, body := get(t, at+path); code != http.StatusOK || !strings.Contains(body, want) {
				t.Errorf("%s: %d %s", path, code, body)
			}
		}
		for _, path := range []string{"/", "/debug/pprof/", "/debug/pprof/cmdline", "/metrics/"} {
			if code, _, _ := get(t, at+path); code != http.StatusNotFound {
				t.Errorf("%s: %d", path, code)
			}
		}
	}
	alone := serve(t, r, nil, Address{})[0]
	if code, _, _ := get(t, alone+"/healthz/leader-election"); code != http.StatusNotFound {
		t.Errorf("the health of a leader without an election: %d", code)
	}
}

// TestPprof: profiles are served if they are enabled.
func TestPprof(t *testing.T) {
	at := serve(t, full(), nil, Address{Pprof: true})[0]
	code, _, body := get(t, at+"/debug/pprof/goroutine?debug=1")
	if code != http.StatusOK || !strings.Contains(body, "goroutine profile") {
		t.Errorf("%d %s", code, body)
	}
}

// TestOpenMetrics is spoken to who asks for it.
func TestOpenMetrics(t *testing.T) {
	at := serve(t, full(), nil, Address{})[0]
	_, kind, body := get(t, at+"/metrics", "Accept", "application/openmetrics-text; version=1.0.0")
	if !strings.HasPrefix(kind, "application/openmetrics-text; version=1.0.0") || !strings.HasSuffix(body, "# EOF\n") {
		t.Errorf("%s: %s", kind, body)
	}
	if _, kind, _ := get(t, at+"/metrics"); !strings.HasPrefix(kind, "text/plain; version=0.0.4") {
		t.Errorf("by default %s", kind)
	}
}

// TestReadiness names what is not ready.
func TestReadiness(t *testing.T) {
	var why error
	at := serve(t, full(), []Check{
		{"driver", func() error { return nil }}, {"controllers", func() error { return why }},
	}, Address{})[0]
	if code, _, body := get(t, at+"/readyz?verbose"); code != http.StatusOK ||
		body != "[+]driver ok\n[+]controllers ok\nreadyz check passed\n" {
		t.Errorf("%d %s", code, body)
	}
	why = errors.New("not read")
	if code, _, body := get(t, at+"/readyz"); code != http.StatusServiceUnavailable ||
		body != "[+]driver ok\n[-]controllers failed: not read\nreadyz check failed\n" {
		t.Errorf("%d %s", code, body)
	}
	if code, _, _ := get(t, at+"/livez"); code != http.StatusOK {
		t.Errorf("a process that is not ready does not live: %d", code)
	}
}

// TestLeaderIsLate: the answer is upstream's.
func TestLeaderIsLate(t *testing.T) {
	r := full()
	at := serve(t, r, nil, Address{LeaderHealth: true})[0]
	r.Follow(&led{err: errors.New("failed election to renew leadership on lease l")})
	if code, _, body := get(t, at+"/healthz/leader-election"); code != http.StatusInternalServerError ||
		body != "internal server error: failed election to renew leadership on lease l\n" {
		t.Errorf("%d %s", code, body)
	}
}

// TestPortInUse names the flag and the address, and leaves no other port open.
func TestPortInUse(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	at := taken.Addr().String()
	for flag, want := range map[string]string{"": "--http-endpoint", "--metrics-address": "--metrics-address"} {
		all := []Address{{Address: "127.0.0.1:0"}, {Address: at, Flag: flag}}
		_, err = Listen(all, New(""), nil, slog.Default())
		if err == nil || !strings.HasPrefix(err.Error(), want+" "+at+": ") {
			t.Errorf("got %v", err)
		}
	}
}

// TestSlowClient: a client that does not send its request is disconnected.
func TestSlowClient(t *testing.T) {
	at := serve(t, full(), nil, Address{})[0]
	c, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.Write([]byte("GET /metrics HTTP/1.1\r\nHost: x\r\nLong: " + strings.Repeat("x", headerBytes+8<<10)))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(c)
	if err != nil && len(answer) == 0 || !strings.Contains(string(answer), "431") {
		t.Errorf("%v %s", err, answer)
	}
}
