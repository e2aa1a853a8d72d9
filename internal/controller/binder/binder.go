package binder

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

const (
	kindClaim  = "claim"
	kindVolume = "volume"
	kindClass  = "class"
)

// offerPause is how long a volume waits that could not be bound before other
// claims are woken for it.
const offerPause = time.Second

// Declaration is what the binder reads and writes.
func Declaration() controller.Declaration {
	return controller.Declaration{
		Name: "binder",
		Inputs: append(kube.Read("", "persistentvolumeclaims", "persistentvolumes", "pods"),
			kube.Read("storage.k8s.io", "storageclasses")...),
		Outputs: []kube.Access{
			kube.Write("", "persistentvolumeclaims", "get", "update").Only("spec.volumeName", "spec.storageClassName",
				kube.Annotation(volume.AnnBindCompleted), kube.Annotation(volume.AnnBoundByController),
				kube.Annotation(volume.AnnStorageProvisioner), kube.Annotation(volume.AnnBetaStorageProvisioner)),
			kube.Write("", "persistentvolumeclaims/status", "update").
				Only("status.phase", "status.accessModes", "status.currentVolumeAttributesClassName").
				Shared("once, when the claim becomes Bound; from then on it grows", "status.capacity"),
			kube.Write("", "persistentvolumes", "update").Shared(
				"completes and undoes references, over the version that it has read: who comes second decides anew",
				"spec.claimRef", kube.Annotation(volume.AnnBoundByController)),
			kube.Write("", "persistentvolumes/status", "update").Only("status"),
		},
	}
}

type binder struct {
	controller.Env
	*controller.Controller
	claims  kube.Writer[*corev1.PersistentVolumeClaim]
	volumes kube.Writer[*corev1.PersistentVolume]
	classes *kube.Cache[*storagev1.StorageClass]
	pods    *kube.Cache[*corev1.Pod]
	// view finds objects in these caches.
	view cluster.View
	// requests go to a provisioner of the same process.
	requests *controller.Requests
	free     free
}

// New returns the binder. It must be made before the caches start.
func New(env controller.Env, requests *controller.Requests) *controller.Controller {
	b := &binder{
		Env: env, requests: requests,
		Controller: &controller.Controller{Declaration: Declaration(), Workers: 50, Log: env.Log},
		free:       free{volumes: bind.NewFree()},
		claims:     env.Caches.WriteClaims(env.Client), volumes: env.Caches.WriteVolumes(env.Client),
		classes: env.Caches.Classes(), pods: env.Caches.Pods(),
	}
	b.view = cluster.View{Claims: b.claims, Volumes: b.volumes, Classes: b.classes, Pods: b.pods}
	b.Controller.Reconcile = b.reconcile
	b.claims.Watch(func(before, after *corev1.PersistentVolumeClaim) { b.claimChanged(before, after) })
	b.volumes.Watch(b.volumeChanged)
	b.classes.Watch(func(_, after *storagev1.StorageClass) { b.classChanged(after) })
	b.pods.Watch(b.podChanged)
	return b.Controller
}

// claimChanged wakes the claim and the volumes that refer to it.
func (b *binder) claimChanged(before, after *corev1.PersistentVolumeClaim) {
	c := after
	if c == nil {
		c = before
	}
	b.Add(controller.Key{Kind: kindClaim, Namespace: c.Namespace, Name: c.Name})
	for _, v := range b.volumes.By(cluster.VolumesByClaim, cluster.Key(c)) {
		b.Add(controller.Key{Kind: kindVolume, Name: v.Name})
	}
}

// volumeChanged wakes the volume, its claim, the claims that name it, and, for
// a volume that is free, the class in which claims may wait for one.
func (b *binder) volumeChanged(before, after *corev1.PersistentVolume) {
	v := after
	if v == nil {
		v = before
	}
	b.Add(controller.Key{Kind: kindVolume, Name: v.Name})
	if r := v.Spec.ClaimRef; r != nil {
		b.Add(controller.Key{Kind: kindClaim, Namespace: r.Namespace, Name: r.Name})
	}
	for _, c := range b.claims.By(cluster.ClaimsByVolume, v.Name) {
		b.Add(controller.Key{Kind: kindClaim, Namespace: c.Namespace, Name: c.Name})
	}
	if after == nil {
		b.free.remove(v.Name)
		return
	}
	if b.free.set(after) {
		b.Add(controller.Key{Kind: kindClass, Name: bind.VolumeClassOf(after)})
	}
}

// offer wakes the claims of a class for which there is a free volume now.
// Volumes that come in numbers cost few looks: a class waits in the queue once.
func (b *binder) offer(class string) {
	for _, c := range b.claims.By(cluster.UnboundByClass, class) {
		if b.free.has(c) {
			b.Add(controller.Key{Kind: kindClaim, Namespace: c.Namespace, Name: c.Name})
		}
	}
}

// classChanged wakes the claims of a class and those without any, for which it
// may be the default now.
func (b *binder) classChanged(after *storagev1.StorageClass) {
	if after != nil {
		b.wakeClass(after.Name)
		b.wakeClass("")
	}
}

func (b *binder) wakeClass(class string) {
	for _, c := range b.claims.By(cluster.UnboundByClass, class) {
		b.Add(controller.Key{Kind: kindClaim, Namespace: c.Namespace, Name: c.Name})
	}
}

// podChanged wakes the claims of a Pod that appears: what they wait for
// changes.
func (b *binder) podChanged(before, after *corev1.Pod) {
	if before != nil && after != nil {
		return
	}
	p := after
	if p == nil {
		p = before
	}
	for _, name := range cluster.ClaimNames(p) {
		b.Add(controller.Key{Kind: kindClaim, Namespace: p.Namespace, Name: name})
	}
}

func (b *binder) reconcile(ctx context.Context, key controller.Key) (controller.Result, error) {
	switch key.Kind {
	case kindClass:
		b.offer(key.Name)
		return controller.Result{}, nil
	case kindVolume:
		return controller.Result{}, b.reconcileVolume(ctx, key.Name)
	default:
		return controller.Result{}, b.reconcileClaim(ctx, key.Namespace+"/"+key.Name)
	}
}

func (b *binder) reconcileVolume(ctx context.Context, name string) error {
	v, ok := b.volumes.Get(name)
	if !ok {
		return nil
	}
	facts, err := b.gatherVolume(ctx, v)
	if err != nil {
		return err
	}
	return b.apply(ctx, v, bind.Volume(facts))
}

func (b *binder) reconcileClaim(ctx context.Context, key string) error {
	claim, ok := b.claims.Get(key)
	if !ok {
		return nil
	}
	facts := b.gatherClaim(claim)
	taken := b.take(claim, facts)
	if taken != nil {
		facts.Candidates = append(facts.Candidates, taken)
	}
	plan := bind.Claim(facts)
	if plan.Ask != "" {
		b.requests.Ask(claim.UID, plan.Ask)
	}
	err := b.apply(ctx, claim, plan)
	if taken != nil {
		b.putBack(taken.Name, err)
	}
	return err
}

// take returns the best free volume for a claim, and keeps other claims that
// are looked at meanwhile from it; nil is none, or none needed: one that was bound
// once gets no other one, and what is put back wakes all that could have it.
func (b *binder) take(claim *corev1.PersistentVolumeClaim, f bind.ClaimFacts) *corev1.PersistentVolume {
	if !f.TakesFree() {
		return nil
	}
	for {
		name := b.free.take(claim)
		if name == "" {
			return nil
		}
		// The set may be older than a write of ours.
		if v, ok := b.volumes.Get(name); ok && bind.IsFree(v) {
			return v
		}
	}
}

// putBack offers a volume again that was taken for a claim and has not become
// its own.
func (b *binder) putBack(name string, err error) {
	v, ok := b.volumes.Get(name)
	if !ok || !b.free.set(v) {
		return
	}
	pause := time.Duration(0)
	if err != nil {
		// The claim itself is tried again after a pause of its own.
		pause = offerPause
	}
	b.AddAfter(controller.Key{Kind: kindClass, Name: bind.VolumeClassOf(v)}, pause)
}

func (b *binder) gatherClaim(claim *corev1.PersistentVolumeClaim) bind.ClaimFacts {
	f := bind.ClaimFactsOf(b.view, claim)
	f.Served = f.Class != nil && b.requests.Served(f.Class.Provisioner)
	return f
}

// gatherVolume asks the API server itself before it believes that a claim has
// gone: to release a volume is the first step of deleting its data.
func (b *binder) gatherVolume(ctx context.Context, v *corev1.PersistentVolume) (bind.VolumeFacts, error) {
	f := bind.VolumeFactsOf(b.view, v)
	if ref := v.Spec.ClaimRef; ref == nil || ref.UID == "" || f.Claim != nil || v.Status.Phase == corev1.VolumeReleased ||
		v.Status.Phase == corev1.VolumeFailed {
		return f, nil
	}
	ref := v.Spec.ClaimRef
	live, err := b.Client.CoreV1().PersistentVolumeClaims(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		live = nil
	case err != nil:
		return f, fmt.Errorf("get claim %s/%s: %w", ref.Namespace, ref.Name, err)
	}
	return f.With(live), nil
}

// apply makes the writes in order. A write carries the version that the one
// before it left.
func (b *binder) apply(ctx context.Context, about runtime.Object, p bind.Plan) error {
	var volumeVersion, claimVersion string
	for _, w := range p.Writes {
		var err error
		switch {
		case w.Volume != nil:
			volumeVersion, err = write(ctx, b.volumes.Update, w.Volume, volumeVersion)
		case w.VolumeStatus != nil:
			volumeVersion, err = write(ctx, b.volumes.UpdateStatus, w.VolumeStatus, volumeVersion)
		case w.Claim != nil:
			claimVersion, err = write(ctx, b.claims.Update, w.Claim, claimVersion)
		default:
			claimVersion, err = write(ctx, b.claims.UpdateStatus, w.ClaimStatus, claimVersion)
		}
		if err != nil {
			return err
		}
	}
	b.tell(about, p)
	return nil
}

// write writes an object over a version, if that is not its own, and returns the
// version that it has then.
func write[T kube.Object](
	ctx context.Context, do func(context.Context, T) (T, error), o T, version string,
) (string, error) {
	if version != "" {
		o.SetResourceVersion(version)
	}
	got, err := do(ctx, o)
	if err != nil {
		return "", err
	}
	return got.GetResourceVersion(), nil
}

func (b *binder) tell(about runtime.Object, p bind.Plan) {
	switch p.Event {
	case bind.Normal:
		b.Events.Note(about, p.Because)
	case bind.Warning:
		b.Events.Warn(about, p.Because)
	case bind.Silent:
	}
	if len(p.Writes) > 0 {
		b.Env.Log.Debug("bind", "reason", p.Because.Reason, "message", p.Because.Message)
	}
}
