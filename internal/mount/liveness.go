package mount

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// probeLimit is how long a filesystem may take to answer.
const probeLimit = time.Second

// Liveness detects filesystems whose server has ended. The zero value is ready for use. It is safe
// for concurrent use.
type Liveness struct {
	mu sync.Mutex
	// pending holds, by path, the queries that the kernel has not answered yet.
	pending map[string]chan queryResult
}

// queryResult is the result of a query.
type queryResult struct {
	usage Usage
	err   error
}

// ErrNoAnswer says that a filesystem has not responded in time.
var ErrNoAnswer = errors.New("the filesystem does not answer")

// Dead says whether the filesystem at a path will never answer again, because its server has ended
// or forgotten it. A filesystem that does not answer in time does not count as dead. A query cannot
// be cancelled, so there is at most one for each path, and only its first caller waits for it.
func (l *Liveness) Dead(ctx context.Context, path string) bool {
	_, err := l.Usage(ctx, path)
	return errors.Is(err, unix.ENOTCONN) || errors.Is(err, unix.ESTALE)
}

// Usage is Stat with a time limit: the error is ErrNoAnswer if the filesystem does not answer in
// time.
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

// ask returns the channel that will receive the answer for a path, and whether this call has
// started the query.
func (l *Liveness) ask(path string) (said <-chan queryResult, first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if open, ok := l.pending[path]; ok {
		return open, false
	}
	if l.pending == nil {
		l.pending = map[string]chan queryResult{}
	}
	reply := make(chan queryResult, 1)
	l.pending[path] = reply
	go func() {
		usage, err := Stat(path)
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.pending, path)
		reply <- queryResult{usage, err}
	}()
	return reply, true
}
