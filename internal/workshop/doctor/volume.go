package doctor

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/workshop/scratch"
)

// state is how far a volume is on its way to a program that uses it.
type state int

const (
	none state = iota
	created
	attached
	staged
	published
)

// vol is one volume.
type vol struct {
	x          *exam
	name       string
	capability *csipb.VolumeCapability
	size       int64
	source     *csipb.VolumeContentSource
	readOnly   bool
	// made is the driver's answer, and context what the attachment needs on the node.
	made    *csipb.Volume
	context map[string]string
	// state is what it has reached, and tried what it may have reached: a call that fails may have an effect.
	state, tried state
	// targets are the paths at which it may be published, the first one first.
	targets []string
}

// volume returns a volume that is not created yet: a filesystem of the usual size.
func (x *exam) volume() *vol {
	v := &vol{x: x, name: x.newName(), capability: x.capability(false, "ReadWriteOnce"), size: x.Size}
	v.targets = []string{v.target(1)}
	x.volumes, x.made = append(x.volumes, v), append(x.made, v.back)
	return v
}

// copyOf returns a volume with a source.
func (x *exam) copyOf(source *csipb.VolumeContentSource) *vol {
	v := x.volume()
	v.source = source
	return v
}

// newName returns a name that no volume or snapshot has.
func (x *exam) newName() string {
	x.names++
	return fmt.Sprintf("%s-%d", filepath.Base(x.dir.Root), x.names)
}

func (x *exam) capability(block bool, mode string) *csipb.VolumeCapability {
	m, err := csi.AccessMode([]string{mode}, x.promises().SingleNodeMultiWriter && x.node.d.Node.SingleNodeMultiWriter)
	if err != nil {
		m = csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	}
	return csi.Capability(m, block, x.FSType, nil)
}

// id returns the driver's id of the volume; empty if it was not created.
func (v *vol) id() string { return v.made.GetVolumeId() }

// staging returns the staging path, and target that of one user, where a kubelet has them.
func (v *vol) staging() string {
	return v.x.path("plugins", "kubernetes.io", "csi", v.name, "globalmount")
}

func (v *vol) target(n int) string {
	uid := fmt.Sprintf("00000000-0000-4000-8000-%012d", n)
	return v.x.path("pods", uid, "volumes", "kubernetes.io~csi", v.name, "mount")
}

// do makes a call with its time limit. If the driver does not answer in time, the examination is stopped.
func do[Q, A any](
	ctx context.Context, x *exam, call func(context.Context, Q, ...grpc.CallOption) (A, error), request Q,
) (A, error) {
	limited, cancel := context.WithTimeout(ctx, x.Limit)
	defer cancel()
	deadline, _ := limited.Deadline()
	answer, err := call(limited, request)
	if err != nil && ctx.Err() == nil && outOfTime(err, deadline) {
		x.stop(fmt.Errorf("%w: %T within %v", errHung, request, x.Limit))
	}
	return answer, err
}

// outOfTime says whether a call that has just failed did so because of its deadline. The driver's side may notice the
// deadline a moment before this one.
func outOfTime(err error, deadline time.Time) bool {
	const moment = 100 * time.Millisecond
	left := time.Until(deadline)
	return left <= 0 || left < moment && csi.Code(err) == codes.DeadlineExceeded
}

// busy says that the driver asks to repeat the call later.
func busy(err error) bool {
	return csi.Code(err) == codes.Aborted || csi.Code(err) == codes.Unavailable
}

// retryWhileBusy repeats a call while the driver is busy with an earlier one.
func (x *exam) retryWhileBusy(ctx context.Context, call func(context.Context) error) error {
	return x.again(ctx, call, busy)
}

// until repeats a call until it succeeds, as callers do after any error.
func (x *exam) until(ctx context.Context, call func(context.Context) error) error {
	return x.again(ctx, call, func(error) bool { return true })
}

// again repeats a call after the errors that pass, as long as the driver lives.
func (x *exam) again(ctx context.Context, call func(context.Context) error, passes func(error) bool) error {
	limited, cancel := context.WithTimeout(ctx, x.Patience)
	defer cancel()
	return repeat(limited, func() (bool, error) {
		err := call(ctx)
		return err != nil && passes(err) && x.alive(), err
	})
}

func (v *vol) createRequest() *csipb.CreateVolumeRequest {
	return &csipb.CreateVolumeRequest{
		Name: v.name, CapacityRange: &csipb.CapacityRange{RequiredBytes: v.size}, Parameters: v.x.Parameters,
		VolumeCapabilities:  []*csipb.VolumeCapability{v.capability},
		VolumeContentSource: v.source, Secrets: v.x.Secrets, AccessibilityRequirements: v.x.here(),
	}
}

// here returns the requirement that a volume can be used on this node; nil if the driver has no topology.
func (x *exam) here() *csipb.TopologyRequirement {
	if !x.plugin.AccessibilityConstraints || len(x.info.Topology) == 0 {
		return nil
	}
	t := []*csipb.Topology{{Segments: x.info.Topology}}
	return &csipb.TopologyRequirement{Requisite: t, Preferred: t}
}

func (v *vol) create(ctx context.Context) error {
	r, err := do(ctx, v.x, v.x.control().CreateVolume, v.createRequest())
	if err == nil {
		v.made = r.GetVolume()
		v.state, v.tried = max(v.state, created), max(v.tried, created)
	}
	return err
}

func (v *vol) attachRequest() *csipb.ControllerPublishVolumeRequest {
	return &csipb.ControllerPublishVolumeRequest{
		VolumeId: v.id(), NodeId: v.x.info.ID, VolumeCapability: v.capability, VolumeContext: v.made.GetVolumeContext(),
		Secrets: v.x.Secrets,
	}
}

func (v *vol) attach(ctx context.Context) error {
	v.tried = max(v.tried, attached)
	if v.x.promises().PublishUnpublish {
		r, err := do(ctx, v.x, v.x.control().ControllerPublishVolume, v.attachRequest())
		if err != nil {
			return err
		}
		v.context = r.GetPublishContext()
	}
	v.state = max(v.state, attached)
	return nil
}

func (v *vol) stageRequest() *csipb.NodeStageVolumeRequest {
	return &csipb.NodeStageVolumeRequest{
		VolumeId: v.id(), StagingTargetPath: v.staging(), VolumeCapability: v.capability,
		VolumeContext: v.made.GetVolumeContext(), PublishContext: v.context, Secrets: v.x.Secrets,
	}
}

func (v *vol) stage(ctx context.Context) error {
	v.tried = max(v.tried, staged)
	if v.x.node.d.Node.StageUnstage {
		if err := mount.MakeBelow(v.x.dir.Root, v.staging()); err != nil {
			return err
		}
		if _, err := do(ctx, v.x, v.x.serve().NodeStageVolume, v.stageRequest()); err != nil {
			return err
		}
	}
	v.state = max(v.state, staged)
	return nil
}

func (v *vol) publishRequest(target string) *csipb.NodePublishVolumeRequest {
	r := &csipb.NodePublishVolumeRequest{
		VolumeId: v.id(), TargetPath: target, VolumeCapability: v.capability, Readonly: v.readOnly,
		VolumeContext: v.made.GetVolumeContext(), PublishContext: v.context, Secrets: v.x.Secrets,
	}
	if v.x.node.d.Node.StageUnstage {
		r.StagingTargetPath = v.staging()
	}
	return r
}

// makePaths makes the directories that the driver finds: the staging path, and the parent of the first target.
func (v *vol) makePaths() error {
	return errors.Join(mount.MakeBelow(v.x.dir.Root, v.staging()),
		mount.MakeBelow(v.x.dir.Root, filepath.Dir(v.targets[0])))
}

// publishAt publishes the volume at a path, whose parent is made before.
func (v *vol) publishAt(ctx context.Context, target string) error {
	v.tried = published
	if err := mount.MakeBelow(v.x.dir.Root, filepath.Dir(target)); err != nil {
		return err
	}
	if !slices.Contains(v.targets, target) {
		v.targets = append(v.targets, target)
	}
	_, err := do(ctx, v.x, v.x.serve().NodePublishVolume, v.publishRequest(target))
	return err
}

func (v *vol) publish(ctx context.Context) error {
	err := v.publishAt(ctx, v.targets[0])
	if err == nil {
		v.state = max(v.state, published)
	}
	return err
}

func (v *vol) unpublishAt(ctx context.Context, target string) error {
	_, err := do(ctx, v.x, v.x.serve().NodeUnpublishVolume,
		&csipb.NodeUnpublishVolumeRequest{VolumeId: v.id(), TargetPath: target})
	return err
}

// unpublish unpublishes the volume from all its targets.
func (v *vol) unpublish(ctx context.Context) error {
	for _, target := range slices.Backward(v.targets) {
		if err := v.unpublishAt(ctx, target); err != nil {
			return err
		}
	}
	v.lower(staged)
	v.targets = v.targets[:1]
	return nil
}

func (v *vol) unstage(ctx context.Context) error {
	if v.x.node.d.Node.StageUnstage {
		if _, err := do(ctx, v.x, v.x.serve().NodeUnstageVolume,
			&csipb.NodeUnstageVolumeRequest{VolumeId: v.id(), StagingTargetPath: v.staging()}); err != nil {
			return err
		}
	}
	v.lower(attached)
	return nil
}

func (v *vol) detach(ctx context.Context) error {
	if v.x.promises().PublishUnpublish {
		if _, err := do(ctx, v.x, v.x.control().ControllerUnpublishVolume, &csipb.ControllerUnpublishVolumeRequest{
			VolumeId: v.id(), NodeId: v.x.info.ID, Secrets: v.x.Secrets,
		}); err != nil {
			return err
		}
	}
	v.lower(created)
	return nil
}

func (v *vol) remove(ctx context.Context) error {
	if v.id() == "" {
		return nil
	}
	_, err := do(ctx, v.x, v.x.control().DeleteVolume, &csipb.DeleteVolumeRequest{VolumeId: v.id(), Secrets: v.x.Secrets})
	if err == nil {
		v.lower(none)
	}
	return err
}

// lower notes that the volume is at most in a state.
func (v *vol) lower(s state) { v.state, v.tried = min(v.state, s), min(v.tried, s) }

// step is one way from a state to the next one.
type step struct {
	name string
	call func(*vol, context.Context) error
}

// upwards returns the steps that lead to each state, and downwards those that lead away from it.
func upwards() map[state]step {
	return map[state]step{
		created: {"CreateVolume", (*vol).create}, attached: {"ControllerPublishVolume", (*vol).attach},
		staged: {"NodeStageVolume", (*vol).stage}, published: {"NodePublishVolume", (*vol).publish},
	}
}

func downwards() map[state]step {
	return map[state]step{
		created: {"DeleteVolume", (*vol).remove}, attached: {"ControllerUnpublishVolume", (*vol).detach},
		staged: {"NodeUnstageVolume", (*vol).unstage}, published: {"NodeUnpublishVolume", (*vol).unpublish},
	}
}

// failure is the error of a call.
type failure struct {
	call string
	err  error
}

// Error returns the error as one short line.
func (f failure) Error() string { return f.call + ": " + csi.Describe(f.err) }

// Unwrap returns the error itself, which has its code.
func (f failure) Unwrap() error { return f.err }

// take makes a step, and notes how long it takes.
func (v *vol) take(ctx context.Context, s step) error {
	begun := time.Now()
	if err := v.x.retryWhileBusy(ctx, func(ctx context.Context) error { return s.call(v, ctx) }); err != nil {
		return failure{s.name, err}
	}
	v.x.mu.Lock()
	defer v.x.mu.Unlock()
	v.x.usual[s.name] = time.Since(begun)
	return nil
}

// to brings the volume to one state after the other, upwards or downwards, step by step.
func (v *vol) to(ctx context.Context, states ...state) error {
	for _, want := range states {
		for v.state < want {
			if err := v.take(ctx, upwards()[v.state+1]); err != nil {
				return err
			}
		}
		for v.tried > want {
			if err := v.take(ctx, downwards()[v.tried]); err != nil {
				return err
			}
		}
	}
	return nil
}

// mounts returns how many mounts lie at a path.
func mounts(path string) int {
	all, err := scratch.Mounts(path)
	if err != nil {
		return -1
	}
	n := 0
	for _, p := range all {
		if p == path {
			n++
		}
	}
	return n
}

// mountedAt returns what is mounted at a path.
func mountedAt(path string) (mount.Point, bool) {
	at, mounted, err := mount.At(path)
	return at, mounted && err == nil
}
