package doctor

import (
	"context"
	"fmt"
	"slices"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/finding"
	"volplane.dev/volplane/internal/scratch"
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

// takeBack brings every volume to its end, and deletes the snapshots and their groups. It returns what did not succeed.
func (x *exam) takeBack(ctx context.Context) []string {
	var problems []string
	for _, v := range slices.Backward(x.volumes) {
		if v.tried == none {
			continue
		}
		if err := v.to(ctx, none); err != nil && v.force(ctx) != nil {
			problems = append(problems, err.Error())
		}
	}
	for _, id := range x.snapshots {
		if err := x.removeSnapshot(ctx, id); err != nil {
			problems = append(problems, "DeleteSnapshot: "+csi.Describe(err))
		}
	}
	for _, id := range x.groups {
		if err := x.removeGroup(ctx, id); err != nil {
			problems = append(problems, "DeleteVolumeGroupSnapshot: "+csi.Describe(err))
		}
	}
	return problems
}

// force makes all calls that take a volume back, whatever they answer, and returns the error of the last one.
func (v *vol) force(ctx context.Context) (err error) {
	for _, s := range []state{published, staged, attached, created} {
		err = downwards()[s].call(v, ctx)
	}
	return err
}

// leftovers says what is there that was not there before.
func (x *exam) leftovers(ctx context.Context, problems []string) {
	if x.mounts() {
		x.conclude(check{name: "leftover-mounts", next: "unmount all that was mounted for a volume"}, x.leftMounts())
	}
	if x.creates() {
		x.conclude(check{
			name: "leftover-volumes", next: "delete these volumes by hand, and let the driver delete what it makes",
		}, x.leftVolumes(ctx, problems))
	}
}

func (x *exam) leftMounts() verdict {
	for _, dir := range []string{"pods", "plugins"} {
		left, err := scratch.Mounts(x.path(dir))
		if err != nil {
			return unable(err)
		}
		if len(left) > 0 {
			return wrong("something is still mounted at %s (and %d more)", left[0], len(left)-1)
		}
	}
	return well("nothing is left mounted")
}

func (x *exam) leftVolumes(ctx context.Context, problems []string) verdict {
	if len(problems) > 0 {
		return wrong("a volume cannot be taken back: %s (and %d more)", problems[0], len(problems)-1)
	}
	if !x.lists() {
		return well("every volume was deleted")
	}
	all, err := x.listed(ctx)
	if err != nil {
		return unable(err)
	}
	var left []string
	for id := range all {
		if !x.before[id] {
			left = append(left, fmt.Sprintf("%.128q", id))
		}
	}
	slices.Sort(left)
	switch {
	case len(left) == 0:
		return well("no volume is left")
	case !x.node.ours():
		return doubtful("%d volumes are there that were not there before: %s; were they made by others?", len(left), left[0])
	}
	return wrong("%d volumes are there that were not there before: %s", len(left), left[0])
}
