package crash

import (
	"context"
	"fmt"
	"testing"
	"time"

	"volplane.dev/volplane/internal/testkit/seeds"
)

// patience bounds a scenario on a busy machine. A scenario usually takes far less than a second.
const patience = 3 * time.Minute

// scenario is a sequence of actions that succeeds even if the control plane dies at any step.
type scenario struct {
	name string
	// prepare makes what the story needs, before the control plane runs.
	prepare func(ctx context.Context, w *survivors) error
	// play is what users and nodes do, and waits for what they wait for.
	play func(ctx context.Context, w *survivors) error
	// left is how many volume objects exist at the end, orphans how many volumes at the
	// driver have none; clean removes them.
	left, orphans int
	clean         func(ctx context.Context, w *survivors) error
}

// TestEveryStep plays each scenario with one death of the control plane: before and after each of its
// writes and calls; `make test` plays a random part of them.
func TestEveryStep(t *testing.T) {
	for _, s := range scenarios() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			w := newSurvivors(t)
			steps := s.once(t, w, newFuse(0, false))
			if len(steps) < 2 {
				t.Fatalf("%d steps: %v", len(steps), steps)
			}
			// A life has a repeated write more than another: the last step is
			// the one that no life comes to any more.
			lives, survived, at, part := 0, 0, 1, seeds.Part(t)
			for died := true; died; at++ {
				if !part(at) {
					continue
				}
				died = false
				for _, after := range []bool{false, true} {
					f := newFuse(at, after)
					s.once(t, w, f)
					lives++
					if f.isDead() {
						died = true
						survived++
					}
				}
				if at > 5*len(steps) {
					t.Fatalf("lives of more than %d steps, the first had %d", at, len(steps))
				}
			}
			t.Logf("played %d deaths in %d steps, SEED=%d: %v", survived, len(steps), seeds.First(t), steps)
			if w.cutShort > max(3, lives/2) {
				t.Errorf("%d of %d lives that were to stop in good order have left intents", w.cutShort, lives)
			}
			for _, o := range w.driver.Overlaps() {
				t.Error(o)
			}
		})
	}
}

// once plays the scenario with one death, and returns the steps of the control plane until then.
func (s scenario) once(t *testing.T, w *survivors, f *fuse) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	must := func(doing string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("death at step %d, after it: %v: %s: %v\nsteps: %v", f.at, f.after, doing, err, f.steps())
		}
	}
	if s.prepare != nil {
		must("prepare", s.prepare(ctx, w))
	}
	stop, err := w.run(f)
	must("start", err)
	alive := true
	defer func() {
		if alive {
			_ = stop() // the test has failed
		}
	}()
	played := make(chan error, 1)
	go func() { played <- s.end(ctx, w) }()
	again := func() {
		t.Helper()
		must("stop", stop())
		stop, err = w.run(newFuse(0, false))
		must("start again", err)
	}
	var steps []string
	select {
	case err = <-played:
		must("play", err)
		steps = f.steps()
		if f.disarm(); !f.isDead() {
			break
		}
		// It died when all was done already.
		<-f.blown
		again()
		must("resolve intents", noIntents(ctx, w))
	case <-f.blown:
		again()
		must("play", <-played)
		must("resolve intents", noIntents(ctx, w))
		steps = f.steps()
	}
	if s.clean != nil {
		must("clean", s.clean(ctx, w))
		must("clean", w.settled(ctx, 0, 0))
	}
	alive = false
	must("stop", stop())
	// A graceful stop leaves none, unless it comes before the process has observed all that
	// is visible from outside: the next one resolves that.
	left, err := intents(ctx, w)
	must("look for intents", err)
	if left != "" {
		w.cutShort++
		stop, err = w.run(newFuse(0, false))
		must("start again", err)
		alive = true
		must("resolve intents", noIntents(ctx, w))
		alive = false
		must("stop", stop())
	}
	select {
	case fault := <-w.faults:
		must("watch the driver", fmt.Errorf("%s", fault))
	default:
	}
	return steps
}

// end plays the scenario and waits until everything is at rest.
func (s scenario) end(ctx context.Context, w *survivors) error {
	if err := s.play(ctx, w); err != nil {
		return err
	}
	return w.settled(ctx, s.left, s.left+s.orphans)
}
