package differential

import (
	"context"
	"strings"
	"testing"
	"time"
)

// designLimit is how long all designs may take.
const designLimit = 10 * time.Minute

// Design is what shows one reason.
type Design struct {
	Reason string
	Ops    []Op
}

// Show plays the designs, and requires that each reason is shown by one.
func (d *Differential) Show(t *testing.T, designs []Design, reasons []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), designLimit)
	defer cancel()
	var all []Sequence
	for i, one := range designs {
		all = append(all, Sequence{Seed: uint64(i), Ops: one.Ops})
	}
	found, err := d.play(ctx, all)
	if err != nil {
		t.Fatal(err)
	}
	for i, difference := range found {
		if difference != "" {
			t.Errorf("%s\n%s%s", designs[i].Reason, all[i], difference)
		}
	}
	for _, reason := range reasons {
		shown := false
		for counted := range d.Counted {
			shown = shown || strings.Contains(counted, reason)
		}
		if !shown {
			t.Errorf("nothing shows that %s", reason)
		}
	}
	t.Logf("differences that are allowed:%s", d.table())
}

// StatesAfter plays one sequence, and returns the lines of both sides after it.
func (d *Differential) StatesAfter(t *testing.T, ops []Op) [][]string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), designLimit)
	defer cancel()
	const space = "g0-s0"
	spaces, ended, s := []string{space}, []bool{false}, Sequence{Ops: ops}
	var states []State
	for step := -1; step < len(s.Ops); step++ {
		err := d.act(ctx, []Sequence{s}, spaces, ended, step)
		if err == nil {
			states, err = d.settle(ctx, spaces, ended)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := d.cleanUp(ctx); err != nil {
		t.Fatal(err)
	}
	return [][]string{states[0][space], states[1][space]}
}
