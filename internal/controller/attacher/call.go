package attacher

import (
	"context"
	"fmt"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/kube"
)

// attach keeps the volume object, then the attachment with all that its detach
// needs, then calls the driver (S3-011 to S3-013).
func (a *attacher) attach(ctx context.Context, f attach.Facts, p attach.Plan) error {
	va := f.Attachment
	request, err := a.request(ctx, f.Volume, p)
	if err != nil {
		return a.settle(ctx, attach.Attach, va, answerOf(err), err)
	}
	if err := a.keepVolume(ctx, f.Volume, true); err != nil {
		return err
	}
	if p.Left != "" {
		if answer, err := a.unpublish(ctx, va, attach.Plan{Record: p.Record, NodeID: p.Left}); err != nil {
			return a.settle(ctx, attach.Attach, va, answer, err)
		}
	}
	if recorded, changed := attach.Recorded(va, p); changed {
		if va, err = a.attachments.Update(ctx, recorded); err != nil {
			return err
		}
	}
	d, ok := a.Drivers.Get(va.Spec.Attacher)
	if !ok {
		return fmt.Errorf("driver %s has gone", va.Spec.Attacher)
	}
	response, err := d.ControllerClient().ControllerPublishVolume(ctx, request)
	if err == nil {
		a.known.forget(va.UID)
	}
	answer := attach.Answer{Answer: csi.AnswerOf(err), Published: response.GetPublishContext()}
	return a.settle(ctx, attach.Attach, va, answer, err)
}

// request resolves all that can fail before the finalizers are written, for
// they delay the deletion of what they are on.
func (a *attacher) request(
	ctx context.Context, v *corev1.PersistentVolume, p attach.Plan,
) (*csipb.ControllerPublishVolumeRequest, error) {
	d, ok := a.Drivers.Get(v.Spec.CSI.Driver)
	if !ok {
		return nil, fmt.Errorf("driver %s has gone", v.Spec.CSI.Driver)
	}
	secret, err := kube.SecretData(ctx, a.Client, p.Record.Secret)
	if err != nil {
		return nil, err
	}
	mode, err := csi.AccessMode(v.Spec.AccessModes, d.Controller.SingleNodeMultiWriter)
	if err != nil {
		return nil, fmt.Errorf("volume %s: %w", v.Name, err)
	}
	return &csipb.ControllerPublishVolumeRequest{
		VolumeId: p.Record.Handle, NodeId: p.NodeID, Secrets: secret, VolumeContext: v.Spec.CSI.VolumeAttributes,
		Readonly:         v.Spec.CSI.ReadOnly && d.Controller.PublishReadonly,
		VolumeCapability: csi.Capability(mode, cluster.IsBlock(v.Spec.VolumeMode), v.Spec.CSI.FSType, v.Spec.MountOptions),
	}, nil
}

func (a *attacher) detach(ctx context.Context, f attach.Facts, p attach.Plan) (err error) {
	answer := answerOf(nil)
	if !f.Trivial {
		answer, err = a.unpublish(ctx, f.Attachment, p)
	}
	return a.settle(ctx, attach.Detach, f.Attachment, answer, err)
}

func answerOf(err error) attach.Answer { return attach.Answer{Answer: csi.AnswerOf(err)} }

// unpublish calls ControllerUnpublishVolume. A Secret that was deleted must not
// keep the volume attached for ever; most drivers detach without one (S1-121).
func (a *attacher) unpublish(
	ctx context.Context, va *storagev1.VolumeAttachment, p attach.Plan,
) (attach.Answer, error) {
	d, ok := a.Drivers.Get(va.Spec.Attacher)
	if !ok {
		err := fmt.Errorf("driver %s has gone", va.Spec.Attacher)
		return answerOf(err), err
	}
	secret, missing, err := kube.SecretDataLeft(ctx, a.Client, p.Record.Secret)
	if err != nil {
		return answerOf(err), err
	}
	_, err = d.ControllerClient().ControllerUnpublishVolume(ctx, &csipb.ControllerUnpublishVolumeRequest{
		VolumeId: p.Record.Handle, NodeId: p.NodeID, Secrets: secret,
	})
	answer := answerOf(err)
	if err != nil && missing != nil {
		answer.NoSecret, err = missing.Error(), fmt.Errorf("%w; %w", err, missing)
	}
	return answer, err
}

// settle applies what follows an answer; cause is the error of the call.
func (a *attacher) settle(
	ctx context.Context, step attach.Step, va *storagev1.VolumeAttachment, answer attach.Answer, cause error,
) error {
	r := attach.After(step, va, answer, metav1.Now())
	if err := a.write(ctx, va, r); err != nil {
		return err
	}
	switch {
	case r.Retry:
		return fmt.Errorf("attachment %s: %w", va.Name, cause)
	case !r.Release:
		return nil
	}
	if volume := a.lost.found(va); volume != "" {
		a.Add(controller.Key{Kind: kindVolume, Name: volume})
		return nil
	}
	return a.release(ctx, va)
}

// release removes the attacher's finalizer.
func (a *attacher) release(ctx context.Context, va *storagev1.VolumeAttachment) error {
	_, err := a.attachments.Update(ctx, attach.Released(va))
	return kube.IgnoreNotFound(err)
}

// write tells what follows an answer, as an event and in the status. An attachment that is gone has no status, and
// another one of its name gets none.
func (a *attacher) write(ctx context.Context, va *storagev1.VolumeAttachment, r attach.Result) error {
	if r.Warn {
		a.Events.Warn(va, r.Because)
	}
	if r.Status == nil {
		return nil
	}
	patch := map[string]any{"metadata": map[string]any{"uid": va.UID}, "status": r.Status}
	_, err := a.attachments.Patch(ctx, va, types.MergePatchType, patch, "status")
	return kube.IgnoreNotFound(err)
}

// keepVolume writes the finalizer of a volume object, or removes it. A volume
// that an attachment describes has no object.
func (a *attacher) keepVolume(ctx context.Context, v *corev1.PersistentVolume, attached bool) error {
	if v.Name == "" {
		return nil
	}
	want, _ := attach.Volume(v, attached)
	if want == nil {
		return nil
	}
	_, err := a.volumes.Update(ctx, want)
	if !attached {
		return kube.IgnoreNotFound(err)
	}
	return err
}
