package attacher

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/kube"
)

const (
	kindAttachment = "attachment"
	kindVolume     = "volume"
)

// Declaration is what the attacher reads and writes.
func Declaration() controller.Declaration {
	return controller.Declaration{
		Name:   "attacher",
		Inputs: append(kube.Read("", "persistentvolumes"), kube.Read("storage.k8s.io", "volumeattachments", "csinodes")...),
		Outputs: []kube.Access{
			kube.Write("storage.k8s.io", "volumeattachments", "update"), kube.Write("storage.k8s.io", "volumeattachments/status", "patch"),
			kube.Write("", "persistentvolumes", "update"), kube.Write("", "secrets", "get"),
		},
	}
}

type attacher struct {
	controller.Env
	*controller.Controller
	drivers     *csi.Set
	volumes     *kube.Cache[*corev1.PersistentVolume]
	attachments *kube.Cache[*storagev1.VolumeAttachment]
	csiNodes    *kube.Cache[*storagev1.CSINode]
}

// New returns the attacher for the drivers of a set. It must be made before
// the caches start.
func New(env controller.Env, drivers *csi.Set) *controller.Controller {
	a := &attacher{
		Env: env, drivers: drivers,
		Controller: &controller.Controller{Declaration: Declaration(), Workers: 100, RetryMin: 100 * time.Millisecond, Log: env.Log},
		volumes:    env.Caches.Volumes(), attachments: env.Caches.Attachments(), csiNodes: env.Caches.CSINodes(),
	}
	a.Controller.Reconcile = a.reconcile
	a.attachments.Watch(a.attachmentChanged)
	a.volumes.Watch(func(before, v *corev1.PersistentVolume) {
		if v != nil && v.DeletionTimestamp != nil {
			a.Add(controller.Key{Kind: kindVolume, Name: v.Name})
		}
		if v != nil && before == nil {
			a.wake(a.attachments.By(kube.AttachmentsByVolume, v.Name))
		}
	})
	a.csiNodes.Watch(func(_, n *storagev1.CSINode) {
		if n != nil {
			a.wake(a.attachments.By(kube.AttachmentsByNode, n.Name))
		}
	})
	drivers.Subscribe(func(string) { a.wake(a.attachments.List()) })
	return a.Controller
}

func (a *attacher) wake(all []*storagev1.VolumeAttachment) {
	for _, va := range all {
		a.Add(controller.Key{Kind: kindAttachment, Name: va.Name})
	}
}

// attachmentChanged wakes an attachment, but not for what only an error of our
// own has changed: that would defeat the pause between two tries.
func (a *attacher) attachmentChanged(before, after *storagev1.VolumeAttachment) {
	if after == nil {
		if name := before.Spec.Source.PersistentVolumeName; name != nil {
			a.Add(controller.Key{Kind: kindVolume, Name: *name})
		}
		return
	}
	if before != nil && before.DeletionTimestamp.Equal(after.DeletionTimestamp) && before.Status.Attached == after.Status.Attached &&
		(after.Status.AttachError != nil || after.Status.DetachError != nil) {
		return
	}
	a.Add(controller.Key{Kind: kindAttachment, Name: after.Name})
}

func (a *attacher) reconcile(ctx context.Context, key controller.Key) (controller.Result, error) {
	if key.Kind == kindVolume {
		v, ok := a.volumes.Get(key.Name)
		if !ok {
			return controller.Result{}, nil
		}
		return controller.Result{}, a.keepVolume(ctx, v, len(a.attachments.By(kube.AttachmentsByVolume, v.Name)) > 0)
	}
	va, ok := a.attachments.Get(key.Name)
	if !ok {
		return controller.Result{}, nil
	}
	facts := a.gather(va)
	return controller.Result{}, a.apply(ctx, facts, attach.Attachment(facts))
}

func (a *attacher) gather(va *storagev1.VolumeAttachment) attach.Facts {
	f := attach.Facts{Attachment: va}
	if name := va.Spec.Source.PersistentVolumeName; name != nil {
		f.Volume, _ = a.volumes.Get(*name)
	}
	_, f.Ours = a.drivers.Get(va.Spec.Attacher)
	if n, ok := a.csiNodes.Get(va.Spec.NodeName); ok {
		for _, d := range n.Spec.Drivers {
			if d.Name == va.Spec.Attacher {
				f.NodeID = d.NodeID
			}
		}
	}
	return f
}

func (a *attacher) apply(ctx context.Context, f attach.Facts, p attach.Plan) error {
	switch p.Step {
	case attach.Attach:
		return a.attach(ctx, f, p)
	case attach.Detach:
		return a.detach(ctx, f.Attachment, p)
	case attach.Release:
		return a.release(ctx, f.Attachment)
	case attach.Nothing:
	}
	return nil
}

func (a *attacher) attach(ctx context.Context, f attach.Facts, p attach.Plan) error {
	va := f.Attachment
	if err := a.keepVolume(ctx, f.Volume, true); err != nil {
		return err
	}
	recorded, changed, err := attach.Recorded(va, p)
	if err != nil {
		return err
	}
	if changed {
		if va, err = a.Client.StorageV1().VolumeAttachments().Update(ctx, recorded, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("record attachment %s: %w", recorded.Name, err)
		}
		a.attachments.Wrote(va)
	}
	published, err := a.publish(ctx, va.Spec.Attacher, f.Volume, p)
	if err != nil {
		return a.failed(ctx, va, false, err)
	}
	return a.patchStatus(ctx, va, map[string]any{"attached": true, "attachmentMetadata": published, "attachError": nil})
}

// publish calls ControllerPublishVolume; a driver without it has nothing to do
// (S1-046).
func (a *attacher) publish(ctx context.Context, driver string, v *corev1.PersistentVolume, p attach.Plan) (map[string]string, error) {
	d, ok := a.drivers.Get(driver)
	if !ok {
		return nil, fmt.Errorf("driver %s has gone", driver)
	}
	if !d.Controller.PublishUnpublish {
		return nil, nil
	}
	secret, err := kube.SecretData(ctx, a.Client, p.Record.Secret)
	if err != nil {
		return nil, err
	}
	modes := make([]string, 0, len(v.Spec.AccessModes))
	for _, m := range v.Spec.AccessModes {
		modes = append(modes, string(m))
	}
	mode, err := csi.AccessMode(modes, d.Controller.SingleNodeMultiWriter)
	if err != nil {
		return nil, fmt.Errorf("volume %s: %w", v.Name, err)
	}
	block := v.Spec.VolumeMode != nil && *v.Spec.VolumeMode == corev1.PersistentVolumeBlock
	r, err := d.ControllerClient().ControllerPublishVolume(ctx, &csipb.ControllerPublishVolumeRequest{
		VolumeId: p.Record.Handle, NodeId: p.NodeID, Secrets: secret, VolumeContext: v.Spec.CSI.VolumeAttributes,
		Readonly:         v.Spec.CSI.ReadOnly && d.Controller.PublishReadonly,
		VolumeCapability: csi.Capability(mode, block, v.Spec.CSI.FSType, v.Spec.MountOptions),
	})
	if err != nil {
		return nil, err
	}
	return r.GetPublishContext(), nil
}

func (a *attacher) detach(ctx context.Context, va *storagev1.VolumeAttachment, p attach.Plan) error {
	d, ok := a.drivers.Get(va.Spec.Attacher)
	if !ok {
		return fmt.Errorf("driver %s has gone", va.Spec.Attacher)
	}
	if d.Controller.PublishUnpublish {
		secret, err := kube.SecretData(ctx, a.Client, p.Record.Secret)
		if apierrors.IsNotFound(err) {
			// A Secret that was deleted must not keep the volume attached for
			// ever; most drivers detach without one.
			secret, err = nil, nil
		}
		if err == nil {
			_, err = d.ControllerClient().ControllerUnpublishVolume(ctx, &csipb.ControllerUnpublishVolumeRequest{VolumeId: p.Record.Handle, NodeId: p.NodeID, Secrets: secret})
		}
		if err != nil {
			return a.failed(ctx, va, true, err)
		}
	}
	return a.release(ctx, va)
}

func (a *attacher) release(ctx context.Context, va *storagev1.VolumeAttachment) error {
	_, err := a.Client.StorageV1().VolumeAttachments().Update(ctx, attach.Released(va), metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("release attachment %s: %w", va.Name, err)
	}
	return nil
}

// failed writes a driver's error where people look for it (S1-059), and an
// event (S1-060, S1-067), and has the call repeated.
func (a *attacher) failed(ctx context.Context, va *storagev1.VolumeAttachment, detaching bool, cause error) error {
	text, field := csi.Describe(cause), "attachError"
	if detaching {
		field = "detachError"
	}
	a.Events.Warn(va, attach.Failed(va, detaching, text))
	e := storagev1.VolumeError{Time: metav1.Now(), Message: text, ErrorCode: ptr.To(int32(status.Code(cause)))}
	if err := a.patchStatus(ctx, va, map[string]any{field: e}); err != nil {
		return err
	}
	return fmt.Errorf("attachment %s: %w", va.Name, cause)
}

func (a *attacher) patchStatus(ctx context.Context, va *storagev1.VolumeAttachment, fields map[string]any) error {
	patch, err := json.Marshal(map[string]any{"status": fields})
	if err != nil {
		return fmt.Errorf("write status of attachment %s: %w", va.Name, err)
	}
	got, err := a.Client.StorageV1().VolumeAttachments().Patch(ctx, va.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("write status of attachment %s: %w", va.Name, err)
	}
	a.attachments.Wrote(got)
	return nil
}

func (a *attacher) keepVolume(ctx context.Context, v *corev1.PersistentVolume, attached bool) error {
	want, _ := attach.Volume(v, attached)
	if want == nil {
		return nil
	}
	got, err := a.Client.CoreV1().PersistentVolumes().Update(ctx, want, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("keep volume %s: %w", v.Name, err)
	}
	a.volumes.Wrote(got)
	return nil
}
