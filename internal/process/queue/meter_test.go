package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// notes is a meter that records what is reported to it.
type notes struct {
	mu  sync.Mutex
	all []string
}

func (n *notes) add(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = append(n.all, fmt.Sprintf(format, args...))
}

func (n *notes) Added()                     { n.add("added") }
func (n *notes) Begun(waited time.Duration) { n.add("begun after %v", waited) }
func (n *notes) Ended(k string, took time.Duration, err error) {
	n.add("%s ended after %v: %v", k, took, err)
}

// TestMeter: each key is reported to a meter once, including those that were queued before Measure; a key that is
// added while it is processed waits again.
func TestMeter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m notes
		fails := errors.New("fails")
		q := New(Options[string]{
			Process: func(context.Context, string) (Result, error) {
				<-time.After(3 * time.Second)
				err := fails
				fails = nil
				return Result{}, err
			},
			Retry: Backoff{Min: time.Second, Max: time.Second},
		})
		q.Add("k")
		q.Measure(&m)
		q.Add("k")
		<-time.After(2 * time.Second)
		if got := q.Load(); got != (Load{Depth: 1}) {
			t.Errorf("before Run %+v", got)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			q.Run(ctx)
		}()
		<-time.After(time.Second)
		q.Add("k")
		q.Add("other")
		<-time.After(time.Second)
		if got := q.Load(); got != (Load{Depth: 2, Unfinished: 2 * time.Second, Longest: 2 * time.Second}) {
			t.Errorf("while it is processed %+v", got)
		}
		<-time.After(time.Minute)
		if got := q.Load(); got != (Load{}) {
			t.Errorf("in the end %+v", got)
		}
		want := []string{
			"added", "begun after 2s", "added", "added", "k ended after 3s: fails", "begun after 2s",
			"other ended after 3s: <nil>", "begun after 5s", "k ended after 3s: <nil>",
		}
		if !slices.Equal(m.all, want) {
			t.Errorf("told %q", m.all)
		}
		stop()
		<-ended
	})
}
