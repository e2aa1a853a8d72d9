package mount

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// probeLimit is how long a filesystem may take to say that it is there.
const probeLimit = time.Second

// Liveness finds out which filesystems are dead. The zero Liveness is ready, and it
// is safe for concurrent use.
type Liveness struct {
	mu sync.Mutex
	// asked are the paths of which the kernel has not given an answer yet.
	asked map[string]chan error
}

// Dead says whether the filesystem at a path will never answer again: its
// server is gone, or has forgotten it. One that does not answer in time is not
// dead. Nobody can take such a question back, so at most one is open for each
// path, and only who asks first waits for the answer.
func (l *Liveness) Dead(ctx context.Context, path string) bool {
	answer, first := l.ask(path)
	wait := time.Duration(0)
	if first {
		wait = probeLimit
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case err := <-answer:
		return errors.Is(err, unix.ENOTCONN) || errors.Is(err, unix.ESTALE)
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

// ask returns where the answer about a path will be, and whether nobody has
// asked before.
func (l *Liveness) ask(path string) (answer <-chan error, first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if open, ok := l.asked[path]; ok {
		return open, false
	}
	if l.asked == nil {
		l.asked = map[string]chan error{}
	}
	reply := make(chan error, 1)
	l.asked[path] = reply
	go func() {
		var st unix.Statfs_t
		err := unix.Statfs(path, &st)
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.asked, path)
		reply <- err
	}()
	return reply, true
}
