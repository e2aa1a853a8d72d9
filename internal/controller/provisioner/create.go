package provisioner

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

var (
	errGone  = errors.New("driver has gone")
	errFault = errors.New("cannot be provisioned as it is")
	errOpen  = errors.New("its making is not settled")
)

// create calls CreateVolume and saves the volume. It is repeated until the
// driver has given a final answer.
func (p *provisioner) create(
	ctx context.Context, claim *corev1.PersistentVolumeClaim, plan provision.Plan, secret map[string]string,
) error {
	in := plan.Intent
	slow := time.AfterFunc(patience, func() {
		p.Events.Note(&in.Claim, volume.Because{
			Reason: volume.ReasonProvisioning, Message: fmt.Sprintf("driver %s is making volume %s", in.Driver, in.Name),
		})
	})
	// What this call tells is all that counts.
	for _, known := range []*sync.Map{&p.doubtful, &p.missing} {
		known.Delete(in.Claim.UID)
	}
	answer, err := p.call(ctx, in, secret)
	slow.Stop()
	if err != nil {
		return p.failed(ctx, claim, in, err, plan.Step == provision.Record)
	}
	taken, release := p.hold(in, answer.Handle)
	defer release()
	if problem, remove := provision.Check(in, answer, taken); problem != "" {
		return p.refuse(ctx, in, answer, problem, remove)
	}
	return p.save(ctx, in, answer)
}

// failed acts on a CreateVolume call that went wrong; first says that it was the
// first one with its intent.
func (p *provisioner) failed(
	ctx context.Context, claim *corev1.PersistentVolumeClaim, in *provision.Intent, cause error, first bool,
) error {
	p.Events.Warn(&in.Claim, volume.Because{
		Reason:  volume.ReasonProvisioningFailed,
		Message: fmt.Sprintf("driver %s made no volume: %s", in.Driver, csi.Describe(cause)), Next: in.Driver,
	})
	p.refused.add(in.Claim.UID, in.Question(), time.Now())
	cause = fmt.Errorf("create volume %s: %w", in.Name, cause)
	refusal := provision.Refusal{Code: csi.Code(cause).String(), First: first, Whole: true}
	switch {
	case csi.OutcomeOf(cause) == volume.Unknown:
		return cause
	case !refusal.NothingMade():
		// The claim may be asked about anew, but not be forgotten.
		p.doubtful.Store(in.Claim.UID, nil)
		return cause
	}
	// If the node's segment is full, another node is looked for.
	if csi.Code(cause) == codes.ResourceExhausted && claim != nil && claim.Annotations[volume.AnnSelectedNode] != "" &&
		len(in.Requisite) > 0 {
		if err := p.reschedule(ctx, claim); err != nil {
			return err
		}
	}
	p.resolve(in)
	return cause
}

// save writes the volume object. From then on the cache shows it, which keeps the
// claim from being provisioned again, and the handle from another volume: the intent
// is resolved.
func (p *provisioner) save(ctx context.Context, in *provision.Intent, a provision.Answer) error {
	there, made, err := p.volumes.Ensure(ctx, provision.Object(in, a))
	switch {
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err):
		// It is not to be saved: seed 004 wants the asset deleted then.
		return p.refuse(ctx, in, a, "the volume object is refused: "+err.Error(), true)
	case err != nil:
		p.Events.Warn(&in.Claim, volume.Because{
			Reason: volume.ReasonProvisioningFailed, Message: "volume object is not saved yet: " + err.Error(),
		})
		return err
	case !made:
		return p.saved(ctx, in, a, there)
	}
	p.resolve(in)
	p.Events.Note(&in.Claim, volume.Because{
		Reason: volume.ReasonProvisioningSucceeded, Message: "Successfully provisioned volume " + in.Name,
	})
	return nil
}

// saved ends the intent if the volume object that exists is the one we would
// have written. One of a stranger must not hide what the driver made for us.
func (p *provisioner) saved(
	ctx context.Context, in *provision.Intent, a provision.Answer, v *corev1.PersistentVolume,
) error {
	same := v.Spec.CSI != nil && v.Spec.CSI.Driver == in.Driver && v.Spec.CSI.VolumeHandle == a.Handle
	if !same || !provision.Owns(in.Claim.UID, v) {
		return p.refuse(ctx, in, a, "another volume object has the name "+in.Name, !same)
	}
	p.resolve(in)
	return nil
}

// refuse does away with an answer that must not become a volume object.
func (p *provisioner) refuse(
	ctx context.Context, in *provision.Intent, a provision.Answer, problem string, remove bool,
) error {
	p.Events.Warn(&in.Claim, volume.Because{Reason: volume.ReasonProvisioningFailed, Message: problem, Next: in.Driver})
	if remove {
		if err := p.remove(ctx, &in.Claim, in.Driver, a.Handle, in.Secrets.Provision); err != nil {
			p.Events.Warn(&in.Claim, provision.CleanupFailed(in, csi.Describe(err)))
			return err
		}
	}
	p.refused.add(in.Claim.UID, in.Question(), time.Now())
	p.resolve(in)
	return fmt.Errorf("create volume %s: %s", in.Name, problem)
}

// undo learns the id of what CreateVolume may have made by calling it again
// with the same arguments, and deletes it.
func (p *provisioner) undo(ctx context.Context, in *provision.Intent) error {
	// The cache may not have heard of the volume object yet, whose reclaim
	// policy decides from when it exists.
	switch _, err := p.Client.CoreV1().PersistentVolumes().Get(ctx, in.Name, metav1.GetOptions{}); {
	case err == nil:
		p.resolve(in)
		return nil
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("look for volume %s: %w", in.Name, err)
	}
	secret, missing, err := kube.SecretDataLeft(ctx, p.Client, in.Secrets.Provision)
	if err != nil {
		return err
	}
	p.missing.Delete(in.Claim.UID)
	answer, err := p.call(ctx, in, secret)
	taken, release := p.hold(in, answer.Handle)
	defer release()
	switch refusal := (provision.Refusal{Code: csi.Code(err).String(), Whole: missing == nil}); {
	case err == nil && taken == "":
		if err = p.remove(ctx, &in.Claim, in.Driver, answer.Handle, in.Secrets.Provision); err == nil {
			p.Events.Note(&in.Claim, volume.Because{
				Reason: volume.ReasonDeleting, Message: "volume " + in.Name + ", which nobody wants any more, is deleted",
			})
		}
	case err != nil && csi.OutcomeOf(err) == volume.Failed && refusal.NothingMade():
		err = nil
	}
	if err != nil {
		p.Events.Warn(&in.Claim, provision.CleanupFailed(in, csi.Describe(err)))
		return fmt.Errorf("undo volume %s: %w", in.Name, err)
	}
	p.resolve(in)
	return nil
}

// secret reads what CreateVolume authenticates with.
func (p *provisioner) secret(ctx context.Context, in *provision.Intent) (map[string]string, error) {
	secret, err := kube.SecretData(ctx, p.Client, in.Secrets.Provision)
	if err != nil {
		p.Events.Warn(&in.Claim, volume.Because{
			Reason: volume.ReasonProvisioningFailed, Message: "no volume is asked for: " + err.Error(), Next: "user",
		})
		return nil, err
	}
	return secret, nil
}

// call makes one CreateVolume call from an intent alone.
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
	for _, m := range in.Modes {
		mode, err := csi.AccessMode([]corev1.PersistentVolumeAccessMode{m}, d.Controller.SingleNodeMultiWriter)
		if err != nil {
			return provision.Answer{}, status.Error(codes.InvalidArgument, err.Error())
		}
		r.VolumeCapabilities = append(r.VolumeCapabilities, csi.Capability(mode, in.Block, in.FSType, in.Options))
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
			Requisite: segments(in.Requisite), Preferred: segments(in.Preferred),
		}
	}
	got, err := d.ControllerClient().CreateVolume(ctx, r)
	if err != nil {
		return provision.Answer{}, err
	}
	v := got.GetVolume()
	a := provision.Answer{
		Handle: v.GetVolumeId(), Bytes: v.GetCapacityBytes(), Context: v.GetVolumeContext(),
		Source: v.GetContentSource().GetVolume().GetVolumeId(), Snapshot: v.GetContentSource().GetSnapshot().GetSnapshotId(),
	}
	for _, t := range v.GetAccessibleTopology() {
		a.Segments = append(a.Segments, t.GetSegments())
	}
	return a, nil
}

func segments(all []topology.Segment) []*csipb.Topology {
	var out []*csipb.Topology
	for _, s := range all {
		out = append(out, &csipb.Topology{Segments: s})
	}
	return out
}
