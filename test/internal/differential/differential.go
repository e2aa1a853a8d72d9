package differential

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/testkit/seeds"
	"volplane.dev/volplane/test/internal/upstream"
)

const (
	// Batch is the number of sequences that are played at the same time: those whose seeds give the same quotient.
	Batch = 250
	// Length is how much users do in a sequence.
	Length = 10
	// patience is how long the sides may differ before that is a difference, on
	// a busy machine.
	patience = time.Minute
	// batchLimit is how long one batch may take.
	batchLimit = 40 * time.Minute
	// shrinking is the time limit for shortening a sequence that makes a difference.
	shrinking = 2 * time.Minute
)

// CompareAll plays sequences and reports those after which the sides differ.
func CompareAll(t *testing.T, d *Differential) {
	t.Helper()
	first := seeds.First(t)
	CompareFrom(t, d, first, first+uint64(seeds.Count(t, d.Few)))
}

// CompareFrom plays the sequences from first to before last, and reports those after which the sides differ.
func CompareFrom(t *testing.T, d *Differential, first, last uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+(last-first)/Batch)*batchLimit)
	defer cancel()
	for from := first; from < last; from = (from/Batch + 1) * Batch {
		var all []Sequence
		for seed := from; seed < min((from/Batch+1)*Batch, last); seed++ {
			all = append(all, d.Draw(seed, Length).restarted())
		}
		found, err := d.play(ctx, all)
		if err != nil {
			t.Fatal(err)
		}
		for i, s := range all {
			if found[i] == "" {
				continue
			}
			t.Logf("seed %d makes a difference, and is made shorter:\n%s%s", s.Seed, found[i], s)
			s, difference, err := d.shrink(ctx, s, found[i])
			if err != nil {
				t.Fatal(err)
			}
			t.Errorf("seed %d, volplane and Kubernetes differ:\n%s  after\n%s", s.Seed, difference, s)
		}
	}
	t.Logf("played %d sequences, seeds %d to %d; volplane met %d conflicts; %d restarts took %v; differences that are "+
		"allowed:%s", last-first, first, last-1, d.Sides[0].Conflicts.Load(), d.restarts,
		d.restarting.Round(time.Second), d.table())
	for _, s := range d.Sides {
		if s.Storage.Driver != nil {
			t.Logf("%s called %v", s.Name, s.Storage.calls())
		}
	}
}

// table returns how often each difference was allowed.
func (d *Differential) table() string {
	var b strings.Builder
	for _, reason := range slices.Sorted(maps.Keys(d.Counted)) {
		fmt.Fprintf(&b, "\n%6d  %s", d.Counted[reason], reason)
	}
	return b.String()
}

// Differential plays sequences at two sides, and compares the results.
type Differential struct {
	Sides []Side
	// Few is how many sequences `make test` plays.
	Few int
	// Patience is how long the sides may differ, if it is not the constant.
	Patience time.Duration
	// Draw draws a sequence from a seed.
	Draw func(seed uint64, length int) Sequence
	// Allowed returns the reason why two states may differ, or ""; counted counts the reasons.
	Allowed func(ours, theirs []string) string
	// Beyond, if set, returns what is wrong in lines that are not compared, one line each.
	Beyond  func(ours, theirs []string) string
	Counted map[string]int
	// games numbers the namespaces, touches the edits, and wakes the markers that show that the controllers have seen
	// everything.
	games, touches, wakes int
	// restarts counts those of the controllers, which took so long.
	restarts   int
	restarting time.Duration
}

// play plays sequences at both sides, an op of each at a time, and returns the first difference of each, or "". A
// sequence ends where the sides differ.
func (d *Differential) play(ctx context.Context, all []Sequence) ([]string, error) {
	d.games++
	spaces, longest := make([]string, len(all)), 0
	for i, s := range all {
		spaces[i], longest = fmt.Sprintf("g%d-s%d", d.games, i), max(longest, len(s.Ops))
	}
	out, ended := make([]string, len(all)), make([]bool, len(all))
	for step := -1; step < longest; step++ {
		if err := d.act(ctx, all, spaces, ended, step); err != nil {
			return nil, err
		}
		states, err := d.settle(ctx, spaces, ended)
		if err != nil {
			return nil, err
		}
		for i, space := range spaces {
			if ended[i] {
				continue
			}
			difference, reason := d.differ(states[0][space], states[1][space])
			if difference != "" {
				out[i] = fmt.Sprintf("%s  at step %d\n", difference, step+1)
			}
			if reason != "" {
				d.Counted[reason]++
			}
			ended[i] = difference != "" || reason != ""
		}
	}
	return out, d.cleanUp(ctx)
}

// differ returns the difference between the states of a sequence, or "" if they are equal or the difference is allowed
// for a reason.
func (d *Differential) differ(ours, theirs []string) (difference, reason string) {
	if difference = compare(compared(ours), compared(theirs)); difference != "" {
		if reason = d.Allowed(ours, theirs); reason != "" {
			return "", reason
		}
		return difference, ""
	}
	if d.Beyond != nil {
		difference = d.Beyond(ours, theirs)
	}
	return difference, ""
}

// settle returns the states at rest. Failed steps are repeated after growing pauses, and no controller watches
// everything that may end a failure; so where the sides differ, users edit their claims, and more time is allowed.
func (d *Differential) settle(ctx context.Context, spaces []string, ended []bool) ([]State, error) {
	if err := d.awake(ctx); err != nil {
		return nil, err
	}
	deadline := time.Now().Add(cmp.Or(d.Patience, patience))
	for {
		states, err := d.rest(ctx)
		if err != nil {
			return nil, err
		}
		var differ []string
		for i, space := range spaces {
			if difference, _ := d.differ(states[0][space], states[1][space]); !ended[i] && difference != "" {
				differ = append(differ, space)
			}
		}
		if len(differ) == 0 || time.Now().After(deadline) {
			return states, nil
		}
		if err := d.touch(ctx, differ); err != nil {
			return nil, err
		}
	}
}

func (d *Differential) touch(ctx context.Context, spaces []string) error {
	d.touches++
	d.Counted["one side was in a pause that an edit ended"] += len(spaces)
	var both errgroup.Group
	for _, s := range d.Sides {
		for _, space := range spaces {
			both.Go(func() error { return s.Topic.Touch(ctx, s, space, d.touches) })
		}
	}
	return both.Wait()
}

// rest returns the states of both sides at rest.
func (d *Differential) rest(ctx context.Context) ([]State, error) {
	states := make([]State, len(d.Sides))
	var both errgroup.Group
	for k, s := range d.Sides {
		both.Go(func() (err error) {
			if err = s.Rest(ctx); err != nil {
				return err
			}
			states[k], err = s.Topic.States(ctx, s)
			return err
		})
	}
	return states, both.Wait()
}

// awake waits until the controllers of both sides have seen all actions of users: a side without changes may be at
// rest, or may not have had the processor yet.
func (d *Differential) awake(ctx context.Context) error {
	d.wakes++
	return d.both(func(s Side) error { return s.Topic.Awake(ctx, s, fmt.Sprint("awake-", d.wakes)) })
}

// act plays one op of each sequence at both sides.
func (d *Differential) act(ctx context.Context, all []Sequence, spaces []string, ended []bool, step int) error {
	return d.around(ctx, restartAt(all, step), func() error {
		return d.both(func(s Side) error { return s.step(ctx, all, spaces, ended, step) })
	})
}

// both does something at both sides.
func (d *Differential) both(do func(Side) error) error {
	var both errgroup.Group
	for _, s := range d.Sides {
		both.Go(func() error { return do(s) })
	}
	return both.Wait()
}

// step plays one op of each sequence; -1 creates the namespaces.
func (s Side) step(ctx context.Context, all []Sequence, spaces []string, ended []bool, step int) error {
	var group errgroup.Group
	group.SetLimit(20)
	for i, q := range all {
		group.Go(func() error {
			if step < 0 {
				_, err := s.Client.CoreV1().Namespaces().Create(ctx,
					&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: spaces[i]}}, metav1.CreateOptions{})
				return err
			}
			if step >= len(q.Ops) || ended[i] {
				return nil
			}
			return upstream.Again(func() error { return q.Ops[step].Do(ctx, s, spaces[i]) })
		})
	}
	return group.Wait()
}

// Unanswered begins the line of a call that got no answer. Whether there was one
// when the controllers ended depends on their pauses.
const Unanswered = "kept back the answer to "

// Aside begins the lines that are not compared: facts that always differ, and those that change while a call is
// repeated.
const Aside = "aside: "

// compared returns the lines that must be the same.
func compared(lines []string) []string {
	return slices.DeleteFunc(slices.Clone(lines), func(l string) bool {
		return strings.HasPrefix(l, Unanswered) || strings.HasPrefix(l, Aside)
	})
}

// compare returns the lines that only one side has.
func compare(ours, theirs []string) string {
	var b strings.Builder
	for _, l := range ours {
		if !slices.Contains(theirs, l) {
			b.WriteString("  volplane    " + l + "\n")
		}
	}
	for _, l := range theirs {
		if !slices.Contains(ours, l) {
			b.WriteString("  kubernetes  " + l + "\n")
		}
	}
	return b.String()
}

// shrink removes the ops that a difference does not need, as far as time allows.
func (d *Differential) shrink(ctx context.Context, s Sequence, difference string) (Sequence, string, error) {
	defer func(before map[string]int) { d.Counted = before }(maps.Clone(d.Counted))
	giveUp := time.Now().Add(shrinking)
	for {
		found := false
		for _, alike := range restartedAlike(s.shorter()) {
			if time.Now().After(giveUp) {
				return s, difference, nil
			}
			differences, err := d.play(ctx, alike)
			if err != nil {
				return s, "", err
			}
			if i := slices.IndexFunc(differences, func(f string) bool { return f != "" }); i >= 0 {
				s, difference, found = alike[i], differences[i], true
				break
			}
		}
		if !found {
			return s, difference, nil
		}
	}
}

// shorter returns the sequences that lack some ops in a row, the shortest first.
func (s Sequence) shorter() []Sequence {
	var out []Sequence
	for n := (len(s.Ops) + 1) / 2; n > 0; n /= 2 {
		for i := 0; i+n <= len(s.Ops); i += n {
			out = append(out, Sequence{Seed: s.Seed, Ops: slices.Delete(slices.Clone(s.Ops), i, i+n)})
		}
	}
	return out
}

// cleanUp deletes everything, to make room for the next batch.
func (d *Differential) cleanUp(ctx context.Context) error {
	return d.both(func(s Side) error { return s.remove(ctx) })
}

func (s Side) remove(ctx context.Context) error {
	now, c := int64(0), s.Client
	s.Storage.heal("")
	spaces, err := c.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, space := range spaces.Items {
		if strings.HasPrefix(space.Name, "g") {
			if err := c.CoreV1().Pods(space.Name).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now},
				metav1.ListOptions{}); err != nil {
				return err
			}
			if err := c.CoreV1().PersistentVolumeClaims(space.Name).DeleteCollection(ctx, metav1.DeleteOptions{},
				metav1.ListOptions{}); err != nil {
				return err
			}
			if err := c.CoreV1().Namespaces().Delete(ctx, space.Name, metav1.DeleteOptions{}); err != nil &&
				!upstream.Refused(err) {
				return err
			}
		}
	}
	if err := s.Topic.Remove(ctx, s); err != nil {
		return err
	}
	if err := c.StorageV1().StorageClasses().DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{}); err != nil {
		return err
	}
	if err := c.StorageV1().VolumeAttributesClasses().DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{}); err != nil {
		return err
	}
	return c.CoreV1().PersistentVolumes().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
}
