package attacher

import (
	"context"
	"fmt"
	"maps"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

// attach keeps the volume object, then the attachment with all that its detach
// needs, then calls the driver (S3-011 to S3-013). Whatever the call's outcome
// is, the finalizers stay: only a detach or a success ends an attach.
func (a *attacher) attach(ctx context.Context, f attach.Facts, p attach.Plan) error {
	va := f.Attachment
	request, err := a.request(ctx, f.Volume, p)
	if err != nil {
		return a.failed(ctx, va, err)
	}
	if err := a.keepVolume(ctx, f.Volume, true); err != nil {
		return err
	}
	if p.Left != "" {
		if err := a.unpublish(ctx, va, attach.Plan{Record: p.Record, NodeID: p.Left}); err != nil {
			return a.failed(ctx, va, err)
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
	answer, err := d.ControllerClient().ControllerPublishVolume(ctx, request)
	if err != nil {
		return a.failed(ctx, va, err)
	}
	a.known.forget(va.UID)
	return a.mark(ctx, va, answer.GetPublishContext())
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

// mark writes that the volume is attached (S1-055 to S1-057), if it does not
// say so.
func (a *attacher) mark(ctx context.Context, va *storagev1.VolumeAttachment, published map[string]string) error {
	if s := va.Status; s.Attached && s.AttachError == nil && maps.Equal(s.AttachmentMetadata, published) {
		return nil
	}
	return a.patchStatus(ctx, va, map[string]any{"attached": true, "attachmentMetadata": published, "attachError": nil})
}

func (a *attacher) detach(ctx context.Context, f attach.Facts, p attach.Plan) error {
	if !f.Trivial {
		if err := a.unpublish(ctx, f.Attachment, p); err != nil {
			return a.failed(ctx, f.Attachment, err)
		}
	}
	if volume := a.lost.found(f.Attachment); volume != "" {
		a.Add(controller.Key{Kind: kindVolume, Name: volume})
		return nil
	}
	return a.release(ctx, f.Attachment)
}

// unpublish calls ControllerUnpublishVolume. A Secret that was deleted must not
// keep the volume attached for ever; most drivers detach without one (S1-121).
func (a *attacher) unpublish(ctx context.Context, va *storagev1.VolumeAttachment, p attach.Plan) error {
	d, ok := a.Drivers.Get(va.Spec.Attacher)
	if !ok {
		return fmt.Errorf("driver %s has gone", va.Spec.Attacher)
	}
	secret, missing, err := kube.SecretDataLeft(ctx, a.Client, p.Record.Secret)
	if err != nil {
		return err
	}
	_, err = d.ControllerClient().ControllerUnpublishVolume(ctx, &csipb.ControllerUnpublishVolumeRequest{
		VolumeId: p.Record.Handle, NodeId: p.NodeID, Secrets: secret,
	})
	if err != nil && missing != nil {
		return fmt.Errorf("%s; %w", csi.Describe(err), missing)
	}
	return err
}

// release removes our finalizer; only a gone attachment means detached
// (S1-064, S1-086).
func (a *attacher) release(ctx context.Context, va *storagev1.VolumeAttachment) error {
	_, err := a.attachments.Update(ctx, attach.Released(va))
	return kube.IgnoreNotFound(err)
}

// failed writes a call's error where people look for it, and has the call
// repeated.
func (a *attacher) failed(ctx context.Context, va *storagev1.VolumeAttachment, cause error) error {
	e, detaching := storagev1.VolumeError{Message: csi.Describe(cause)}, va.DeletionTimestamp != nil
	if _, ok := status.FromError(cause); ok && !detaching {
		e.ErrorCode = ptr.To(int32(csi.Code(cause)))
	}
	if err := a.writeError(ctx, va, attach.Failed(va, detaching, e.Message), e); err != nil {
		return err
	}
	return fmt.Errorf("attachment %s: %w", va.Name, cause)
}

// refuse writes once why an attachment cannot go on.
func (a *attacher) refuse(ctx context.Context, va *storagev1.VolumeAttachment, why volume.Because) error {
	if says(va, why.Message) {
		return nil
	}
	return a.writeError(ctx, va, why, storagev1.VolumeError{Message: why.Message})
}

// says whether an attachment has this error already.
func says(va *storagev1.VolumeAttachment, message string) bool {
	written := va.Status.AttachError
	if va.DeletionTimestamp != nil {
		written = va.Status.DetachError
	}
	return written != nil && written.Message == message
}

// writeError records an error in the status (S1-059, S1-066) and, when it is
// news, as an event (S1-060, S1-067): a call that fails is repeated many times.
func (a *attacher) writeError(
	ctx context.Context, va *storagev1.VolumeAttachment, why volume.Because, e storagev1.VolumeError,
) error {
	if !says(va, e.Message) {
		a.Events.Warn(va, why)
	}
	field := "attachError"
	if va.DeletionTimestamp != nil {
		field = "detachError"
	}
	// A null takes away the code of an earlier error.
	return a.patchStatus(ctx, va, map[string]any{
		field: map[string]any{"time": metav1.Now(), "message": e.Message, "errorCode": e.ErrorCode},
	})
}

// patchStatus writes fields of the status; an attachment that is gone needs
// none, and another one of its name gets none.
func (a *attacher) patchStatus(ctx context.Context, va *storagev1.VolumeAttachment, fields map[string]any) error {
	patch := map[string]any{"metadata": map[string]any{"uid": va.UID}, "status": fields}
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
