package install

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// kept is a driver that Keep keeps installed.
type kept struct {
	*pluginHost
	done  <-chan Report
	ended <-chan error
	// last is the previous action.
	last string
}

// next waits until the driver is restored by an action.
func (k *kept) next(deed string) {
	k.Helper()
	for limit := time.After(time.Minute); ; {
		select {
		case r := <-k.done:
			if r.Deed == deed && k.installed() == "1" {
				k.last = deed
				return
			}
			// A harm that is done in two steps may be put right twice.
			if r.Deed != deed && r.Deed != k.last {
				k.Fatalf("%s, version %s; want %s", r.Deed, k.installed(), deed)
			}
		case err := <-k.ended:
			k.Fatalf("it ended: %v", err)
		case <-limit:
			k.Fatalf("nobody puts it right: there is %s", k.names())
		}
	}
}

// TestKeep: a driver that is removed or changed is restored, until the end (F-058).
func TestKeep(t *testing.T) {
	w := newPluginHost(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan Report, 10)
	ended := make(chan error, 1)
	go func() {
		ended <- Keep(ctx, w.options(w.driver("1")), slog.New(slog.DiscardHandler), func(r Report) { done <- r })
	}()
	k := &kept{pluginHost: w, done: done, ended: ended}
	k.next(Installed)
	for _, harm := range []struct {
		do   func() error
		deed string
	}{
		{func() error { return os.Remove(w.exe()) }, Installed},
		{func() error { return os.RemoveAll(filepath.Dir(w.exe())) }, Installed},
		{func() error { return os.WriteFile(w.exe(), []byte("#!/bin/sh\n# version 9\n"), 0o755) }, Upgraded},
		{func() error { return os.Rename(w.driver("2"), w.exe()) }, Upgraded},
		{func() error { return os.Chmod(w.exe(), 0o600) }, Installed},
		{func() error { return os.Rename(filepath.Dir(w.exe()), filepath.Join(w.dir, "away")) }, Installed},
	} {
		if err := harm.do(); err != nil {
			t.Fatal(err)
		}
		k.next(harm.deed)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if w.installed() != "1" {
		t.Error("it went with its keeper")
	}
}

// TestKeepRefuses: Keep immediately refuses what can never be installed.
func TestKeepRefuses(t *testing.T) {
	w := newPluginHost(t)
	err := Keep(t.Context(), w.options(w.script("bad", "hello")), slog.New(slog.DiscardHandler), func(Report) {})
	if !errors.Is(err, ErrRefused) {
		t.Error(err)
	}
}
