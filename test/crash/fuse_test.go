package crash

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
)

var errDead = errors.New("the control plane is dead")

// fuse counts the effects of one life of the control plane and ends the life at one of them. After that
// nothing of this life has any effect.
type fuse struct {
	// at is the effect at which it ends, counted from 1; 0 means that it does not end. after
	// says that this effect still happens, although its answer is lost.
	at    int
	after bool
	// blown is closed at the end.
	blown chan struct{}

	mu    sync.Mutex
	names []string
	dead  bool
}

func newFuse(at int, after bool) *fuse {
	return &fuse{at: at, after: after, blown: make(chan struct{})}
}

// effect is called before each effect. An error says that the effect must not happen, and last that its
// answer is lost and no other effect follows.
func (f *fuse) effect(name string) (last bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dead {
		return false, errDead
	}
	f.names = append(f.names, name)
	if len(f.names) != f.at {
		return false, nil
	}
	f.dead = true
	if f.after {
		return true, nil
	}
	close(f.blown)
	return false, errDead
}

// steps returns the effects so far.
func (f *fuse) steps() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.names...)
}

// disarm lets a life that has not ended yet continue.
func (f *fuse) disarm() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at = 0
}

func (f *fuse) isDead() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.dead
}

// step causes an effect, unless the life has ended.
func (f *fuse) step(name string, happen func() error) error {
	last, err := f.effect(name)
	if err != nil {
		return err
	}
	err = happen()
	if last {
		// Done or refused: the answer is lost.
		close(f.blown)
		return errDead
	}
	return err
}

// api passes requests that write through the fuse. Events are not state, so they are no steps.
func (f *fuse) api(next http.RoundTripper) http.RoundTripper {
	return roundTrip(func(r *http.Request) (*http.Response, error) {
		if r.Method == http.MethodGet || strings.Contains(r.URL.Path, "/events") {
			if f.isDead() {
				return nil, errDead
			}
			return next.RoundTrip(r)
		}
		var answer *http.Response
		err := f.step(r.Method+" "+r.URL.Path, func() (err error) {
			answer, err = next.RoundTrip(r) //nolint:bodyclose // the caller does, or the lines below
			return err
		})
		if err != nil && answer != nil {
			_ = answer.Body.Close()
			answer = nil
		}
		return answer, err
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// driver passes calls through the fuse that change something at the driver.
func (f *fuse) driver(_ context.Context, _, method string, call func() error) error {
	switch name := method[strings.LastIndex(method, "/")+1:]; name {
	case "CreateVolume", "DeleteVolume", "ControllerPublishVolume", "ControllerUnpublishVolume", "ControllerExpandVolume":
		return f.step(name, call)
	}
	if f.isDead() {
		return errDead
	}
	return call()
}
