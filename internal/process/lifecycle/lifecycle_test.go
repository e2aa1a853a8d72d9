package lifecycle

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
)

func TestRunStopsInReverseOrder(t *testing.T) {
	var mu sync.Mutex
	var stopped []string
	part := func(name string) Part {
		return Part{Name: name, Run: func(ctx context.Context) error {
			<-ctx.Done()
			mu.Lock()
			defer mu.Unlock()
			stopped = append(stopped, name)
			return nil
		}}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Run(ctx, slog.New(slog.DiscardHandler), []Part{part("a"), part("b"), part("c")}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"c", "b", "a"}; !slices.Equal(stopped, want) {
		t.Errorf("stopped in order %v, want %v", stopped, want)
	}
}

func TestRunEndsWithItsFirstPart(t *testing.T) {
	lost := errors.New("lost")
	for _, c := range []struct {
		err  error
		want string
	}{
		{lost, "b ended: lost"},
		{nil, "b ended: without being asked to"},
	} {
		err := Run(t.Context(), slog.New(slog.DiscardHandler), []Part{
			{Name: "a", Run: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }},
			{Name: "b", Run: func(context.Context) error { return c.err }},
		})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
}
