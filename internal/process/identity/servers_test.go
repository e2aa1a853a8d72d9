package identity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	decide "volplane.dev/volplane/internal/decide/identity"
)

// network determines what happens at addresses: "up" connects, "down" refuses, and anything else is silent.
type network map[string]string

var errDown = errors.New("connection refused")

func (n network) dial(ctx context.Context, _, address string) (net.Conn, error) {
	switch n[address] {
	case "up":
		here, there := net.Pipe()
		return here, there.Close()
	case "down":
		return nil, fmt.Errorf("%s: %w", address, errDown)
	}
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// TestDial: a client connects to the server that responded last, and to another one if that does not respond:
// immediately if it refuses, and after a short time if it is silent.
func TestDial(t *testing.T) {
	for name, c := range map[string]struct {
		network network
		known   string
		first   string
		within  time.Duration
		fails   bool
	}{
		"one address":                {network: network{"a": "up"}},
		"it is down":                 {network: network{"a": "down"}, fails: true},
		"the last good one is first": {network: network{"a": "up", "b": "up"}, known: "b a", first: "b"},
		"the last good one is down":  {network: network{"a": "up", "b": "down"}, known: "b a", first: "a"},
		"it is silent":               {network: network{"a": "up"}, known: "b a", first: "a", within: stagger},
		"two are":                    {network: network{"a": "up"}, known: "b c a", first: "a", within: 2 * stagger},
		"a silent, a refusing":       {network: network{"a": "up", "c": "down"}, known: "b c a", first: "a", within: stagger},
		"all are down":               {network: network{"a": "down", "b": "down"}, known: "b a", first: "b", fails: true},
		"another is known":           {network: network{"a": "up", "b": "down"}, known: "b", first: "b"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := serversBelow(t.TempDir())
				s.dial, s.known, s.home = c.network.dial, strings.Fields(c.known), "a"
				begin := time.Now()
				conn, err := s.Dial(t.Context(), "tcp", "a")
				if took := time.Since(begin); took != c.within {
					t.Errorf("it took %v, want %v", took, c.within)
				}
				if (err != nil) != c.fails || err == nil && conn == nil {
					t.Errorf("error %v, want one: %v", err, c.fails)
				}
				if c.first != "" && s.known[0] != c.first {
					t.Errorf("first of %v is not %s", s.known, c.first)
				}
			})
		})
	}
}

// TestDialEnds: a client that gives up does not wait for silent servers.
func TestDialEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serversBelow(t.TempDir())
		s.dial, s.home = network{}.dial, "a"
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := s.Dial(ctx, "tcp", "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}

// TestServersLast: addresses survive a restart in the same order, and removed ones are forgotten. Addresses of another
// cluster are not used.
func TestServersLast(t *testing.T) {
	root := t.TempDir()
	for _, step := range []struct{ authority, now, want string }{
		{"ours", "b c a", "b c a"},
		{"ours", "a b c", "b c a"},
		{"ours", "a c d", "c a d"},
		{"another", "e", "e"},
		{"ours", "a", "a"},
	} {
		if err := Remember(root, []byte(step.authority), strings.Fields(step.now)); err != nil {
			t.Fatal(err)
		}
		for authority, want := range map[string]string{step.authority: step.want, "a third": ""} {
			s := serversBelow(root)
			s.authority = []byte(authority)
			if s.read(); strings.Join(s.known, " ") != want {
				t.Errorf("after %s for %s: %v, want %q", step.now, authority, s.known, want)
			}
		}
	}
}

// TestReach: a command connects to the control plane of its configuration, and to another one if that does not respond,
// but not through a proxy, with another cluster's configuration, or without the name in all certificates.
func TestReach(t *testing.T) {
	const home, other, proxy = "a:1", "b:1", "proxy:1"
	root := t.TempDir()
	if err := Remember(root, []byte("ours"), []string{other, "c:1"}); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		network               network
		authority, name, host string
		to, moved             string
		fails                 bool
	}{
		"its own answers":         {network: network{home: "up", other: "up"}},
		"another one does":        {network: network{home: "down", other: "up"}, moved: home + " " + other},
		"none does":               {network: network{home: "down", other: "down", "c:1": "down"}, fails: true},
		"another cluster":         {network: network{home: "down", other: "up"}, authority: "theirs", fails: true},
		"another server":          {network: network{home: "down", other: "up"}, name: "kubernetes", fails: true},
		"no port":                 {network: network{home: "down", other: "up"}, host: "https://a", fails: true},
		"a proxy":                 {network: network{proxy: "up", other: "up"}, to: proxy},
		"a proxy does not answer": {network: network{proxy: "down", other: "up"}, to: proxy, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			config := &rest.Config{Host: cmp.Or(c.host, "https://"+home), Dial: c.network.dial}
			config.CAData, config.ServerName = []byte(cmp.Or(c.authority, "ours")), cmp.Or(c.name, decide.ServerName)
			moved := ""
			Reach(config, root, func(before, now string) { moved += before + " " + now })
			_, err := config.Dial(t.Context(), "tcp", cmp.Or(c.to, home))
			if (err != nil) != c.fails || moved != c.moved {
				t.Errorf("error %v, want one: %v; %q, want %q", err, c.fails, moved, c.moved)
			}
		})
	}
}

// refuses is a transport whose requests fail, and that counts them.
type refuses struct{ requests int }

func (r *refuses) RoundTrip(*http.Request) (*http.Response, error) {
	r.requests++
	return nil, errDown
}

// TestNoControlPlane: after a request that has failed, for example because the server at an address has no certificate
// of a control plane, the next connection goes elsewhere. A read is sent to each server once. A request that its caller
// has cancelled changes nothing.
func TestNoControlPlane(t *testing.T) {
	s := serversBelow(t.TempDir())
	s.known, s.home = []string{"a", "b", "c"}, "c"
	ended, end := context.WithCancel(t.Context())
	end()
	for _, c := range []struct {
		ctx      context.Context //nolint:containedctx // of the request
		method   string
		requests int
		want     string
	}{
		{ended, http.MethodGet, 1, "a b c"},
		{t.Context(), http.MethodPost, 1, "b c a"},
		{t.Context(), http.MethodGet, 3, "b c a"},
		{t.Context(), http.MethodDelete, 1, "c a b"},
	} {
		r, err := http.NewRequestWithContext(c.ctx, c.method, "https://a", nil)
		if err != nil {
			t.Fatal(err)
		}
		var transport refuses
		if _, err := (&attempts{&transport, s}).RoundTrip(r); !errors.Is(err, errDown) {
			t.Error(err)
		}
		if got := strings.Join(s.known, " "); got != c.want || transport.requests != c.requests {
			t.Errorf("%s and %d requests, want %s and %d", got, transport.requests, c.want, c.requests)
		}
	}
}
