package provisioner

import (
	"context"
	"errors"
	"fmt"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/decide/retry"
	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

var (
	errGone     = errors.New("driver has gone")
	errFault    = errors.New("cannot be provisioned as it is")
	errNameHeld = errors.New("another claim's volume is being created with the same name")
	errOpen     = errors.New("the intent of its creation is not resolved")
	errStep     = errors.New("the provisioner does not know the step")
)

// measured counts an attempt to make the volume of a claim, with the labels of upstream. The intent of a claim that is
// gone has no class any more.
func (p *provisioner) measured(claim *corev1.PersistentVolumeClaim, attempt func() error) error {
	begin := time.Now()
	err := attempt()
	if p.Meter == nil || claim == nil {
		return err
	}
	p.Meter.Provisioned(ptr.Deref(claim.Spec.StorageClassName, ""), cluster.SourceOf(claim).Kind, time.Since(begin), err)
	return err
}

// create calls CreateVolume and saves the volume. It is repeated until the driver has given a final
// answer.
func (p *provisioner) create(
	ctx context.Context, claim *corev1.PersistentVolumeClaim, plan provision.Plan, secret map[string]string,
) error {
	in := plan.Intent
	slow := time.AfterFunc(slowAfter, func() { p.Events.Note(&in.Claim, provision.Slow(in)) })
	// Facts from earlier calls are obsolete.
	p.attempts.learn(in.Claim.UID, func(a *attempt) { a.mayExist, a.missing = false, time.Time{} })
	c, release, err := p.ask(ctx, in, secret)
	slow.Stop()
	defer release()
	c.First, c.Claim, c.Selects = plan.Step == provision.Record, claim, p.Selects
	if err != nil {
		err = fmt.Errorf("create volume %s: %w", in.Name, err)
	}
	return p.settle(ctx, in, c, provision.After(in, c), err)
}

// undo deletes a volume that CreateVolume may have created. It learns the volume's id by calling
// CreateVolume again with the same arguments.
func (p *provisioner) undo(ctx context.Context, in *provision.Intent) error {
	// The cache may not show the volume object yet. If it exists, its reclaim policy decides.
	namesake, err := p.Client.CoreV1().PersistentVolumes().Get(ctx, in.Name, metav1.GetOptions{})
	switch {
	case err == nil && provision.IsVolumeOf(in, namesake):
		p.resolve(in)
		return nil
	case err != nil && !apierrors.IsNotFound(err):
		return fmt.Errorf("get volume %s: %w", in.Name, err)
	}
	secret, missing, err := kube.SecretDataLeft(ctx, p.Client, in.Secrets.Provision)
	if err != nil {
		return err
	}
	p.attempts.learn(in.Claim.UID, func(a *attempt) { a.missing = time.Time{} })
	c, release, err := p.ask(ctx, in, secret)
	defer release()
	if missing != nil {
		c.Missing = missing.Error()
	}
	if err == nil {
		if c.TakenBy, err = p.takenBy(ctx, in, c, namesake); err != nil {
			return err
		}
	}
	if err := p.settle(ctx, in, c, provision.AfterUndo(in, c), err); err != nil {
		return fmt.Errorf("undo volume %s: %w", in.Name, err)
	}
	return nil
}

// takenBy returns the name of the object that has the volume that a driver has answered with, or "". The cache may not
// show it yet: namesake is what the API server had before the call.
func (p *provisioner) takenBy(
	ctx context.Context, in *provision.Intent, c provision.Creation, namesake *corev1.PersistentVolume,
) (string, error) {
	if in.Node != "" {
		// Another node may have made the object during the call.
		now, err := p.Client.CoreV1().PersistentVolumes().Get(ctx, in.Name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return "", fmt.Errorf("get volume %s: %w", in.Name, err)
		}
		namesake = now
	}
	if provision.IsSame(in, c.Volume, namesake) {
		return namesake.Name, nil
	}
	return c.TakenBy, nil
}

// settle applies the decision about an answer; the answer to that is decided and settled in turn.
// cause is the error of the call, if any.
func (p *provisioner) settle(
	ctx context.Context, in *provision.Intent, c provision.Creation, v provision.Verdict, cause error,
) error {
	if v.Pause {
		p.attempts.refuse(in.Claim.UID, in.Request(), time.Now())
	}
	if v.Warn {
		p.Events.WarnWith(&in.Claim, v.Because, p.try(in).Notes())
	} else if v.Because.Reason != "" {
		p.Events.Note(&in.Claim, v.Because)
	}
	switch v.Next {
	case provision.Await:
	case provision.Doubt:
		p.attempts.learn(in.Claim.UID, func(a *attempt) { a.mayExist = true })
	case provision.Save:
		object, created, err := p.volumes.Ensure(ctx, p.object(in, c.Volume))
		next := provision.AfterSave(in, c.Volume, provision.Saving{Object: object, Made: created, Err: err, Claim: c.Claim})
		return p.settle(ctx, in, c, next, err)
	case provision.Remove:
		call, err := p.remove(csi.About(ctx, subjectOf(in)), &in.Claim, in.Driver, c.Volume.Handle, in.Secrets.Provision)
		return p.settle(ctx, in, c, provision.AfterRemove(in, v.Problem, call), err)
	case provision.Reselect:
		if err := p.reselect(ctx, c.Claim); err != nil {
			return err
		}
		p.resolve(in)
	case provision.Resolve:
		p.resolve(in)
	}
	return failure(in, v, cause)
}

// object returns the object of a volume, with what other controllers of this process would add to it.
func (p *provisioner) object(in *provision.Intent, made provision.Answer) *corev1.PersistentVolume {
	v := provision.Object(in, made, p.Identity)
	if d, ok := p.Drivers.Get(in.Driver); ok && p.Attaches && d.Controller.PublishUnpublish {
		v.Finalizers = append(v.Finalizers, volume.AttacherFinalizer(in.Driver))
	}
	return v
}

// try returns the try of a failed call of an intent. The next one waits for the back-off of the claim's key
// and for that of the request.
func (p *provisioner) try(in *provision.Intent) retry.Try {
	t := p.Try(claimKey(in.Claim.UID))
	known := p.attempts.of(in.Claim.UID)
	t.Number = max(t.Number, known.refusals)
	if until := known.until[in.Request()]; until.After(t.Next) {
		t.Next = until
	}
	return t
}

// failure returns the error that requeues a claim; nil if there is no problem.
func failure(in *provision.Intent, v provision.Verdict, cause error) error {
	switch {
	case v.Problem == "":
		return nil
	case cause == nil:
		return fmt.Errorf("create volume %s: %s", in.Name, v.Problem)
	}
	return cause
}

// secret reads the Secret for CreateVolume.
func (p *provisioner) secret(ctx context.Context, in *provision.Intent) (map[string]string, error) {
	secret, err := kube.SecretData(ctx, p.Client, in.Secrets.Provision)
	if err != nil {
		p.Events.WarnWith(&in.Claim, provision.SecretUnread(in, err.Error()), p.try(in).Notes())
		return nil, err
	}
	return secret, nil
}

// ask calls CreateVolume, and holds the returned handle until release is called.
func (p *provisioner) ask(
	ctx context.Context, in *provision.Intent, secret map[string]string,
) (c provision.Creation, release func(), err error) {
	c.Volume, err = p.call(csi.About(ctx, subjectOf(in)), in, secret)
	if c.Answer, release = csi.AnswerOf(err), func() {}; err == nil {
		c.TakenBy, release = p.holdHandle(in, c.Volume.Handle)
	}
	return c, release, err
}

func subjectOf(in *provision.Intent) csi.Subject {
	return csi.Subject{Volume: in.Name, Claim: in.Claim.Namespace + "/" + in.Claim.Name, Node: in.Node}
}

// call calls CreateVolume. All arguments come from the intent, so that a repeated call has the same.
func (p *provisioner) call(
	ctx context.Context, in *provision.Intent, secret map[string]string,
) (provision.Answer, error) {
	d, ok := p.Drivers.Get(in.Driver)
	if !ok {
		return provision.Answer{}, fmt.Errorf("%s: %w", in.Driver, errGone)
	}
	r := &csipb.CreateVolumeRequest{
		Name: in.Name, CapacityRange: &csipb.CapacityRange{RequiredBytes: in.Bytes}, Parameters: in.Parameters,
		MutableParameters: in.Mutable, Secrets: secret,
	}
	var err error
	if r.VolumeCapabilities, err = capabilities(in, d); err != nil {
		return provision.Answer{}, status.Error(codes.InvalidArgument, err.Error())
	}
	if in.Source != "" {
		r.VolumeContentSource = &csipb.VolumeContentSource{
			Type: &csipb.VolumeContentSource_Volume{Volume: &csipb.VolumeContentSource_VolumeSource{VolumeId: in.Source}},
		}
	}
	if in.Snapshot != "" {
		r.VolumeContentSource = &csipb.VolumeContentSource{Type: &csipb.VolumeContentSource_Snapshot{
			Snapshot: &csipb.VolumeContentSource_SnapshotSource{SnapshotId: in.Snapshot},
		}}
	}
	if len(in.Requisite) > 0 {
		r.AccessibilityRequirements = &csipb.TopologyRequirement{
			Requisite: csi.Topologies(in.Requisite), Preferred: csi.Topologies(in.Preferred),
		}
	}
	got, err := d.ControllerClient().CreateVolume(ctx, r)
	if err != nil {
		return provision.Answer{}, err
	}
	v := got.GetVolume()
	return provision.Answer{
		Handle: v.GetVolumeId(), Bytes: v.GetCapacityBytes(), Context: v.GetVolumeContext(),
		Source: v.GetContentSource().GetVolume().GetVolumeId(), Snapshot: v.GetContentSource().GetSnapshot().GetSnapshotId(),
		Segments: csi.Segments[topology.Segment](v.GetAccessibleTopology()),
	}, nil
}

// capabilities returns how the volume of an intent is to be used.
func capabilities(in *provision.Intent, d *csi.Driver) ([]*csipb.VolumeCapability, error) {
	var out []*csipb.VolumeCapability
	for _, m := range in.Modes {
		mode, err := csi.AccessMode([]corev1.PersistentVolumeAccessMode{m}, d.Controller.SingleNodeMultiWriter)
		if err != nil {
			return nil, err
		}
		out = append(out, csi.Capability(mode, in.Block, in.FSType, in.Options))
	}
	return out, nil
}

// reschedule removes the selected node from a claim, so that the scheduler selects another one.
func (p *provisioner) reschedule(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	_, err := p.claims.Update(ctx, provision.Unselected(claim))
	return err
}

// reselect does so for a claim whose volume the driver there could not make. Placement, if it is volplane's, selects
// the node again only if no other one is possible.
func (p *provisioner) reselect(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	if !p.Selects {
		return p.reschedule(ctx, claim)
	}
	_, err := p.claims.Update(ctx, provision.Refused(claim))
	return err
}
