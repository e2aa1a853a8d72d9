package kube

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"golang.org/x/sync/errgroup"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/testkit/seeds"
)

const (
	// batch is how many sequences are played at the same time, those whose seeds
	// it divides into the same number.
	batch = 250
	// length is how much users do in a sequence.
	length = 10
	// patience is how long the sides may differ before that is a difference, on
	// a busy machine.
	patience = time.Minute
	// batchLimit is how long one batch may take.
	batchLimit = 40 * time.Minute
	// shrinking is how long a sequence that makes a difference is made shorter.
	shrinking = 2 * time.Minute
)

// TestBinderIsKubernetes plays the same sequences to volplane's binder and protection and to those of
// Kubernetes, and compares all claims and volumes when both are at rest. The seed is the number of the
// sequence, so every run can repeat what an earlier one did.
func TestBinderIsKubernetes(t *testing.T) {
	t.Parallel()
	compareAll(t, bindingDifferential(t))
}

// TestBindingDiffersByDesign plays a sequence after which both sides differ for a reason: without one, the reason
// would be an excuse.
func TestBindingDiffersByDesign(t *testing.T) {
	t.Parallel()
	bindingDifferential(t).show(t, []design{{reasonTogether, draw(2026112800009, length).ops}}, []string{reasonTogether})
}

// bindingDifferential starts both sides.
func bindingDifferential(t *testing.T) *differential {
	t.Helper()
	ours, theirs := newSide(t, "volplane"), newSide(t, "kubernetes")
	ours.startController(func() func() { return ours.ours(t, csi.NewSet(), "binder", "protection") })
	theirs.startController(func() func() { return theirs.theirs(t, theirBinder...) })
	return &differential{
		sides: []side{ours, theirs}, few: 20, draw: draw, allowed: bindingMayDiffer, counted: map[string]int{},
	}
}

// compareAll plays sequences and reports those after which the sides differ.
func compareAll(t *testing.T, d *differential) {
	t.Helper()
	first := seeds.First(t)
	compareFrom(t, d, first, first+uint64(seeds.Count(t, d.few)))
}

// compareFrom plays the sequences from first to before last, and reports those after which the sides differ.
func compareFrom(t *testing.T, d *differential, first, last uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+(last-first)/batch)*batchLimit)
	defer cancel()
	for from := first; from < last; from = (from/batch + 1) * batch {
		var all []sequence
		for seed := from; seed < min((from/batch+1)*batch, last); seed++ {
			all = append(all, d.draw(seed, length).restarted())
		}
		found, err := d.play(ctx, all)
		if err != nil {
			t.Fatal(err)
		}
		for i, s := range all {
			if found[i] == "" {
				continue
			}
			t.Logf("seed %d makes a difference, and is made shorter:\n%s%s", s.seed, found[i], s)
			s, difference, err := d.shrink(ctx, s, found[i])
			if err != nil {
				t.Fatal(err)
			}
			t.Errorf("seed %d, volplane and Kubernetes differ:\n%s  after\n%s", s.seed, difference, s)
		}
	}
	t.Logf("played %d sequences, seeds %d to %d; volplane met %d conflicts; %d restarts took %v; differences that are "+
		"allowed:%s", last-first, first, last-1, d.sides[0].conflicts.Load(), d.restarts,
		d.restarting.Round(time.Second), d.table())
	for _, s := range d.sides {
		if s.storage.driver != nil {
			t.Logf("%s called %v", s.name, s.storage.calls())
		}
	}
}

// table returns how often each difference was allowed.
func (d *differential) table() string {
	var b strings.Builder
	for _, reason := range slices.Sorted(maps.Keys(d.counted)) {
		fmt.Fprintf(&b, "\n%6d  %s", d.counted[reason], reason)
	}
	return b.String()
}

type differential struct {
	sides []side
	// few is how many sequences `make test` plays.
	few int
	// patience is how long the sides may differ, if it is not the constant.
	patience time.Duration
	// draw draws a sequence from a seed.
	draw func(seed uint64, length int) sequence
	// allowed returns the reason why two states may differ, "" if there is
	// none; counted counts the reasons.
	allowed func(ours, theirs []string) string
	// beyond, if set, returns what is wrong in lines that are not compared, one line each.
	beyond  func(ours, theirs []string) string
	counted map[string]int
	// games numbers the namespaces, touches the edits, wakes what shows that the
	// controllers have seen everything.
	games, touches, wakes int
	// restarts counts those of the controllers, which took so long.
	restarts   int
	restarting time.Duration
}

// play plays sequences at both sides, an op of each at a time, and returns the
// first difference of each, "" for none. A sequence ends where the sides differ.
func (d *differential) play(ctx context.Context, all []sequence) ([]string, error) {
	d.games++
	spaces, longest := make([]string, len(all)), 0
	for i, s := range all {
		spaces[i], longest = fmt.Sprintf("g%d-s%d", d.games, i), max(longest, len(s.ops))
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
				d.counted[reason]++
			}
			ended[i] = difference != "" || reason != ""
		}
	}
	return out, d.cleanUp(ctx)
}

// differ returns the difference between the states of a sequence, "" if there is none or if it is allowed for a reason.
func (d *differential) differ(ours, theirs []string) (difference, reason string) {
	if difference = compare(compared(ours), compared(theirs)); difference != "" {
		if reason = d.allowed(ours, theirs); reason != "" {
			return "", reason
		}
		return difference, ""
	}
	if d.beyond != nil {
		difference = d.beyond(ours, theirs)
	}
	return difference, ""
}

// settle returns the states at rest. What failed is repeated after pauses that
// grow, and nobody watches all that may end a failure; where the sides differ,
// users therefore edit their claims, and get time.
func (d *differential) settle(ctx context.Context, spaces []string, ended []bool) ([]state, error) {
	if err := d.awake(ctx); err != nil {
		return nil, err
	}
	deadline := time.Now().Add(cmp.Or(d.patience, patience))
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

func (d *differential) touch(ctx context.Context, spaces []string) error {
	d.touches++
	d.counted["one side was in a pause that an edit ended"] += len(spaces)
	var both errgroup.Group
	for _, s := range d.sides {
		for _, space := range spaces {
			both.Go(func() error { return s.touch(ctx, space, d.touches) })
		}
	}
	return both.Wait()
}

// rest returns the states of both sides at rest.
func (d *differential) rest(ctx context.Context) ([]state, error) {
	states := make([]state, len(d.sides))
	var both errgroup.Group
	for k, s := range d.sides {
		both.Go(func() (err error) {
			if err = s.rest(ctx); err != nil {
				return err
			}
			states[k], err = s.states(ctx)
			return err
		})
	}
	return states, both.Wait()
}

// awake waits until the controllers of both sides have seen all that users did: a
// side where nothing changes may be at rest, or have had no processor to begin.
func (d *differential) awake(ctx context.Context) error {
	d.wakes++
	return d.both(func(s side) error { return s.awake(ctx, fmt.Sprint("awake-", d.wakes)) })
}

// act plays one op of each sequence at both sides.
func (d *differential) act(ctx context.Context, all []sequence, spaces []string, ended []bool, step int) error {
	return d.around(ctx, restartAt(all, step), func() error {
		return d.both(func(s side) error { return s.step(ctx, all, spaces, ended, step) })
	})
}

// both does something at both sides.
func (d *differential) both(do func(side) error) error {
	var both errgroup.Group
	for _, s := range d.sides {
		both.Go(func() error { return do(s) })
	}
	return both.Wait()
}

// bindingMayDiffer returns the reason why two states after binding may differ,
// "" if there is none.
func bindingMayDiffer(ours, theirs []string) string {
	switch {
	case slices.Equal(anonymous(unreserved(ours, theirs)), anonymous(unreserved(theirs, ours))),
		goesToAnother(ours, theirs):
		return "which of several claims that wait gets a volume is nobody's promise"
	case slices.Equal(kept(ours), kept(theirs)):
		return reasonTogether
	case len(ours) == len(theirs)+1 && has(ours, "volume", "Bound", "going=true") && has(theirs, "claim", "Lost"):
		return "when a user takes the claim from a volume that is being deleted, protection and binder race in Kubernetes, " +
			"and the claim may lose its volume; here it keeps it"
	}
	return ""
}

// reasonTogether is why a volume that Kubernetes releases, and whose data its provisioner deletes, stays as it is.
const reasonTogether = "a volume is neither released nor deleted while the claim that it names also names it, even " +
	"if the UID is another one"

// kept removes the phase of each volume that would be deleted once it is released, if the claim in its reference names
// the volume but has another UID.
func kept(lines []string) []string {
	strange := regexp.MustCompile(
		`^volume (\S+) (\S+) for (c[0-9]+) uid of gone .*"persistentVolumeReclaimPolicy":"Delete"`)
	var out []string
	for _, l := range lines {
		m := strange.FindStringSubmatch(l)
		if m != nil && has(lines, "claim "+m[3]+" ", "-"+m[1]+"\" capacity=") {
			l = strings.Replace(l, " "+m[2]+" for ", " for ", 1)
		}
		out = append(out, l)
	}
	return out
}

// unreserved takes away the binder's reservation of a volume for a claim that
// waits here and has got another volume at the other side, where the volume was
// free again from then on.
func unreserved(lines, other []string) []string {
	held := regexp.MustCompile(
		`^(volume \S+ Available for )(c[0-9]+) uid of (c[0-9]+) annotations=\[bound-by-controller=yes\]`)
	var out []string
	for _, l := range lines {
		m := held.FindStringSubmatch(l)
		if m != nil && m[2] == m[3] && has(lines, "claim "+m[2]+" Pending ") && has(other, "claim "+m[2]+" Bound ") {
			l = m[1] + "none annotations=[]" + l[len(m[0]):]
		}
		out = append(out, l)
	}
	return out
}

// has says whether a line has all words.
func has(lines []string, words ...string) bool {
	return slices.ContainsFunc(lines, func(l string) bool {
		return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(l, w) })
	})
}

// anonymous takes the names of claims out of the lines.
func anonymous(lines []string) []string {
	claim := regexp.MustCompile(`\bc[0-9]+\b`)
	var out []string
	for _, l := range lines {
		out = append(out, claim.ReplaceAllString(l, "c"))
	}
	slices.Sort(out)
	return out
}

// step plays one op of each sequence; -1 makes the namespaces.
func (s side) step(ctx context.Context, all []sequence, spaces []string, ended []bool, step int) error {
	var group errgroup.Group
	group.SetLimit(20)
	for i, q := range all {
		group.Go(func() error {
			if step < 0 {
				_, err := s.client.CoreV1().Namespaces().Create(ctx,
					&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: spaces[i]}}, metav1.CreateOptions{})
				return err
			}
			if step >= len(q.ops) || ended[i] {
				return nil
			}
			return again(func() error { return q.ops[step].do(ctx, s, spaces[i]) })
		})
	}
	return group.Wait()
}

// unanswered begins the line of a call that got no answer. Whether there was one
// when the controllers ended depends on their pauses.
const unanswered = "kept back the answer to "

// compared returns the lines that must be the same.
func compared(lines []string) []string {
	return slices.DeleteFunc(slices.Clone(lines), func(l string) bool {
		return strings.HasPrefix(l, unanswered) || strings.HasPrefix(l, unwantedMount) || strings.HasPrefix(l, leftBehind) ||
			strings.HasPrefix(l, aside)
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

// shrink leaves out what a difference does not need, as far as it finds out in
// time.
func (d *differential) shrink(ctx context.Context, s sequence, difference string) (sequence, string, error) {
	defer func(before map[string]int) { d.counted = before }(maps.Clone(d.counted))
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
func (s sequence) shorter() []sequence {
	var out []sequence
	for n := (len(s.ops) + 1) / 2; n > 0; n /= 2 {
		for i := 0; i+n <= len(s.ops); i += n {
			out = append(out, sequence{seed: s.seed, ops: slices.Delete(slices.Clone(s.ops), i, i+n)})
		}
	}
	return out
}

// cleanUp deletes everything, so that there is room for the next batch.
func (d *differential) cleanUp(ctx context.Context) error {
	return d.both(func(s side) error { return s.remove(ctx) })
}

func (s side) remove(ctx context.Context) error {
	now, c := int64(0), s.client
	s.storage.heal("")
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
			if err := c.CoreV1().Namespaces().Delete(ctx, space.Name, metav1.DeleteOptions{}); err != nil && !refused(err) {
				return err
			}
		}
	}
	if err := s.detachAll(ctx); err != nil {
		return err
	}
	if err := c.StorageV1().StorageClasses().DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{}); err != nil {
		return err
	}
	if err := s.removeSnapshots(ctx); err != nil {
		return err
	}
	if err := c.StorageV1().VolumeAttributesClasses().DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{}); err != nil {
		return err
	}
	return c.CoreV1().PersistentVolumes().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
}

// again repeats what fails because a controller was quicker; what is refused is
// refused at both sides.
func again(do func() error) error {
	if err := unmet(do); !refused(err) {
		return err
	}
	return nil
}

// unmet repeats what fails because a controller was quicker.
func unmet(do func() error) error {
	for {
		if err := do(); !conflict(err) {
			return err
		}
	}
}
