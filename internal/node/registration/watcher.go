package registration

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"volplane.dev/volplane/internal/csi"
)

// rescan is the pause between looks at the directory that no notice asked for.
const rescan = 30 * time.Second

// Registrar writes what a driver says of its node to the API. Both methods may
// be repeated.
type Registrar interface {
	// Register replaces all that is written of the driver.
	Register(ctx context.Context, name string, info csi.NodeInfo) error
	// Unregister removes it.
	Unregister(ctx context.Context, name string) error
}

// Watcher registers the drivers whose sockets are in Dir.
type Watcher struct {
	Dir       string
	Registrar Registrar
	Drivers   *csi.Set
	// Memory is what the drivers were given, also before they registered again.
	Memory *csi.Memory
	// Hold fails when the controllers may take nothing away.
	Hold func(ctx context.Context) error
	Log  *slog.Logger
	// Refused is told why the driver at a socket is not registered.
	Refused func(socket string, err error)
	// RetryMin and RetryMax bound the pause after a failure; the defaults are
	// 500 ms and 2 minutes.
	RetryMin, RetryMax time.Duration

	mu       sync.Mutex
	sessions map[string]*session
	// owners maps the names of drivers to their registration sockets.
	owners map[string]string
	// turns are those of each driver: its next process must not be called for a
	// volume before the call that its last one was given has ended.
	turns map[string]*csi.VolumeLocks
}

// Run registers drivers until ctx ends. What is registered stays so: the
// drivers go on without the agent.
func (w *Watcher) Run(ctx context.Context) error {
	if err := os.MkdirAll(w.Dir, 0o700); err != nil {
		return fmt.Errorf("make directory of registration sockets: %w", err)
	}
	events, errs, stop := w.follow()
	defer stop()
	tick := time.NewTicker(rescan)
	defer tick.Stop()
	var running sync.WaitGroup
	defer running.Wait()
	for {
		w.scan(ctx, &running)
		select {
		case <-ctx.Done():
			return nil
		case <-events:
		case err := <-errs:
			// After an overflow the next scan sees everything.
			w.Log.Warn("notice of a registration socket may be lost", "err", err)
		case <-tick.C:
		}
	}
}

// follow asks the kernel for notices. Without them the rescan must do: a full
// inotify table is no reason to stop (kubernetes 74669).
func (w *Watcher) follow() (<-chan fsnotify.Event, <-chan error, func()) {
	n, err := fsnotify.NewWatcher()
	if err == nil {
		if err = n.Add(w.Dir); err == nil {
			return n.Events, n.Errors, func() { _ = n.Close() }
		}
		_ = n.Close()
	}
	w.Log.Warn("no notices of registration sockets, new ones are found late", "dir", w.Dir, "err", err)
	return nil, nil, func() {}
}

// Again registers all drivers once more, because what was written of them is
// gone.
func (w *Watcher) Again() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.sessions {
		if s.socket != "" {
			s.tell(s.socket)
		}
	}
}

// scan tells each session when its socket appeared, changed or went away.
func (w *Watcher) scan(ctx context.Context, running *sync.WaitGroup) {
	found, err := sockets(w.Dir)
	if err != nil {
		w.Log.Warn("registration sockets cannot be listed", "err", err)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sessions == nil {
		w.sessions, w.owners, w.turns = map[string]*session{}, map[string]string{}, map[string]*csi.VolumeLocks{}
	}
	for path, id := range found {
		s := w.sessions[path]
		if s == nil {
			s = &session{w: w, path: path, inbox: make(chan string, 1), log: w.Log.With("socket", path)}
			w.sessions[path] = s
			running.Go(func() { s.run(ctx) })
		}
		if s.socket != id {
			s.socket = id
			s.tell(id)
		}
	}
	for path, s := range w.sessions {
		if found[path] == "" && s.socket != "" {
			s.socket = ""
			s.tell("")
		}
	}
}

// sockets returns the sockets in dir and an identity of each, which changes
// when another socket takes its place.
func sockets(dir string) (map[string]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") || e.Type()&fs.ModeSocket == 0 {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out[filepath.Join(dir, e.Name())] = fmt.Sprintf("%v %v", inode(info), info.ModTime().UnixNano())
	}
	return out, nil
}

// Claimed says whether there is a socket that speaks for the driver.
func (w *Watcher) Claimed(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, ok := w.owners[name]
	return ok
}

// claim makes the socket the only one that speaks for the driver.
func (w *Watcher) claim(name, path string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if owner, taken := w.owners[name]; taken && owner != path {
		return fmt.Errorf("driver %s is registered by %s already", name, owner)
	}
	w.owners[name] = path
	return nil
}

func (w *Watcher) release(name, path string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.owners[name] == path {
		delete(w.owners, name)
	}
}

func (w *Watcher) turnsOf(name string) *csi.VolumeLocks {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.turns[name]
	if t == nil {
		t = csi.NewVolumeLocks()
		w.turns[name] = t
	}
	return t
}
