package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"volplane.dev/volplane/internal/workshop/finding"
	"volplane.dev/volplane/internal/workshop/scratch"
)

// ofAllCalls judges what the witness has seen.
func (x *exam) ofAllCalls() {
	for _, c := range []struct {
		check, passed, next string
		otherwise           finding.Level
	}{
		{
			"secrets", "no secret is in an answer, in an error, or in what the driver prints",
			"quote nothing of the secrets, and no output of programs that are given them", finding.Fail,
		},
		{
			"limits", "all answers are within the limits of CSI",
			"keep ids within 128 bytes and contexts within 4 KiB: callers may cut off or refuse what is longer", finding.Warn,
		},
		{
			"messages", "all errors have a short message that can be printed",
			"say in a line what is wrong and what to do; leave the rest to the log", finding.Warn,
		},
	} {
		f := finding.Finding{Check: c.check, Level: finding.Pass, Message: c.passed}
		if problem := x.witness.complaint(c.check); problem != "" {
			f.Level, f.Message, f.Next = c.otherwise, problem, c.next
		}
		x.add(f)
	}
}

// undo takes back something that was made; last says that it is not tried again.
type undo func(ctx context.Context, last bool) error

// takeBack takes back all but the first things that were made, the latest first. It returns what did not succeed, which
// stays to be taken back.
func (x *exam) takeBack(ctx context.Context, but int, last bool) (problems []error) {
	made := slices.Clone(x.made[but:])
	x.made = x.made[:but]
	for _, back := range slices.Backward(made) {
		if err := back(ctx, last); err != nil {
			problems = append(problems, err)
			x.made = slices.Insert(x.made, but, back)
		}
	}
	return problems
}

// back brings the volume to its end, the last time by force.
func (v *vol) back(ctx context.Context, last bool) error {
	err := v.to(ctx, none)
	if err != nil && last && v.force(ctx) == nil {
		return nil
	}
	return err
}

// force makes all calls that take a volume back, whatever they answer, and returns the error of the last one.
func (v *vol) force(ctx context.Context) (err error) {
	for _, s := range []state{published, staged, attached, created} {
		err = downwards()[s].call(v, ctx)
	}
	return err
}

// leftovers says what is there that was not there before.
func (x *exam) leftovers(ctx context.Context, problems []error) {
	if x.mounts() {
		x.conclude(check{name: "leftover-mounts", next: "unmount all that was mounted for a volume"}, x.leftMounts())
	}
	if x.creates() {
		x.conclude(check{
			name: "leftover-volumes", next: "delete these volumes manually, and let the driver delete what it creates",
		}, x.leftVolumes(ctx, problems))
	}
}

func (x *exam) leftMounts() verdict {
	for _, dir := range []string{"pods", "plugins"} {
		left, err := scratch.Mounts(x.path(dir))
		if err != nil {
			return skipped(err)
		}
		if len(left) > 0 {
			return fail("something is still mounted at %s (and %d more)", left[0], len(left)-1)
		}
	}
	return pass("nothing is left mounted")
}

func (x *exam) leftVolumes(ctx context.Context, problems []error) verdict {
	if len(problems) > 0 {
		return fail("a volume cannot be taken back: %v (and %d more)", problems[0], len(problems)-1)
	}
	if !x.lists() {
		return pass("every volume was deleted")
	}
	left, err := x.added(ctx)
	switch {
	case err != nil:
		return skipped(err)
	case len(left) == 0:
		return pass("no volume is left")
	}
	text := fmt.Sprintf("%d volumes are there that were not there before: %.128q", len(left), left[0])
	if !x.node.startedByUs() {
		return warn("%s; were they created by others?", text)
	}
	return fail("%s", text)
}

// added returns the ids of the volumes that were not there before, in order.
func (x *exam) added(ctx context.Context) ([]string, error) {
	all, err := x.listed(ctx)
	for id := range x.before {
		delete(all, id)
	}
	return slices.Sorted(maps.Keys(all)), err
}

// strangers returns those of them that are not known to be ours.
func (x *exam) strangers(ctx context.Context) []string {
	if !x.lists() {
		return nil
	}
	ids, err := x.added(ctx)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(ids, func(id string) bool {
		return slices.ContainsFunc(x.volumes, func(v *vol) bool { return v.id() == id })
	})
}
