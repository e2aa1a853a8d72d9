package attacher

import (
	"cmp"
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
	"volplane.dev/volplane/internal/decide/retry"
	"volplane.dev/volplane/internal/kube"
)

// attach writes the finalizer of the volume object, then that of the attachment with the data for
// the detach, and then calls the driver (S3-011 to S3-013).
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
		if va, err = a.attachments.Change(ctx, va, recorded); err != nil {
			return err
		}
	}
	d, ok := a.Drivers.Get(va.Spec.Attacher)
	if !ok {
		return fmt.Errorf("driver %s has gone", va.Spec.Attacher)
	}
	vanished := a.known.whyMissing(va.UID)
	response, err := d.ControllerClient().ControllerPublishVolume(ctx, request)
	if err == nil {
		a.known.forget(va.UID)
	}
	answer := attach.Answer{
		Answer: csi.AnswerOf(err), Published: response.GetPublishContext(), Vanished: vanished,
	}
	return a.settle(ctx, attach.Attach, va, answer, err)
}

// request builds the request of a ControllerPublishVolume call. It is called before the finalizers
// are written: if it fails, they must not delay the deletion of their objects.
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
	fsType := cmp.Or(v.Spec.CSI.FSType, a.DefaultFSType)
	return &csipb.ControllerPublishVolumeRequest{
		VolumeId: p.Record.Handle, NodeId: p.NodeID, Secrets: secret, VolumeContext: v.Spec.CSI.VolumeAttributes,
		Readonly:         v.Spec.CSI.ReadOnly && d.Controller.PublishReadonly,
		VolumeCapability: csi.Capability(mode, cluster.IsBlock(v.Spec.VolumeMode), fsType, v.Spec.MountOptions),
	}, nil
}

func (a *attacher) detach(ctx context.Context, f attach.Facts, p attach.Plan) (err error) {
	answer := answerOf(nil)
	if !f.NoControllerPublish {
		answer, err = a.unpublish(ctx, f.Attachment, p)
	}
	return a.settle(ctx, attach.Detach, f.Attachment, answer, err)
}

func answerOf(err error) attach.Answer { return attach.Answer{Answer: csi.AnswerOf(err)} }

// unpublish calls ControllerUnpublishVolume. Without its Secret, the driver is called nevertheless:
// most drivers detach without it, and the volume must not stay attached forever (S1-121).
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
		answer.Missing, err = missing.Error(), fmt.Errorf("%w; %w", err, missing)
	}
	return answer, err
}

// settle applies the decision about an answer; cause is the error of the call.
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
	if volume := a.lost.remove(va); volume != "" {
		a.Add(controller.Key{Kind: kindVolume, Name: volume})
		return nil
	}
	return a.release(ctx, va)
}

// release removes the attacher's finalizer.
func (a *attacher) release(ctx context.Context, va *storagev1.VolumeAttachment) error {
	_, err := a.attachments.Change(ctx, va, attach.WithoutFinalizer(va))
	return kube.IgnoreNotFound(err)
}

// write records the decision about an answer, as an event and in the attachment's status. The UID in the patch keeps a
// new attachment of the same name unchanged.
func (a *attacher) write(ctx context.Context, va *storagev1.VolumeAttachment, r attach.Result) error {
	if r.Warn {
		a.Events.WarnWith(va, r.Because, a.tried(r).Notes())
	}
	if r.Status == nil {
		return nil
	}
	patch := map[string]any{"metadata": map[string]any{"uid": va.UID}, "status": r.Status}
	_, err := a.attachments.Patch(ctx, va, types.MergePatchType, patch, "status")
	return kube.IgnoreNotFound(err)
}

// tried returns what an event says about the next try. It is written once for all failures with one
// text; the status has the time of each.
func (a *attacher) tried(r attach.Result) retry.Try {
	if !r.Retry {
		return retry.Try{}
	}
	return a.TriedWithin()
}

// keepVolume adds or removes the finalizer of a volume object. An inline volume has no object.
func (a *attacher) keepVolume(ctx context.Context, v *corev1.PersistentVolume, attached bool) error {
	if v.Name == "" {
		return nil
	}
	want, _ := attach.Volume(v, attached)
	if want == nil {
		return nil
	}
	_, err := a.volumes.Change(ctx, v, want)
	if !attached {
		return kube.IgnoreNotFound(err)
	}
	return err
}
