package install

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/flex/host"
)

// bridge runs a host over the plugin directory, which records its state below the
// directory that is returned.
func (w *pluginHost) bridge() (h *host.Host, root string) {
	w.Helper()
	root = w.TempDir()
	h = &host.Host{Dir: w.plugins, StateDir: filepath.Join(root, "state"), Log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- h.Run(ctx) }()
	go func() { ended <- h.ServeReport(ctx, root) }()
	w.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ended, <-ended); err != nil {
			w.Error(err)
		}
	})
	return h, root
}

// told waits until the state that the bridge reports for the driver is the wanted one.
func told(t *testing.T, root string, want func(host.State) bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); ; <-tick.C {
		report, err := host.ReadReport(root)
		if err == nil && want(stateIn(report, demo())) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the bridge tells %+v, %v", report, err)
		}
	}
}

// TestVerify: a running bridge reports whether it has loaded what was installed; without
// a running bridge, nothing can be verified.
func TestVerify(t *testing.T) {
	w := newPluginHost(t)
	o := w.options(w.driver("1"))
	o.Force, o.RootDir = true, t.TempDir()
	broken := w.script("bad", "#!/bin/sh\necho '{\"status\":\"Failure\",\"message\":\"no tool\"}'; exit 1\n")
	c := w.change(o)
	if _, err := c.loaded(t.Context(), "", time.Time{}); !errors.Is(err, host.ErrNoHost) {
		t.Errorf("nobody to ask: %v", err)
	}
	_, c.RootDir = w.bridge()
	told(t, c.RootDir, func(host.State) bool { return true })
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for _, step := range []struct {
		source string
		state  decide.Standing
		says   string
	}{
		{o.Source, decide.Ready, "is ready"},
		{broken, decide.Broken, "no tool"},
		// That the previous version was broken does not count.
		{o.Source, decide.Ready, "is ready"},
	} {
		at := time.Now()
		c.Source = step.source
		r, err := c.install(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if s, err := c.loaded(ctx, r.Hash, at); err != nil || s.State != step.state ||
			!strings.Contains(s.Message, step.says) {
			t.Errorf("%+v, %v; want %s", s, err, step.state)
		}
	}
}

// TestUninstallHeld: a volume that is nowhere mounted is in use as well, if the
// bridge says so.
func TestUninstallHeld(t *testing.T) {
	w := newPluginHost(t)
	o := w.options(w.driver("1"))
	r, err := Install(t.Context(), o)
	w.want(Installed, r, err)
	h, root := w.bridge()
	h.Keep(demo(), "a volume")
	told(t, root, func(s host.State) bool { return s.InUse == 1 })
	o.RootDir = root
	if _, err = Uninstall(t.Context(), o); !errors.Is(err, ErrInUse) ||
		!strings.Contains(err.Error(), "1 of its volumes") {
		t.Error(err)
	}
	h.Drop(demo(), "a volume")
	told(t, root, func(s host.State) bool { return s.InUse == 0 })
	r, err = Uninstall(t.Context(), o)
	w.want(Removed, r, err)
}
