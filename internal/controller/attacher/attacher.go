package attacher

import (
	"cmp"
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

const (
	kindAttachment = "attachment"
	kindVolume     = "volume"
	kindDriver     = "driver"
)

// places is the number of attach calls, and of detach calls, that may be in flight at each driver;
// one namespace may have half of them.
const places = 200

// Declaration is what the attacher reads and writes.
func Declaration() controller.Declaration {
	return controller.Declaration{
		Name: "attacher",
		Inputs: append(kube.Read("", "persistentvolumes", "nodes"),
			kube.Read("storage.k8s.io", "volumeattachments", "csinodes", "csidrivers")...),
		Outputs: []kube.Access{
			kube.Write("storage.k8s.io", "volumeattachments", "patch").Only(
				kube.Finalizer(volume.FinalizerAttacherPrefix+"*"), kube.Annotation(volume.AnnNodeID),
				kube.Annotation(volume.AnnDetach)),
			kube.Write("storage.k8s.io", "volumeattachments/status", "patch").Only("status"),
			kube.Write("", "persistentvolumes", "patch").Shared(
				"there while the volume is attached; the provisioner takes it from a volume that its driver has deleted",
				kube.Finalizer(volume.FinalizerAttacherPrefix+"*")),
			kube.Write("", "secrets", "get"),
		},
	}
}

// Options are the attacher's dependencies in addition to its Env.
type Options struct {
	// Drivers holds the drivers that the attacher serves.
	Drivers *csi.Set
	// Scope says which volumes lose its finalizer by this attacher, whether or not their drivers are reached.
	Scope volume.Scope
	// ReconcileSync is the interval at which drivers list their attached volumes, if they can list them; 0 means a minute.
	ReconcileSync time.Duration
	// MaxEntries is how many volumes one call for that list returns, and 0 leaves it to the driver; nil means the
	// attacher's own number.
	MaxEntries *int32
	// DefaultFSType is the filesystem type of volumes whose objects name none.
	DefaultFSType string
	// Dummy, if set, is the name of an attacher without a driver: its attachments are marked as
	// attached, and released without a call (S3-028).
	Dummy string
}

type attacher struct {
	controller.Env
	*controller.Controller
	Options
	volumes     kube.Writer[*corev1.PersistentVolume]
	attachments kube.Writer[*storagev1.VolumeAttachment]
	csiNodes    *kube.Cache[*storagev1.CSINode]
	nodes       *kube.Cache[*corev1.Node]
	csiDrivers  *kube.Cache[*storagev1.CSIDriver]
	view        cluster.View
	lost        lost
	known       known
}

// New returns the attacher. It must be made before the caches start.
func New(env controller.Env, o Options) *controller.Controller { return build(env, o).Controller }

func build(env controller.Env, o Options) *attacher {
	o.ReconcileSync = cmp.Or(o.ReconcileSync, time.Minute)
	a := &attacher{
		Env: env, Options: o, known: newKnown(),
		Controller: &controller.Controller{
			Declaration: Declaration(), Workers: 100, Places: places, RetryMin: 100 * time.Millisecond,
			Pace: env.Pace, Log: env.Log,
		},
		volumes: env.Caches.WriteVolumes(env.Client), attachments: env.Caches.WriteAttachments(env.Client),
		csiNodes: env.Caches.CSINodes(), nodes: env.Caches.Nodes(), csiDrivers: env.Caches.CSIDrivers(),
	}
	a.view = cluster.View{Volumes: a.volumes, CSINodes: a.csiNodes, Nodes: a.nodes}
	a.Controller.Reconcile = a.reconcile
	a.watch()
	return a
}

func (a *attacher) watch() {
	// A volume without an attachment may be deleted, so a lost attachment must be known before the
	// cache shows its deletion.
	a.attachments.BeforeDelete(func(deleted *storagev1.VolumeAttachment) {
		if attach.DeletedWithoutDetach(deleted) {
			a.lost.put(deleted)
		}
	})
	a.attachments.Watch(a.attachmentChanged)
	a.volumes.Watch(func(before, v *corev1.PersistentVolume) {
		if v != nil && v.DeletionTimestamp != nil {
			a.Add(controller.Key{Kind: kindVolume, Name: v.Name})
		}
		if before == nil {
			a.enqueue(a.attachments.By(cluster.AttachmentsByVolume, v.Name))
		}
	})
	a.csiNodes.Watch(func(_, n *storagev1.CSINode) {
		if n != nil {
			a.enqueue(a.attachments.By(cluster.AttachmentsByNode, n.Name))
		}
	})
	a.nodes.Watch(func(before, after *corev1.Node) {
		a.enqueue(a.lost.on(cmp.Or(after, before).Name))
	})
	a.Drivers.Subscribe(func(name string) {
		for _, va := range a.attachments.List() {
			if va.Spec.Attacher == name {
				a.Add(controller.Key{Kind: kindAttachment, Name: va.Name})
			}
		}
		a.Add(controller.Key{Kind: kindDriver, Name: name})
	})
	for _, name := range a.Drivers.Names() {
		a.Add(controller.Key{Kind: kindDriver, Name: name})
	}
}

func (a *attacher) enqueue(all []*storagev1.VolumeAttachment) {
	for _, va := range all {
		a.Add(controller.Key{Kind: kindAttachment, Name: va.Name})
	}
}

// attachmentChanged queues an attachment, but not for changes that only the attacher makes: that
// would defeat the back-off (S3-015).
func (a *attacher) attachmentChanged(before, after *storagev1.VolumeAttachment) {
	switch {
	case after == nil:
		// S3-018.
		if name := before.Spec.Source.PersistentVolumeName; name != nil {
			a.Add(controller.Key{Kind: kindVolume, Name: *name})
		}
		a.known.forget(before.UID)
		a.Add(controller.Key{Kind: kindAttachment, Name: before.Name})
	case before == nil || !before.DeletionTimestamp.Equal(after.DeletionTimestamp) ||
		before.Annotations[volume.AnnLostWith] != after.Annotations[volume.AnnLostWith] ||
		before.Status.Attached && !after.Status.Attached || attach.LostFinalizer(before, after):
		a.Add(controller.Key{Kind: kindAttachment, Name: after.Name})
	}
}

func (a *attacher) reconcile(ctx context.Context, key controller.Key) (controller.Result, error) {
	switch key.Kind {
	case kindDriver:
		return controller.Result{After: a.compare(ctx, key.Name)}, nil
	case kindVolume:
		v, ok := a.volumes.Get(key.Name)
		if !ok || !a.Scope.Has(provision.MadeOn(v)) && !(a.Scope.Has("") && provision.IsLost(v)) {
			return controller.Result{}, nil
		}
		attached := len(a.attachments.By(cluster.AttachmentsByVolume, v.Name)) > 0 || a.lost.of(v.Name)
		return controller.Result{}, a.keepVolume(ctx, v, attached)
	}
	va, ok := a.attachments.Get(key.Name)
	lost := !ok
	if lost {
		va, ok = a.lost.get(key.Name)
	}
	if !ok {
		return controller.Result{}, nil
	}
	facts := a.gather(va, lost)
	plan := attach.Attachment(facts)
	if pause := a.enterLane(facts, plan); pause > 0 {
		return controller.Result{After: pause}, nil
	}
	about := csi.Subject{Node: va.Spec.NodeName}
	if v := facts.Volume; v != nil {
		about.Volume, about.Claim = v.Name, cluster.ClaimOf(v)
	}
	return controller.Result{}, a.apply(csi.About(ctx, about), facts, plan)
}

// enterLane enters the lane of the plan's call, if it has one; see Controller.Enter.
func (a *attacher) enterLane(f attach.Facts, p attach.Plan) time.Duration {
	va := f.Attachment
	lane := controller.Lane{Driver: va.Spec.Attacher, Call: "attach"}
	switch {
	case p.Step == attach.Detach:
		lane.Call = "detach"
	case p.Step != attach.Attach:
		return 0
	}
	if f.Volume != nil && f.Volume.Spec.ClaimRef != nil {
		lane.Namespace = f.Volume.Spec.ClaimRef.Namespace
	}
	return a.Enter(controller.Key{Kind: kindAttachment, Name: va.Name}, lane,
		func(b volume.Because) { a.Events.Warn(va, b) })
}

func (a *attacher) gather(va *storagev1.VolumeAttachment, lost bool) attach.Facts {
	f := attach.AttachmentFacts(a.view, va)
	if lost {
		n, _ := a.nodes.Get(va.Spec.NodeName)
		f.Mounted = attach.MountedOn(n, va, f.Volume)
	}
	f.Again = a.known.whyMissing(va.UID) != ""
	f.Lost = a.Scope.Has("") && attach.IsLost(f)
	if d, ok := a.Drivers.For(va.Spec.Attacher, attach.ServedBy(f)); ok {
		f.Reachable, f.NoControllerPublish = true, !d.Controller.PublishUnpublish
	} else if a.Dummy != "" && va.Spec.Attacher == a.Dummy {
		f.Reachable, f.NoControllerPublish = true, true
	}
	return f
}

func (a *attacher) apply(ctx context.Context, f attach.Facts, p attach.Plan) error {
	switch p.Step {
	case attach.Mark:
		return a.settle(ctx, p.Step, f.Attachment, answerOf(nil), nil)
	case attach.Attach:
		return a.attach(ctx, f, p)
	case attach.Detach:
		return a.detach(ctx, f, p)
	case attach.Release:
		return a.release(ctx, f.Attachment)
	case attach.Refuse:
		return a.write(ctx, f.Attachment, attach.Refused(f.Attachment, p.Because, metav1.Now()))
	case attach.Nothing:
	}
	return nil
}
