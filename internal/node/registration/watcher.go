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
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"

	"volplane.dev/volplane/internal/csi"
)

// rescan is the pause between two scans without a notice.
const rescan = 30 * time.Second

// Registrar writes drivers to the Node's objects. Both methods may be repeated.
type Registrar interface {
	// Register writes the driver's entries and replaces earlier ones.
	Register(ctx context.Context, name string, info csi.NodeInfo) error
	// Unregister removes the driver's entries.
	Unregister(ctx context.Context, name string) error
}

// Watcher registers the drivers whose sockets are in Dir.
type Watcher struct {
	Dir       string
	Registrar Registrar
	Drivers   *csi.Set
	// Memory keeps the secrets that drivers have received, across their registrations.
	Memory *csi.Memory
	// Hold fails while nothing may be deleted or unmounted.
	Hold func(ctx context.Context) error
	// Dial are more options of the connections to drivers.
	Dial []csi.Option
	Log  *slog.Logger
	// Refused receives the error for which the driver at a socket is not registered, with the driver's name as far as it
	// is known; or nil when the driver is no longer refused.
	Refused func(ctx context.Context, socket, driver string, err error)
	// Turned is called in each round of the loop.
	Turned func()
	// RetryMin and RetryMax bound the back-off; the defaults are 500 ms and 2 minutes.
	RetryMin, RetryMax time.Duration

	mu sync.Mutex
	// sessions are the sessions by socket.
	sessions map[string]*session
	// owners maps the names of drivers to their registration sockets.
	owners map[string]string
	// locks are the volume locks of each driver. They outlive a registration: the next process of a
	// driver must not be called for a volume before the call of its last process has ended.
	locks map[string]*csi.VolumeLocks
}

// Run registers drivers until ctx ends. They stay registered, because they work without the agent.
func (w *Watcher) Run(ctx context.Context) error {
	if err := os.MkdirAll(w.Dir, 0o700); err != nil {
		return fmt.Errorf("create directory of registration sockets: %w", err)
	}
	events, errs, stop := w.notices()
	defer stop()
	tick := time.NewTicker(rescan)
	defer tick.Stop()
	var running sync.WaitGroup
	defer running.Wait()
	for {
		w.Turned()
		w.scan(ctx, &running)
		select {
		case <-ctx.Done():
			return nil
		case <-events:
		case err := <-errs:
			// After an overflow, the next scan finds all changes.
			w.Log.Warn("notice of a registration socket may be lost", "err", err)
		case <-tick.C:
		}
	}
}

// notices watches the directory. If inotify is exhausted, the periodic scan must suffice (kubernetes 74669).
func (w *Watcher) notices() (<-chan fsnotify.Event, <-chan error, func()) {
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

// RegisterAll registers all drivers again, because the Node's objects were replaced.
func (w *Watcher) RegisterAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.sessions {
		if s.socket != "" {
			s.notify(s.socket)
		}
	}
}

// scan notifies the sessions whose socket has appeared, changed or disappeared.
func (w *Watcher) scan(ctx context.Context, running *sync.WaitGroup) {
	present, err := sockets(w.Dir)
	if err != nil {
		w.Log.Warn("registration sockets cannot be listed", "err", err)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sessions == nil {
		w.sessions, w.owners, w.locks = map[string]*session{}, map[string]string{}, map[string]*csi.VolumeLocks{}
	}
	for path, id := range present {
		s := w.sessions[path]
		if s == nil {
			s = &session{w: w, path: path, inbox: make(chan string, 1), log: w.Log.With("socket", path)}
			w.sessions[path] = s
			running.Go(func() { s.run(ctx) })
		}
		if s.socket != id {
			s.socket = id
			s.notify(id)
		}
	}
	for path, s := range w.sessions {
		if present[path] == "" && s.socket != "" {
			s.socket = ""
			s.notify("")
		}
	}
}

// sockets returns the identities of the sockets in dir, by path. An identity changes when the socket is replaced.
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

// Claimed says whether a socket has claimed a driver's name.
func (w *Watcher) Claimed(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, ok := w.owners[name]
	return ok
}

// claim reserves a driver's name for a socket.
func (w *Watcher) claim(name, path string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if owner, taken := w.owners[name]; taken && owner != path {
		return fmt.Errorf("driver %s is already registered by %s", name, owner)
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

func (w *Watcher) locksOf(name string) *csi.VolumeLocks {
	w.mu.Lock()
	defer w.mu.Unlock()
	t := w.locks[name]
	if t == nil {
		t = csi.NewVolumeLocks()
		w.locks[name] = t
	}
	return t
}

func inode(info fs.FileInfo) uint64 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return s.Ino
	}
	return 0
}
