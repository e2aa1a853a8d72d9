package app

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/process/options"
)

// TestNoSocket: a door without a socket of its own or of systemd's is none in another program, and nothing that a
// program of its own could serve.
func TestNoSocket(t *testing.T) {
	o := options.DoorOptions{Config: &rest.Config{Host: "https://127.0.0.1:1"}, Log: slog.New(slog.DiscardHandler)}
	for name, serve := range map[string]func(context.Context, options.DoorOptions) error{
		"docker": Docker, "storage provider": StorageProvider,
	} {
		if err := serve(t.Context(), o); !errors.Is(err, errNoSocket) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, o := range []*options.DoorOptions{nil, &o} {
		if all, err := Doors(t.Context(), o, o); len(all) > 0 || err != nil {
			t.Errorf("%v, %v", all, err)
		}
	}
}
