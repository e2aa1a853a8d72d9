package attacher

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

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
		Inputs: append(kube.Read("", "persistentvolumes", "nodes"), kube.Read("storage.k8s.io", "volumeattachments", "csinodes")...),
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
	nodes       *kube.Cache[*corev1.Node]
	lost        lost
}

// New returns the attacher for the drivers of a set. It must be made before
// the caches start.
func New(env controller.Env, drivers *csi.Set) *controller.Controller {
	a := &attacher{
		Env: env, drivers: drivers,
		Controller: &controller.Controller{Declaration: Declaration(), Workers: 100, RetryMin: 100 * time.Millisecond, Log: env.Log},
		volumes:    env.Caches.Volumes(), attachments: env.Caches.Attachments(), csiNodes: env.Caches.CSINodes(), nodes: env.Caches.Nodes(),
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
	drivers.Subscribe(func(name string) {
		for _, va := range a.attachments.List() {
			if va.Spec.Attacher == name {
				a.Add(controller.Key{Kind: kindAttachment, Name: va.Name})
			}
		}
	})
	return a.Controller
}

func (a *attacher) wake(all []*storagev1.VolumeAttachment) {
	for _, va := range all {
		a.Add(controller.Key{Kind: kindAttachment, Name: va.Name})
	}
}

// attachmentChanged wakes an attachment, but not for what only the attacher
// writes: that would defeat the pause between two tries (S3-015).
func (a *attacher) attachmentChanged(before, after *storagev1.VolumeAttachment) {
	switch {
	case after == nil:
		// S3-018.
		if name := before.Spec.Source.PersistentVolumeName; name != nil {
			a.Add(controller.Key{Kind: kindVolume, Name: *name})
		}
		if attach.Lost(before) {
			a.lost.put(before)
		}
		a.Add(controller.Key{Kind: kindAttachment, Name: before.Name})
	case before == nil || !before.DeletionTimestamp.Equal(after.DeletionTimestamp) || before.Status.Attached && !after.Status.Attached:
		a.Add(controller.Key{Kind: kindAttachment, Name: after.Name})
	}
}

func (a *attacher) reconcile(ctx context.Context, key controller.Key) (controller.Result, error) {
	if key.Kind == kindVolume {
		v, ok := a.volumes.Get(key.Name)
		if !ok {
			return controller.Result{}, nil
		}
		attached := len(a.attachments.By(kube.AttachmentsByVolume, v.Name)) > 0 || a.lost.of(v.Name)
		return controller.Result{}, a.keepVolume(ctx, v, attached)
	}
	va, ok := a.attachments.Get(key.Name)
	if !ok {
		va, ok = a.lost.get(key.Name)
	}
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
	if d, ok := a.drivers.Get(va.Spec.Attacher); ok {
		f.Ours, f.Trivial = true, !d.Controller.PublishUnpublish
	}
	csiNode, _ := a.csiNodes.Get(va.Spec.NodeName)
	node, _ := a.nodes.Get(va.Spec.NodeName)
	f.NodeID = attach.NodeID(csiNode, node, va.Spec.Attacher)
	return f
}

func (a *attacher) apply(ctx context.Context, f attach.Facts, p attach.Plan) error {
	switch p.Step {
	case attach.Mark:
		return a.mark(ctx, f.Attachment, nil)
	case attach.Attach:
		return a.attach(ctx, f, p)
	case attach.Detach:
		return a.detach(ctx, f, p)
	case attach.Release:
		return a.release(ctx, f.Attachment)
	case attach.Refuse:
		return a.refuse(ctx, f.Attachment, p.Because)
	case attach.Nothing:
	}
	return nil
}
