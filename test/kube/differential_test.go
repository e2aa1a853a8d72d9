package kube

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"golang.org/x/sync/errgroup"

	"volplane.dev/volplane/internal/csi"
)

const (
	// sequences is how many are played unless DIFFERENTIAL says another number,
	// batch how many of them at the same time.
	sequences = 100
	batch     = 250
	// length is how much users do in a sequence.
	length = 10
)

// TestBinderIsKubernetes plays the same sequences to volplane's binder and
// protection and to those of Kubernetes, and compares all claims and volumes
// when both are at rest. The seed is the number of the sequence, so that a run
// plays again what an earlier one did.
func TestBinderIsKubernetes(t *testing.T) {
	ours, theirs := newSide(t, "volplane"), newSide(t, "kubernetes")
	ours.ours(t, csi.NewSet(), "binder", "protection")
	theirs.theirs(t, "persistentvolume-binder-controller", "persistentvolume-protection-controller", "persistentvolumeclaim-protection-controller")
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	d := differential{sides: []side{ours, theirs}, allowed: map[string]int{}}
	first, last := seeds(t)
	for from := first; from < last; from += batch {
		var all []sequence
		for seed := from; seed < min(from+batch, last); seed++ {
			all = append(all, draw(seed, length))
		}
		found, err := d.play(ctx, all)
		if err != nil {
			t.Fatal(err)
		}
		for i, s := range all {
			if found[i] == "" {
				continue
			}
			s, difference, err := d.shrink(ctx, s, found[i])
			if err != nil {
				t.Fatal(err)
			}
			t.Errorf("seed %d, volplane and Kubernetes differ after\n%s%s", s.seed, s, difference)
		}
	}
	t.Logf("played %d sequences, seeds %d to %d; differences that are allowed: %v", last-first, first, last-1, d.allowed)
}

// seeds returns the range of DIFFERENTIAL, "N" or "FIRST-LAST".
func seeds(t *testing.T) (first, last uint64) {
	t.Helper()
	text := os.Getenv("DIFFERENTIAL")
	if text == "" {
		return 0, sequences
	}
	a, b, isRange := strings.Cut(text, "-")
	n, err := strconv.ParseUint(a, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	if !isRange {
		return 0, n
	}
	m, err := strconv.ParseUint(b, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n, m + 1
}

type differential struct {
	sides []side
	// games numbers the namespaces.
	games int
	// allowed counts the differences that are, by reason.
	allowed map[string]int
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
		states, err := d.step(ctx, all, spaces, ended, step)
		if err != nil {
			return nil, err
		}
		for i, space := range spaces {
			if ended[i] {
				continue
			}
			difference := compare(states[0][space], states[1][space])
			if ended[i] = difference != ""; !ended[i] {
				continue
			}
			if reason := allowed(states[0][space], states[1][space]); reason != "" {
				d.allowed[reason]++
				continue
			}
			out[i] = fmt.Sprintf("%s  at step %d\n", difference, step+1)
		}
	}
	return out, d.tidy(ctx)
}

// step plays one op at both sides and returns their states at rest.
func (d *differential) step(ctx context.Context, all []sequence, spaces []string, ended []bool, step int) ([]state, error) {
	states := make([]state, len(d.sides))
	var both errgroup.Group
	for k, s := range d.sides {
		both.Go(func() (err error) {
			if err = s.step(ctx, all, spaces, ended, step); err != nil {
				return err
			}
			if err = s.rest(ctx); err != nil {
				return err
			}
			states[k], err = s.states(ctx)
			return err
		})
	}
	return states, both.Wait()
}

// allowed returns the reason why two states may differ, "" if there is none.
func allowed(ours, theirs []string) string {
	has := func(lines []string, words ...string) bool {
		return slices.ContainsFunc(lines, func(l string) bool {
			return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(l, w) })
		})
	}
	switch {
	case slices.Equal(anonymous(ours), anonymous(theirs)):
		return "which of several claims that wait gets a volume is nobody's promise"
	case len(ours) == len(theirs)+1 && has(ours, "volume", "Bound", "going=true") && has(theirs, "claim", "Lost"):
		return "when a user takes the claim from a volume that is being deleted, protection and binder race in Kubernetes, and the claim may lose its volume; here it keeps it"
	}
	return ""
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
				_, err := s.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: spaces[i]}}, metav1.CreateOptions{})
				return err
			}
			if step >= len(q.ops) || ended[i] {
				return nil
			}
			return again(func() error { return q.ops[step].do(ctx, s.client, spaces[i]) })
		})
	}
	return group.Wait()
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

// shrink leaves out what a difference does not need.
func (d *differential) shrink(ctx context.Context, s sequence, difference string) (sequence, string, error) {
	for i := 0; i < len(s.ops); {
		fewer := sequence{seed: s.seed, ops: slices.Delete(slices.Clone(s.ops), i, i+1)}
		found, err := d.play(ctx, []sequence{fewer})
		if err != nil {
			return s, "", err
		}
		if found[0] == "" {
			i++
			continue
		}
		s, difference = fewer, found[0]
	}
	return s, difference, nil
}

// tidy removes everything, so that the next batch finds room.
func (d *differential) tidy(ctx context.Context) error {
	var both errgroup.Group
	for _, s := range d.sides {
		both.Go(func() error { return remove(ctx, s.client) })
	}
	return both.Wait()
}

func remove(ctx context.Context, c kubernetes.Interface) error {
	now := int64(0)
	spaces, err := c.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, s := range spaces.Items {
		if strings.HasPrefix(s.Name, "g") {
			if err := c.CoreV1().Pods(s.Name).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{}); err != nil {
				return err
			}
			if err := c.CoreV1().PersistentVolumeClaims(s.Name).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
				return err
			}
			if err := c.CoreV1().Namespaces().Delete(ctx, s.Name, metav1.DeleteOptions{}); err != nil && !refused(err) {
				return err
			}
		}
	}
	if err := c.StorageV1().StorageClasses().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return err
	}
	return c.CoreV1().PersistentVolumes().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
}

// again repeats what fails because a controller was quicker.
func again(do func() error) error {
	for {
		err := do()
		if err == nil || refused(err) {
			return nil
		}
		if !conflict(err) {
			return err
		}
	}
}
