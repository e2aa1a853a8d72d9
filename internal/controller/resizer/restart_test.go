package resizer

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/runtime"

	"volplane.dev/volplane/internal/csi/csitest"
)

var errKilled = errors.New("the process has ended")

// life is a world whose resizer is killed at one of its steps, which are writes and
// calls of the driver; done says whether that one is done.
type life struct {
	*world
	at    int
	done  bool
	n     int
	dead  bool
	steps []string
}

func newLife(t *testing.T, at int, done bool, objects ...runtime.Object) *life {
	l := &life{at: at, done: done}
	l.world = newWorld(t, func() csitest.Action {
		if _, err := l.step("grow"); err != nil {
			return csitest.Action{Err: status.Error(codes.Unavailable, "killed")}
		}
		return grown(2*gib, true)()
	}, objects...)
	l.client.Fate = func(_ int, write string) (bool, error) { return l.step(write[:strings.LastIndex(write, " ")]) }
	return l
}

// step says whether something is done, and what is answered, which may be the last.
func (l *life) step(what string) (done bool, err error) {
	if l.dead {
		return false, errKilled
	}
	if l.n++; l.n == l.at {
		l.dead, err = true, errKilled
	}
	if done = err == nil || l.done; done {
		l.steps = append(l.steps, what)
	}
	return done, err
}

// TestKilledBetweenAnyTwoSteps: whenever a resizer is killed, before or after a
// write or a call, the next one ends where this one would have ended; only a call
// whose outcome was not written down is made again, for the same size.
func TestKilledBetweenAnyTwoSteps(t *testing.T) {
	want := []string{
		"update persistentvolumeclaims/status", "grow", "update persistentvolumes", "update persistentvolumeclaims/status",
	}
	for at := range len(want) + 1 {
		for _, done := range []bool{false, true} {
			t.Run(fmt.Sprint(at, done), func(t *testing.T) {
				claim, pv := bound()
				l := newLife(t, at, done, claim, pv, secret())
				for range 3 {
					if _, err := l.reconcile(); err != nil && !l.dead {
						t.Fatal(err)
					}
					l.dead = false
					l.start()
				}
				l.are(handed(begun(claim)), larger(pv))
				if diff := cmp.Diff(again(want, at, done), l.steps); diff != "" {
					t.Errorf("steps (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// again are the steps of a life that was killed at one of them. The driver's answer
// is known when the volume's object has its size.
func again(steps []string, at int, done bool) []string {
	switch {
	case at == 2 && done, at == 3 && !done:
		return slices.Insert(slices.Clone(steps), 2, "grow")
	}
	return steps
}
