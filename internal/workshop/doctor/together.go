package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"

	"volplane.dev/volplane/internal/csi"
)

func togetherChecks() []check {
	return []check{
		{
			"same-at-once", (*exam).mounts, own((*exam).checkSameAtOnce, none),
			"lock each volume while a call for it runs; answer ABORTED to the second call, or let it wait",
		},
		{
			"ten-at-once", (*exam).mounts, (*exam).checkTenAtOnce,
			"let calls for different volumes run at the same time, and share nothing between them",
		},
	}
}

// atOnce runs functions at the same time and returns their errors.
func atOnce(all ...func() error) []error {
	errs := make([]error, len(all))
	var group sync.WaitGroup
	for i, f := range all {
		group.Go(func() { errs[i] = f() })
	}
	group.Wait()
	return errs
}

// checkSameAtOnce makes the same calls twice at the same time: CreateVolume, NodeStageVolume and NodePublishVolume.
func (x *exam) checkSameAtOnce(ctx context.Context, v *vol) verdict {
	if problem := x.createTwice(ctx, v); problem != "" {
		return fail("%s", problem)
	}
	if err := v.to(ctx, attached); err != nil {
		return skipped(err)
	}
	problem := x.useTwice(ctx, v)
	if err := v.to(ctx, none); err != nil && problem == "" {
		return fail("after calls at the same time: %v", err)
	}
	return unless(problem, "of two calls at the same time both succeed, or one is ABORTED")
}

func (x *exam) createTwice(ctx context.Context, v *vol) string {
	before := x.strangers(ctx)
	made := make([]*csipb.Volume, 2)
	errs := atOnce(func() error {
		r, err := do(ctx, x, x.control().CreateVolume, v.createRequest())
		made[0] = r.GetVolume()
		return err
	}, func() error {
		r, err := do(ctx, x, x.control2().CreateVolume, v.createRequest())
		made[1] = r.GetVolume()
		return err
	})
	if problem := failed("CreateVolume", errs); problem != "" {
		return problem
	}
	if err := x.until(ctx, v.create); err != nil {
		return failure{"CreateVolume after two at the same time", err}.Error()
	}
	for i, m := range made {
		if errs[i] == nil && m.GetVolumeId() != v.id() {
			x.adopt(m)
			return fmt.Sprintf("one name, created twice at the same time, is two volumes: %.128q and %.128q", m.GetVolumeId(),
				v.id())
		}
	}
	if after := x.strangers(ctx); len(after) > len(before) {
		return "one name, created twice at the same time, leaves a second volume"
	}
	return ""
}

// failed returns the first error that is not about another call in flight.
func failed(call string, errs []error) string {
	for _, err := range errs {
		if err != nil && !busy(err) {
			return fmt.Sprintf("%s, twice at the same time: %s", call, csi.Describe(err))
		}
	}
	return ""
}

func (x *exam) useTwice(ctx context.Context, v *vol) string {
	if err := v.makePaths(); err != nil {
		return err.Error()
	}
	if x.node.d.Node.StageUnstage {
		errs := atOnce(func() error { return v.stage(ctx) }, func() error {
			_, err := do(ctx, x, x.serve2().NodeStageVolume, v.stageRequest())
			return err
		})
		if problem := failed("NodeStageVolume", errs); problem != "" {
			return problem
		}
	}
	if err := v.to(ctx, staged); err != nil {
		return err.Error()
	}
	errs := atOnce(func() error { return v.publish(ctx) }, func() error {
		_, err := do(ctx, x, x.serve2().NodePublishVolume, v.publishRequest(v.targets[0]))
		return err
	})
	if problem := failed("NodePublishVolume", errs); problem != "" {
		return problem
	}
	if err := x.until(ctx, v.publish); err != nil {
		return failure{"NodePublishVolume after two at the same time", err}.Error()
	}
	if n := mounts(v.targets[0]); n != 1 {
		return fmt.Sprintf("published twice at the same time, there are %d mounts at the target_path", n)
	}
	if n := mounts(v.staging()); n > 1 {
		return fmt.Sprintf("staged twice at the same time, there are %d mounts at the staging_target_path", n)
	}
	return ""
}

// adopt notes a volume that nobody wanted, so that it is deleted after the check, unless it is one that is wanted.
func (x *exam) adopt(made *csipb.Volume) {
	if slices.ContainsFunc(x.volumes, func(v *vol) bool { return v.tried > none && v.id() == made.GetVolumeId() }) {
		return
	}
	v := x.volume()
	v.made, v.state, v.tried = made, created, created
}

const many = 10

// checkTenAtOnce makes and uses ten volumes at the same time.
func (x *exam) checkTenAtOnce(ctx context.Context) verdict {
	var all []*vol
	for range many {
		all = append(all, x.volume())
	}
	each := func(f func(v *vol) error) error {
		var calls []func() error
		for _, v := range all {
			calls = append(calls, func() error { return f(v) })
		}
		return errors.Join(atOnce(calls...)...)
	}
	err := each(func(v *vol) error {
		if err := v.to(ctx, published); err != nil {
			return err
		}
		return v.write(v.targets[0], v.name)
	})
	if err == nil {
		err = each(func(v *vol) error { return v.holds(v.targets[0], v.name) })
	}
	ids := map[string]bool{}
	for _, v := range all {
		ids[v.id()] = true
	}
	if undone := each(func(v *vol) error { return v.to(ctx, none) }); err == nil {
		err = undone
	}
	switch {
	case err != nil:
		return fail("of %d volumes at the same time, one does not work: %v", many, err)
	case len(ids) < many:
		return fail("%d names, created at the same time, are %d volumes", many, len(ids))
	}
	return pass("%d volumes are created, used and deleted at the same time", many)
}
