package flex

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	decide "volplane.dev/volplane/internal/decide/flex"
)

// tracesDir is where a host writes down the calls of a driver.
func (h *Host) tracesDir(dir string) string {
	if h.StateDir == "" {
		return ""
	}
	return filepath.Join(h.StateDir, "calls", dir)
}

// endLeft ends what is left of calls that a host before this one began and of
// which it did not see the end, because it was killed. Until that is done no
// driver is called, and what hangs in the kernel keeps what it works on from
// being worked on by another call.
func (h *Host) endLeft(ctx context.Context) {
	entries, err := os.ReadDir(h.tracesDir(""))
	if h.StateDir == "" || errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		h.Log.Warn("what is left of calls of FlexVolume drivers is not known", "dir", h.tracesDir(""), "err", err)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*killGrace)
	defer cancel()
	var wait sync.WaitGroup
	defer wait.Wait()
	for _, e := range entries {
		if _, err := decide.ParseDir(e.Name()); err != nil || !e.IsDir() {
			continue
		}
		left, err := readTraces(h.tracesDir(e.Name()))
		if err != nil {
			h.Log.Warn("what is left of calls of a FlexVolume driver is not known", "dir", h.tracesDir(e.Name()), "err", err)
		}
		h.mu.Lock()
		s := h.slot(e.Name())
		h.mu.Unlock()
		h.sweep(s)
		for key, all := range byKey(left) {
			wait.Go(func() { h.end(ctx, s, key, all) })
		}
	}
}

// byKey sorts calls by what they work on.
func byKey(all []*trace) map[string][]*trace {
	keys := map[string][]*trace{}
	for _, t := range all {
		keys[t.Key] = append(keys[t.Key], t)
	}
	return keys
}

// end ends what is left of calls that work on the same.
func (h *Host) end(ctx context.Context, s *slot, key string, all []*trace) {
	for _, t := range all {
		if t.Volume != "" {
			s.calls.name(s.label, t.Volume, t.Named)
		}
		h.Log.Warn("what is left of a call of a FlexVolume driver is ended", "driver", s.label, "call", string(t.Op), "about", key)
	}
	end := func(_ context.Context, overdue func()) (any, error) {
		overdue = sync.OnceFunc(overdue)
		for _, t := range all {
			t.finish(overdue)
		}
		return nil, nil
	}
	if _, err := s.calls.join(ctx, task{key: key, what: "end what is left", do: end}); err != nil {
		h.Log.Error("what is left of a call of a FlexVolume driver does not end; other calls about it wait", "driver", s.label, "about", key, "err", err)
	}
}

// sweep removes what calls that have ended left of cgroups.
func (h *Host) sweep(s *slot) {
	if cgroup := h.options(s).Cgroup; cgroup != "" {
		sweepCgroups(cgroup, h.tracesDir(s.dir))
	}
}
