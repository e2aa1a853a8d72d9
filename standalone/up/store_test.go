package up

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"regexp"
	"testing"

	"volplane.dev/volplane/standalone/external"
)

// TestWaitsForStore: a start says which store it waits for, and ends with its context.
func TestWaitsForStore(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, in := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- Run(ctx, Options{
			DataDir: t.TempDir(), Listen: "127.0.0.1:0", Node: "n1", Out: in, Log: slog.New(slog.DiscardHandler),
			Store: external.Options{Servers: []string{"http://127.0.0.1:1"}, Prefix: "/volplane/here"},
		})
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	want := regexp.MustCompile(`^starting, +\d+ s: waiting for the store: 0 of 1 members answer; http://127\.0\.0\.1:1 does not: `)
	if err != nil || !want.MatchString(line) {
		t.Errorf("%q, %v; want %s", line, err, want)
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestHalfOfTheStore: incomplete flags are refused before anything is created.
func TestHalfOfTheStore(t *testing.T) {
	t.Parallel()
	o := Options{DataDir: "/d", Node: "n", Store: external.Options{Prefix: "/volplane/here"}}
	if err := o.Validate(); err == nil || !regexp.MustCompile(`belong to --etcd-servers`).MatchString(err.Error()) {
		t.Error(err)
	}
}
