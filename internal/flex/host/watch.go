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
)

const (
	// atOnce is how many notices are gathered before what they are about is
	// looked at.
	atOnce = 4096
	// forgetAfter is how long a driver must be gone until nothing is known of it
	// any more.
	forgetAfter = time.Minute
)

// Run finds drivers until ctx ends. It is called once. It returns an error only
// when the plugin directory cannot be made.
func (h *Host) Run(ctx context.Context) error {
	if err := os.MkdirAll(h.Dir, 0o750); err != nil {
		return fmt.Errorf("make the plugin directory: %w", err)
	}
	h.endLeft(ctx)
	w := h.watch()
	defer w.close()
	tick := time.NewTicker(cmp.Or(h.RescanEvery, defaultRescan))
	defer tick.Stop()
	f := &finder{host: h, dir: filepath.Clean(h.Dir), watch: w, links: map[string]bool{}}
	defer f.probes.Wait()
	f.everything(ctx)
	h.forgetUnused()
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-w.events:
			f.changed(ctx, e)
		case err := <-w.errs:
			// After an overflow the whole directory is read.
			h.Log.Warn("notice of a FlexVolume driver may be lost", "err", err)
			f.everything(ctx)
		case <-tick.C:
			f.everything(ctx)
			h.forgetGone(time.Now())
			h.forgetUnused()
		}
	}
}

// notices are what a watch gives; the kernel's are fsnotify's.
type notices interface {
	Add(path string) error
	Remove(path string) error
	Close() error
}

// watch follows the plugin directory and those in it.
type watch struct {
	events <-chan fsnotify.Event
	errs   <-chan error
	kernel notices
	// at tells which directory is watched under which path.
	at map[string]fs.FileInfo
}

// watch asks the kernel for notices. Without them the rescan must do: a full
// inotify table is no reason to stop.
func (h *Host) watch() *watch {
	if h.follow != nil {
		return h.follow()
	}
	n, err := fsnotify.NewWatcher()
	if err != nil {
		h.Log.Warn("no notices of FlexVolume drivers, changes are found late", "dir", h.Dir, "err", err)
		return &watch{}
	}
	return &watch{events: n.Events, errs: n.Errors, kernel: n, at: map[string]fs.FileInfo{}}
}

func (w *watch) close() {
	if w.kernel != nil {
		_ = w.kernel.Close()
	}
}

// add watches a directory, unless it does already.
func (w *watch) add(path string, info fs.FileInfo) error {
	if w.kernel == nil || w.at[path] != nil {
		return nil
	}
	if err := w.kernel.Add(path); err != nil {
		return unlessGone(err)
	}
	w.at[path] = info
	return nil
}

// drop no longer watches a path. A directory that moves within the plugin
// directory keeps its watch, with its old path, until that is dropped: so all
// that is dropped is dropped before anything is added.
func (w *watch) drop(path string) {
	if w.at[path] != nil {
		// It is not watched any more if the kernel saw it go.
		_ = w.kernel.Remove(path)
		delete(w.at, path)
	}
}

// finder is what Run works with.
type finder struct {
	host   *Host
	dir    string
	watch  *watch
	probes sync.WaitGroup
	// links are the names in the plugin directory that are symbolic links: what
	// they lead to may change without a notice about them.
	links map[string]bool
}

// batch is what notices are about.
type batch struct {
	// whole says that the plugin directory itself changed.
	whole bool
	// dirs are the directories that may have changed; of those that are true the
	// executable was written to.
	dirs map[string]bool
	// moved are those that came or went.
	moved map[string]bool
}

// changed looks at what a notice is about, and at all that have come meanwhile.
func (f *finder) changed(ctx context.Context, first fsnotify.Event) {
	b := batch{dirs: map[string]bool{}, moved: map[string]bool{}}
	b.add(f.dir, first)
	for range atOnce {
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
		f.everything(ctx)
		return
	}
	for name := range b.moved {
		f.watch.drop(filepath.Join(f.dir, name))
	}
	for name := range b.moved {
		f.follow(name)
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
		f.look(ctx, name, written)
	}
}

// add notes one notice.
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
	// Any other file in the directory is no reason to call init, but a link may
	// lead to it.
	b.dirs[name] = b.dirs[name] || deeper && file == decide.ExecutableName(name) && e.Has(fsnotify.Write)
	if !deeper && e.Op != fsnotify.Chmod {
		b.moved[name] = true
	}
}

// everything looks at all that is in the plugin directory, or was. It makes the
// directory if it is gone (F-044).
func (f *finder) everything(ctx context.Context) {
	if err := os.MkdirAll(f.dir, 0o750); err != nil {
		f.host.Log.Warn("plugin directory cannot be made", "dir", f.dir, "err", err)
	}
	for path, was := range f.watch.at {
		if info, err := f.stat(path); err != nil || !os.SameFile(was, info) {
			f.watch.drop(path)
		}
	}
	clear(f.links)
	f.follow(".")
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		// What is known stays in use (F-047).
		f.host.Log.Warn("plugin directory cannot be read", "dir", f.dir, "err", err)
		return
	}
	names := f.host.scan()
	for _, e := range entries {
		if decide.Visible(e.Name()) {
			f.follow(e.Name())
			names[e.Name()] = true
		}
	}
	for name := range names {
		f.look(ctx, name, false)
	}
}

// follow watches a directory in the plugin directory, or that itself, if it is
// there.
func (f *finder) follow(name string) {
	path := filepath.Join(f.dir, name)
	info, err := f.stat(path)
	delete(f.links, name)
	switch {
	case err == nil && info.IsDir():
		err = f.watch.add(path, info)
	case err == nil && info.Mode()&fs.ModeSymlink != 0:
		f.links[name] = true
	}
	if unlessGone(err) != nil {
		f.host.Log.Warn("no notices of FlexVolume drivers, changes are found late", "dir", path, "err", err)
	}
}

// stat looks at what is watched: the plugin directory may be a link, what is in
// it is not followed if it is one (F-051).
func (f *finder) stat(path string) (fs.FileInfo, error) {
	if path == f.dir {
		return os.Stat(path)
	}
	return os.Lstat(path)
}

// look notes what is at one name, and has init called if that is new.
func (f *finder) look(ctx context.Context, name string, written bool) {
	c, refused, err := lookAt(f.dir, name)
	if err != nil {
		f.host.Log.Warn("FlexVolume driver cannot be looked at", "dir", filepath.Join(f.dir, name), "err", err)
		return
	}
	if c == nil && refused.Reason == "" && !f.host.knows(name) {
		return
	}
	f.host.change(name, func(s *slot) {
		if c == nil {
			if s.seen != nil {
				s.gone = time.Now()
			}
			s.seen, s.ready, s.probed, s.failure, s.refused = nil, nil, false, "", refused
			return
		}
		same := s.seen != nil && s.seen.mark == c.mark && !written
		s.seen, s.refused = c, refused
		if same {
			return
		}
		if s.stop == nil {
			f.begin(ctx, s)
		}
		select {
		case s.signals <- struct{}{}:
		default: // one is waiting already
		}
	})
}

// begin starts what calls init of a driver.
func (f *finder) begin(ctx context.Context, s *slot) {
	f.host.findKept(s)
	s.signals = make(chan struct{}, 1)
	ctx, s.stop = context.WithCancel(ctx)
	f.probes.Go(func() {
		pace(ctx, s.signals, func(ctx context.Context) outcome { return f.host.probe(ctx, s) })
	})
}

// scan begins a scan and returns the names of all slots.
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

func (h *Host) knows(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.slots[name] != nil
}

// linked returns the names of the drivers that a link leads to, where notices
// may be about another path.
func (h *Host) linked() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var names []string
	for name, s := range h.slots {
		if s.seen != nil && s.seen.linked || s.refused.Reason != "" {
			names = append(names, name)
		}
	}
	return names
}

// idle says that nothing is there, and nobody needs it.
func (s *slot) idle() bool {
	return s.seen == nil && s.refused.Reason == "" && len(s.users) == 0 && s.calls.Idle()
}

// forgetGone forgets drivers that have been gone for a while; before that they
// would be new ones when they come back, which are called at once.
func (h *Host) forgetGone(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, s := range h.slots {
		if s.idle() && now.Sub(s.gone) > forgetAfter {
			if s.stop != nil {
				s.stop()
			}
			delete(h.slots, name)
		}
	}
}
