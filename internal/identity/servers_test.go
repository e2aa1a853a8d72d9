package identity

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// network is what answers at addresses: "up" connects, "down" refuses, and nothing is silent.
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

// TestDial: a client connects to the server that has answered last, and to another one if that does not answer: after
// no time if it refuses, and after little if it is silent.
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
				s := serversBelow(t.TempDir(), slog.New(slog.DiscardHandler))
				s.dial, s.known = c.network.dial, strings.Fields(c.known)
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

// TestDialEnds: a client that gives up does not wait for servers that are silent.
func TestDialEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serversBelow(t.TempDir(), slog.New(slog.DiscardHandler))
		s.dial = network{}.dial
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := s.Dial(ctx, "tcp", "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}

// TestServersLast: addresses survive a restart, those that are gone are forgotten, and the order stays.
func TestServersLast(t *testing.T) {
	root, log := t.TempDir(), slog.New(slog.DiscardHandler)
	if err := os.Mkdir(filepath.Join(root, "identity"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct{ now, want string }{
		{"b c a", "b c a"}, {"a b c", "b c a"}, {"a c d", "c a d"},
	} {
		if err := serversBelow(root, log).set(strings.Fields(step.now)); err != nil {
			t.Fatal(err)
		}
		if got := serversBelow(root, log).known; !slices.Equal(got, strings.Fields(step.want)) {
			t.Errorf("after %s: %v, want %s", step.now, got, step.want)
		}
	}
}

// refuses is a transport whose requests fail.
type refuses struct{}

func (refuses) RoundTrip(*http.Request) (*http.Response, error) { return nil, errDown }

// TestNoControlPlane: after a request that has failed, for example because what answers at an address has no
// certificate of a control plane, the next connection leads elsewhere. A request that its caller has ended says
// nothing.
func TestNoControlPlane(t *testing.T) {
	s := serversBelow(t.TempDir(), slog.New(slog.DiscardHandler))
	s.known = []string{"a", "b", "c"}
	ended, end := context.WithCancel(t.Context())
	end()
	for _, c := range []struct {
		ctx  context.Context //nolint:containedctx // of the request
		want string
	}{{ended, "a b c"}, {t.Context(), "b c a"}, {t.Context(), "c a b"}} {
		r, err := http.NewRequestWithContext(c.ctx, http.MethodGet, "https://a", nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := (&attempts{refuses{}, s}).RoundTrip(r); !errors.Is(err, errDown) {
			t.Error(err)
		}
		if got := strings.Join(s.known, " "); got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
	}
}
