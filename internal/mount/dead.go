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
	asked map[string]chan answer
}

// answer is what the kernel says of a filesystem.
type answer struct {
	usage Usage
	err   error
}

// ErrNoAnswer says that a filesystem has not answered in time.
var ErrNoAnswer = errors.New("the filesystem does not answer")

// Dead says whether the filesystem at a path will never answer again: its
// server is gone, or has forgotten it. One that does not answer in time is not
// dead. Nobody can take such a question back, so at most one is open for each
// path, and only who asks first waits for the answer.
func (l *Liveness) Dead(ctx context.Context, path string) bool {
	_, err := l.Usage(ctx, path)
	return errors.Is(err, unix.ENOTCONN) || errors.Is(err, unix.ESTALE)
}

// Usage is Stat with the same patience: ErrNoAnswer when there is none in time.
func (l *Liveness) Usage(ctx context.Context, path string) (Usage, error) {
	reply, first := l.ask(path)
	wait := time.Duration(0)
	if first {
		wait = probeLimit
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case said := <-reply:
		return said.usage, said.err
	case <-timer.C:
	case <-ctx.Done():
	}
	return Usage{}, ErrNoAnswer
}

// ask returns where the answer about a path will be, and whether nobody has
// asked before.
func (l *Liveness) ask(path string) (said <-chan answer, first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if open, ok := l.asked[path]; ok {
		return open, false
	}
	if l.asked == nil {
		l.asked = map[string]chan answer{}
	}
	reply := make(chan answer, 1)
	l.asked[path] = reply
	go func() {
		usage, err := Stat(path)
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.asked, path)
		reply <- answer{usage, err}
	}()
	return reply, true
}
