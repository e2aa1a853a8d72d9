package supervise

import (
	"context"
	"encoding/binary"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/process/lifecycle"
)

// watches waits for changes of files. All programs of a supervisor share it, because a host has few inotify instances,
// 128 for root by default.
type watches struct {
	// inotify is nil if the host has no instance left. Then a timer is used instead, so that those who wait check again.
	inotify *os.File
	reading sync.WaitGroup

	mu sync.Mutex
	// by has who waits for a file, by its watch descriptor.
	by map[int32]map[*watch]bool
}

// lookAgain is the interval at which files are checked that cannot be watched.
const lookAgain = 10 * time.Second

func newWatches() *watches {
	ws := &watches{by: map[int32]map[*watch]bool{}}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return ws
	}
	ws.inotify = os.NewFile(uintptr(fd), "inotify")
	ws.reading.Go(ws.read)
	return ws
}

func (ws *watches) close() {
	if ws.inotify != nil {
		_ = ws.inotify.Close() // it has nothing to lose
	}
	ws.reading.Wait()
}

// read wakes who waits for what has changed, until close.
func (ws *watches) read() {
	const room = 64 << 10
	buffer := make([]byte, room)
	for {
		n, err := ws.inotify.Read(buffer)
		if err != nil {
			return
		}
		for rest := buffer[:n]; len(rest) >= unix.SizeofInotifyEvent; {
			// An event is its descriptor, mask, cookie and length, and a name of this length.
			const mask, length = 4, 12
			order := binary.NativeEndian
			ws.wake(int32(order.Uint32(rest)), order.Uint32(rest[mask:]))
			rest = rest[unix.SizeofInotifyEvent+order.Uint32(rest[length:]):]
		}
	}
}

func (ws *watches) wake(descriptor int32, mask uint32) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	changed := []map[*watch]bool{ws.by[descriptor]}
	if mask&unix.IN_Q_OVERFLOW != 0 {
		changed = slices.Collect(maps.Values(ws.by)) // it is unknown which
	}
	for _, waiting := range changed {
		for w := range waiting {
			lifecycle.Wake(w.changed)
		}
	}
	if mask&unix.IN_IGNORED != 0 {
		delete(ws.by, descriptor) // the kernel has removed it, and does not use its number again soon
	}
}

// watch is one waiter.
type watch struct {
	of      *watches
	changed chan struct{}
	armed   []int32
}

func (ws *watches) watch() *watch { return &watch{of: ws, changed: make(chan struct{}, 1)} }

// set watches these files for events, as far as they exist, and no others. The caller checks the files afterwards, so
// no change is missed.
func (w *watch) set(events uint32, paths ...string) {
	w.close()
	if w.of.inotify == nil {
		return
	}
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	for _, path := range paths {
		// The mask is added to those of others who wait for the same file.
		d, err := unix.InotifyAddWatch(int(w.of.inotify.Fd()), path, events|unix.IN_MASK_ADD)
		if err != nil {
			continue
		}
		descriptor := int32(d)
		if w.of.by[descriptor] == nil {
			w.of.by[descriptor] = map[*watch]bool{}
		}
		w.of.by[descriptor][w] = true
		w.armed = append(w.armed, descriptor)
	}
}

// close ends the watch of all files.
func (w *watch) close() {
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	for _, descriptor := range w.armed {
		waiting := w.of.by[descriptor]
		delete(waiting, w)
		if waiting != nil && len(waiting) == 0 {
			delete(w.of.by, descriptor)
			_, _ = unix.InotifyRmWatch(int(w.of.inotify.Fd()), uint32(descriptor)) // it may be gone with its file
		}
	}
	w.armed = nil
}

// next returns after a change, or with the error of ctx.
func (w *watch) next(ctx context.Context) error {
	var again <-chan time.Time
	if len(w.armed) == 0 {
		timer := time.NewTimer(lookAgain)
		defer timer.Stop()
		again = timer.C
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-w.changed:
	case <-again:
	}
	return nil
}
