package doctor

import (
	"context"
	"os"
	"path/filepath"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/mount"
)

func nodeChecks() []check {
	const look = "read the mount table first, and answer OK when it is mounted already"
	return []check{
		{
			"publish-unstaged", (*exam).stages, shared((*exam).checkUnstaged, attached),
			"answer FAILED_PRECONDITION to NodePublishVolume of what is not staged, and mount nothing",
		},
		{"stage", (*exam).stages, shared((*exam).checkStage, attached), "make the volume ready at the staging_target_path"},
		{
			"stage-again", (*exam).stages,
			shared(again("staged", "staging_target_path", (*vol).staging, (*vol).stage), staged), look,
		},
		{"publish", (*exam).mounts, shared((*exam).checkPublish, staged), "mount the volume at the target_path itself"},
		{
			"publish-again", (*exam).mounts,
			shared(again("published", "target_path", func(v *vol) string { return v.targets[0] }, (*vol).publish), published),
			look,
		},
		{
			"publish-conflict", (*exam).mounts, shared((*exam).checkPublishConflict, published),
			"answer ALREADY_EXISTS when the volume is at the target_path in another way",
		},
		{
			"fs-type", (*exam).mounts, (*exam).checkFSType,
			"make the filesystem that the capability names, or answer INVALID_ARGUMENT",
		},
		{
			"unpublish", (*exam).mounts, shared((*exam).checkUnpublish, published),
			"unmount the target_path and remove it; answer an error as long as that is not done",
		},
		{
			"unpublish-again", (*exam).mounts, shared((*exam).checkUnpublishAgain, published, staged),
			"answer OK when nothing is mounted any more",
		},
		{
			"unstage", (*exam).stages, shared((*exam).checkUnstage, staged),
			"unmount the staging_target_path; answer an error as long as that is not done",
		},
		{
			"unstage-again", (*exam).stages, shared((*exam).checkUnstageAgain, staged, attached),
			"answer OK when nothing is staged any more",
		},
	}
}

// checkUnstaged publishes a volume that is attached and not staged.
func (x *exam) checkUnstaged(ctx context.Context, v *vol) verdict {
	if err := mount.MakeBelow(x.dir.Root, v.staging()); err != nil {
		return skipped(err)
	}
	err := v.publishAt(ctx, v.targets[0])
	n := mounts(v.targets[0])
	if undone := x.retryWhileBusy(ctx, v.unpublish); undone != nil && n > 0 {
		return skipped(undone)
	}
	v.lower(attached)
	switch {
	case err == nil && n == 0:
		return fail("what is not staged is published: the answer is OK, and nothing is mounted")
	case err == nil:
		return fail("what is not staged is published: a program would write to a directory of the host")
	case n > 0:
		return fail("what is not staged is refused, and something is mounted at the target_path: %s", csi.Describe(err))
	}
	return pass("what is not staged is refused: %s", csi.Code(err))
}

func (x *exam) checkStage(ctx context.Context, v *vol) verdict {
	if err := v.to(ctx, staged); err != nil {
		return fail("%v", err)
	}
	if at, mounted := mountedAt(v.staging()); mounted {
		return pass("%s is mounted", at.Type)
	}
	return pass("it is staged, and nothing is mounted at the staging_target_path")
}

// again returns a check that repeats a call, after which there must be as many mounts at a place as before.
func again(done, place string, at func(*vol) string, call func(*vol, context.Context) error) verdictOf {
	return func(x *exam, ctx context.Context, v *vol) verdict {
		before := mounts(at(v))
		if err := x.retryWhileBusy(ctx, func(ctx context.Context) error { return call(v, ctx) }); err != nil {
			return fail("what is %s cannot be %s again: %s", done, done, csi.Describe(err))
		}
		if after := mounts(at(v)); after != before {
			return fail("%s again, there are %d mounts at the %s, not %d", done, after, place, before)
		}
		return pass("what is %s stays as it is", done)
	}
}

func (x *exam) checkPublish(ctx context.Context, v *vol) verdict {
	if err := v.to(ctx, published); err != nil {
		return fail("%v", err)
	}
	switch n := mounts(v.targets[0]); {
	case n == 0:
		return fail("the answer is OK, and nothing is mounted at the target_path")
	case n > 1:
		return fail("%d mounts lie on top of each other at the target_path", n)
	}
	if err := v.write(v.targets[0], "first"); err != nil {
		return fail("the volume cannot be written to: %v", err)
	}
	return pass("it is mounted, and can be written to")
}

// checkPublishConflict only warns when the driver answers OK and changes nothing.
func (x *exam) checkPublishConflict(ctx context.Context, v *vol) verdict {
	r := v.publishRequest(v.targets[0])
	r.Readonly = true
	_, err := do(ctx, x, x.serve().NodePublishVolume, r)
	if n := mounts(v.targets[0]); n != 1 {
		return fail("published with readonly where it is without, there are %d mounts", n)
	}
	if written := v.write(v.targets[0], "first"); written != nil {
		return fail("published with readonly where it is without, a user of it cannot write any more: %v", written)
	}
	problem := answered("NodePublishVolume with readonly where it is without", err, codes.AlreadyExists)
	if problem != "" {
		return warn("%s", problem)
	}
	return pass("what is published in another way is refused")
}

func (x *exam) checkFSType(ctx context.Context) verdict {
	v := x.shared
	asked := x.FSType
	if asked == "" {
		asked = "ext4"
		v = x.volume()
		v.capability = csi.Capability(v.capability.GetAccessMode().GetMode(), false, asked, nil)
	}
	err := v.to(ctx, published)
	if csi.Code(err) == codes.InvalidArgument && v != x.shared {
		return pass("%s is refused", asked)
	}
	if err != nil {
		return skipped(err)
	}
	at, mounted := mountedAt(v.targets[0])
	switch {
	case !mounted:
		return skipped(os.ErrNotExist)
	case at.Type != asked && x.FSType != "":
		return fail("%s was asked for, and %s is mounted", asked, at.Type)
	case at.Type != asked:
		return warn("%s was asked for, and %s is mounted", asked, at.Type)
	}
	return pass("%s is mounted, as asked", asked)
}

func (x *exam) checkUnpublish(ctx context.Context, v *vol) verdict {
	target := v.targets[0]
	err := v.to(ctx, staged)
	switch {
	case err != nil:
		return fail("%v", err)
	case mounts(target) > 0:
		return fail("the answer is OK, and something is still mounted at the target_path")
	case x.exists(target):
		return fail("the target_path is still there: the driver must remove it")
	}
	return pass("nothing is mounted any more, and the target_path is gone")
}

func (x *exam) checkUnpublishAgain(ctx context.Context, v *vol) verdict {
	if err := x.retryWhileBusy(ctx, v.unpublish); err != nil {
		return fail("what is unpublished cannot be unpublished again: %s", csi.Describe(err))
	}
	return pass("what is unpublished stays so")
}

func (x *exam) checkUnstage(ctx context.Context, v *vol) verdict {
	if err := v.to(ctx, attached); err != nil {
		return fail("%v", err)
	}
	if mounts(v.staging()) > 0 {
		return fail("the answer is OK, and something is still mounted at the staging_target_path")
	}
	return pass("nothing is staged any more")
}

func (x *exam) checkUnstageAgain(ctx context.Context, v *vol) verdict {
	if err := x.retryWhileBusy(ctx, v.unstage); err != nil {
		return fail("what is unstaged cannot be unstaged again: %s", csi.Describe(err))
	}
	_, err := do(ctx, x, x.serve().NodeUnstageVolume, &csipb.NodeUnstageVolumeRequest{
		VolumeId: v.id(), StagingTargetPath: filepath.Join(filepath.Dir(v.staging()), "nowhere"),
	})
	return unless(answered("NodeUnstageVolume of a path that does not exist", err, codes.OK, codes.NotFound),
		"what is unstaged stays so")
}
