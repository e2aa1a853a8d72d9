package resizer

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/kube/kubetest"
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
		if l.step("grow", func() error { return nil }) != nil {
			return csitest.Action{Err: status.Error(codes.Unavailable, "killed")}
		}
		return grown(2*gib, true)()
	}, objects...)
	kubetest.Around(l.client,
		func(a clienttesting.Action, do func() (runtime.Object, error)) (o runtime.Object, err error) {
			if !kubetest.IsWrite(a) {
				return do()
			}
			return o, l.step(a.GetVerb()+" "+a.GetResource().Resource, func() error {
				o, err = do()
				return err
			})
		})
	return l
}

// step does something, or not, and may be the last.
func (l *life) step(what string, do func() error) error {
	if l.n++; l.dead || l.n == l.at && !l.done {
		l.dead = true
		return errKilled
	}
	l.steps = append(l.steps, what)
	err := do()
	if l.dead = l.n == l.at; l.dead {
		return errKilled
	}
	return err
}

// TestKilledBetweenAnyTwoSteps: whenever a resizer is killed, before or after a
// write or a call, the next one ends where this one would have ended; only a call
// whose outcome was not written down is made again, for the same size.
func TestKilledBetweenAnyTwoSteps(t *testing.T) {
	want := []string{"update persistentvolumeclaims", "grow", "update persistentvolumes", "update persistentvolumeclaims"}
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
