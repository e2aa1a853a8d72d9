package host

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/process/lifecycle"
)

const (
	// maxEvents is how many events are collected before the entries that they concern are
	// inspected.
	maxEvents = 4096
	// forgetAfter is how long a driver must have been missing before its slot is removed.
	forgetAfter = time.Minute
)

// Run discovers drivers until ctx ends. It must be called once. It returns an error only if the
// plugin directory cannot be created.
func (h *Host) Run(ctx context.Context) error {
	if err := os.MkdirAll(h.Dir, 0o750); err != nil {
		return fmt.Errorf("make the plugin directory: %w", err)
	}
	h.endUnfinished(ctx)
	w := h.watch()
	defer w.close()
	tick := time.NewTicker(cmp.Or(h.RescanEvery, defaultRescan))
	defer tick.Stop()
	f := &finder{host: h, dir: filepath.Clean(h.Dir), watch: w, links: map[string]bool{}}
	defer f.probes.Wait()
	f.scanAll(ctx)
	h.forgetUnused()
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-w.events:
			f.handle(ctx, e)
		case err := <-w.errs:
			// After an overflow of the event queue the whole directory is read.
			h.Log.Warn("notice of a FlexVolume driver may be lost", "err", err)
			f.scanAll(ctx)
		case <-tick.C:
			f.scanAll(ctx)
			h.forgetGone(time.Now())
			h.forgetUnused()
		}
	}
}

// notifier is the part of fsnotify's watcher that a watch needs.
type notifier interface {
	Add(path string) error
	Remove(path string) error
	Close() error
}

// watch watches the plugin directory and the directories in it.
type watch struct {
	events <-chan fsnotify.Event
	errs   <-chan error
	kernel notifier
	// watched holds the watched directories by path.
	watched map[string]fs.FileInfo
}

// watch opens a watch. If the kernel allows none, the resync is enough: a full inotify table is
// not a reason to stop.
func (h *Host) watch() *watch {
	if h.newWatch != nil {
		return h.newWatch()
	}
	n, err := fsnotify.NewWatcher()
	if err != nil {
		h.Log.Warn("the plugin directory cannot be watched: changes are found late", "dir", h.Dir, "err", err)
		return &watch{}
	}
	return &watch{events: n.Events, errs: n.Errors, kernel: n, watched: map[string]fs.FileInfo{}}
}

func (w *watch) close() {
	if w.kernel != nil {
		_ = w.kernel.Close()
	}
}

// add watches a directory, unless it is watched already.
func (w *watch) add(path string, info fs.FileInfo) error {
	if w.kernel == nil || w.watched[path] != nil {
		return nil
	}
	if err := w.kernel.Add(path); err != nil {
		return ignoreNotExist(err)
	}
	w.watched[path] = info
	return nil
}

// drop removes the watch of a path. A directory that is renamed within the plugin directory keeps
// its watch under its old path until that is removed: so watches are removed before others are
// added.
func (w *watch) drop(path string) {
	if w.watched[path] != nil {
		// This fails if the kernel has removed the watch because the directory was deleted.
		_ = w.kernel.Remove(path)
		delete(w.watched, path)
	}
}

// finder is the state of Run.
type finder struct {
	host   *Host
	dir    string
	watch  *watch
	probes sync.WaitGroup
	// links holds the entries of the plugin directory that are symbolic links: their targets may
	// change without an event.
	links map[string]bool
}

// batch is a set of events.
type batch struct {
	// whole says that the plugin directory itself changed.
	whole bool
	// dirs holds the directories that may have changed; the value says that the executable was
	// written to.
	dirs map[string]bool
	// moved holds the directories that appeared or disappeared.
	moved map[string]bool
}

// handle inspects the entries that are named by an event and by all that have arrived since.
func (f *finder) handle(ctx context.Context, first fsnotify.Event) {
	b := batch{dirs: map[string]bool{}, moved: map[string]bool{}}
	b.add(f.dir, first)
	for range maxEvents {
		select {
		case e := <-f.watch.events:
			b.add(f.dir, e)
			continue
		default:
		}
		break
	}
	if b.whole {
		f.watch.drop(f.dir)
		f.scanAll(ctx)
		return
	}
	for name := range b.moved {
		f.watch.drop(filepath.Join(f.dir, name))
	}
	for name := range b.moved {
		f.watchEntry(name)
	}
	if len(b.dirs) > 0 {
		for _, name := range f.host.linked() {
			b.dirs[name] = b.dirs[name] || false
		}
		for name := range f.links {
			b.dirs[name] = b.dirs[name] || false
		}
	}
	for name, written := range b.dirs {
		f.updateSlot(ctx, name, written)
	}
}

// add adds an event to the batch.
func (b *batch) add(root string, e fsnotify.Event) {
	if e.Name == root {
		b.whole = true
		return
	}
	rel, inside := strings.CutPrefix(e.Name, root+"/")
	name, file, deeper := strings.Cut(rel, "/")
	if !inside || !decide.Visible(name) || deeper && !decide.Visible(file) {
		return
	}
	// Another file in the directory is not a reason to call init, unless a link leads to it.
	b.dirs[name] = b.dirs[name] || deeper && file == decide.ExecutableName(name) && e.Has(fsnotify.Write)
	if !deeper && e.Op != fsnotify.Chmod {
		b.moved[name] = true
	}
}

// scanAll inspects all entries that the plugin directory has or had. It creates the directory if
// it does not exist (F-044).
func (f *finder) scanAll(ctx context.Context) {
	if err := os.MkdirAll(f.dir, 0o750); err != nil {
		f.host.Log.Warn("plugin directory cannot be created", "dir", f.dir, "err", err)
	}
	for path, was := range f.watch.watched {
		if info, err := f.stat(path); err != nil || !os.SameFile(was, info) {
			f.watch.drop(path)
		}
	}
	clear(f.links)
	f.watchEntry(".")
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		// The known drivers remain in use (F-047).
		f.host.Log.Warn("plugin directory cannot be read", "dir", f.dir, "err", err)
		return
	}
	names := f.host.scan()
	for _, e := range entries {
		if decide.Visible(e.Name()) {
			f.watchEntry(e.Name())
			names[e.Name()] = true
		}
	}
	for name := range names {
		f.updateSlot(ctx, name, false)
	}
}

// watchEntry watches an entry of the plugin directory, or, for "", the directory itself.
func (f *finder) watchEntry(name string) {
	path := filepath.Join(f.dir, name)
	info, err := f.stat(path)
	delete(f.links, name)
	switch {
	case err == nil && info.IsDir():
		err = f.watch.add(path, info)
	case err == nil && info.Mode()&fs.ModeSymlink != 0:
		f.links[name] = true
	}
	if ignoreNotExist(err) != nil {
		f.host.Log.Warn("a directory of FlexVolume drivers cannot be watched: changes are found late",
			"dir", path, "err", err)
	}
}

// stat follows a link to the plugin directory, but not links in it (F-051).
func (f *finder) stat(path string) (fs.FileInfo, error) {
	if path == f.dir {
		return os.Stat(path)
	}
	return os.Lstat(path)
}

// updateSlot inspects one entry, and makes init be called if its executable has changed.
func (f *finder) updateSlot(ctx context.Context, name string, written bool) {
	c, refused, err := inspect(f.dir, name)
	if err != nil {
		f.host.Log.Warn("FlexVolume driver cannot be inspected", "dir", filepath.Join(f.dir, name), "err", err)
		return
	}
	if c == nil && refused.Reason == "" && !f.host.isKnown(name) {
		return
	}
	f.host.change(name, func(s *slot) {
		if c == nil {
			if s.found != nil {
				s.goneSince = time.Now()
			}
			s.found, s.ready, s.probed, s.failure, s.refused = nil, nil, false, "", refused
			return
		}
		same := s.found != nil && s.found.mark == c.mark && !written
		s.found, s.refused = c, refused
		if same {
			return
		}
		if s.stop == nil {
			f.startProbing(ctx, s)
		}
		lifecycle.Wake(s.signals)
	})
}

// startProbing starts the goroutine that calls init of a driver.
func (f *finder) startProbing(ctx context.Context, s *slot) {
	f.host.findKept(s)
	s.signals = make(chan struct{}, 1)
	ctx, s.stop = context.WithCancel(ctx)
	f.probes.Go(func() {
		pace(ctx, s.signals, func(ctx context.Context) outcome { return f.host.probe(ctx, s) })
	})
}

// scan marks the beginning of a scan and returns the names of all slots.
func (h *Host) scan() map[string]bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.scanned = true
	names := make(map[string]bool, len(h.slots))
	for name := range h.slots {
		names[name] = true
	}
	return names
}

func (h *Host) isKnown(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.slots[name] != nil
}

// linked returns the names of the drivers that are reached by a link, whose events may name another
// path.
func (h *Host) linked() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var names []string
	for name, s := range h.slots {
		if s.found != nil && s.found.linked || s.refused.Reason != "" {
			names = append(names, name)
		}
	}
	return names
}

// isUnused says that there is no executable and no user.
func (s *slot) isUnused() bool {
	return s.found == nil && s.refused.Reason == "" && len(s.users) == 0 && s.calls.Idle()
}

// forgetGone removes the slots of drivers that have been missing for a while. A driver that returns
// earlier is not new, so its first probe is not made immediately.
func (h *Host) forgetGone(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, s := range h.slots {
		if s.isUnused() && now.Sub(s.goneSince) > forgetAfter {
			if s.stop != nil {
				s.stop()
			}
			delete(h.slots, name)
		}
	}
}
