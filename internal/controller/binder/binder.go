package binder

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/decide/protect"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

const (
	kindClaim  = "claim"
	kindVolume = "volume"
	kindClass  = "class"
)

// offerPause is the pause between a failure to bind a volume and the queueing of other claims that
// could use it.
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
				Only("status.phase", "status.accessModes").
				Shared("once, when the claim becomes Bound; from then on the modifier does",
					"status.currentVolumeAttributesClassName").
				Shared("once, when the claim becomes Bound; from then on it grows", "status.capacity").
				Shared("once, when the claim becomes Bound; from then on the protection does",
					kube.Condition(corev1.PersistentVolumeClaimUnused)),
			kube.Write("", "persistentvolumes", "update").Shared(
				"completes and undoes references, over the version that it has read: the second one decides again",
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
	// view looks up objects in these caches.
	view cluster.View
	// requests passes claims to the provisioner of this process.
	requests *controller.Requests
	// free holds the volumes that claims may be bound to.
	free free
	busy busy
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

func (b *binder) enqueueClaim(namespace, name string) {
	b.Add(controller.Key{Kind: kindClaim, Namespace: namespace, Name: name})
}

// claimChanged queues the claim and the volumes that refer to it.
func (b *binder) claimChanged(before, after *corev1.PersistentVolumeClaim) {
	c := controller.Latest(before, after)
	b.enqueueClaim(c.Namespace, c.Name)
	for _, v := range b.volumes.By(cluster.VolumesByClaim, cluster.Key(c)) {
		b.Add(controller.Key{Kind: kindVolume, Name: v.Name})
	}
}

// volumeChanged queues the volume, its claim, the claims that name it, and, if the volume is free,
// its class, whose claims may wait for it.
func (b *binder) volumeChanged(before, after *corev1.PersistentVolume) {
	v := controller.Latest(before, after)
	b.Add(controller.Key{Kind: kindVolume, Name: v.Name})
	if r := v.Spec.ClaimRef; r != nil {
		b.enqueueClaim(r.Namespace, r.Name)
	}
	for _, c := range b.claims.By(cluster.ClaimsByVolume, v.Name) {
		b.enqueueClaim(c.Namespace, c.Name)
	}
	if after == nil {
		b.free.remove(v.Name)
		return
	}
	if b.free.set(after) {
		b.Add(controller.Key{Kind: kindClass, Name: bind.VolumeClassOf(after)})
	}
}

// reconcileClass queues the claims of a class that a free volume fits. This is done under a key of
// the class, so that it happens once for many new volumes.
func (b *binder) reconcileClass(class string) {
	for _, c := range b.claims.By(cluster.UnboundByClass, class) {
		if b.free.has(c) {
			b.enqueueClaim(c.Namespace, c.Name)
		}
	}
}

// classChanged queues the claims of a class and the claims without a class, for which it may be the
// default now.
func (b *binder) classChanged(after *storagev1.StorageClass) {
	if after == nil {
		return
	}
	for _, class := range []string{after.Name, ""} {
		for _, c := range b.claims.By(cluster.UnboundByClass, class) {
			b.enqueueClaim(c.Namespace, c.Name)
		}
	}
}

// podChanged queues the claims of a Pod that was created or deleted: claims may wait for the first
// Pod that uses them.
func (b *binder) podChanged(before, after *corev1.Pod) {
	if before != nil && after != nil {
		return
	}
	p := controller.Latest(before, after)
	for _, name := range cluster.ClaimNames(p) {
		b.enqueueClaim(p.Namespace, name)
	}
}

func (b *binder) reconcile(ctx context.Context, key controller.Key) (controller.Result, error) {
	switch key.Kind {
	case kindClass:
		b.reconcileClass(key.Name)
		return controller.Result{}, nil
	case kindVolume:
		return controller.Result{}, b.reconcileVolume(ctx, key.Name)
	default:
		return b.reconcileClaim(ctx, key)
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
	// If its claim was written first, the status is being written, or was after it was read; then the key is queued.
	if b.busy.has(name) {
		return nil
	}
	if now, ok := b.volumes.Get(name); ok && now.ResourceVersion != v.ResourceVersion {
		return nil
	}
	return b.apply(ctx, v, bind.Volume(facts))
}

func (b *binder) reconcileClaim(ctx context.Context, key controller.Key) (result controller.Result, err error) {
	claim, ok := b.claims.Get(key.Namespace + "/" + key.Name)
	if !ok {
		return result, nil
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
	if plan.Event == bind.Lasting {
		if result.After = b.Lasts(key, plan.Because.Reason); result.After > 0 {
			plan.Event = bind.Silent
		}
	}
	err = b.apply(ctx, claim, plan)
	if taken != nil {
		b.putBack(taken.Name, err)
	}
	return result, err
}

// take returns the best free volume for a claim, or nil, and reserves it: claims that are reconciled at the same time
// cannot take it. It returns nil for a claim that cannot use a free volume, because putBack queues all claims that the
// volume fits.
func (b *binder) take(claim *corev1.PersistentVolumeClaim, f bind.ClaimFacts) *corev1.PersistentVolume {
	if !f.TakesFree() {
		return nil
	}
	for {
		name := b.free.take(claim)
		if name == "" {
			return nil
		}
		// The set of free volumes may be older than one of our writes.
		if v, ok := b.volumes.Get(name); ok && bind.IsFree(v) {
			return v
		}
	}
}

// putBack ends the reservation of a volume that take has returned. If the volume is still free, its
// class is queued.
func (b *binder) putBack(name string, err error) {
	v, ok := b.volumes.Get(name)
	if !ok || !b.free.set(v) {
		return
	}
	pause := time.Duration(0)
	if err != nil {
		// The claim itself is requeued with back-off.
		pause = offerPause
	}
	b.AddAfter(controller.Key{Kind: kindClass, Name: bind.VolumeClassOf(v)}, pause)
}

func (b *binder) gatherClaim(claim *corev1.PersistentVolumeClaim) bind.ClaimFacts {
	f := bind.ClaimFactsOf(b.view, claim)
	f.Served = f.Class != nil && b.requests.Served(f.Class.Provisioner, volume.SelectedNode(f.Claim.Annotations))
	return f
}

// gatherVolume reads the claim from the API server if the cache does not have it: to release a
// volume is the first step of deleting its data.
func (b *binder) gatherVolume(ctx context.Context, v *corev1.PersistentVolume) (bind.VolumeFacts, error) {
	f := bind.VolumeFactsOf(b.view, v)
	if ref := v.Spec.ClaimRef; ref == nil || ref.UID == "" || f.Claim != nil || bind.IsReleased(v) {
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

// versions are the versions of a volume and of a claim that were written last.
type versions struct{ volume, claim string }

// apply does the writes in order. Each write of an object is based on the version that the previous
// write has returned.
func (b *binder) apply(ctx context.Context, about runtime.Object, p bind.Plan) error {
	var last versions
	var beside sync.WaitGroup
	errs := make([]error, len(p.Writes))
	for i, w := range p.Writes {
		if i+1 < len(p.Writes) && p.Writes[i+1].Beside {
			name := w.VolumeStatus.Name
			b.busy.begin(name)
			beside.Go(func() {
				errs[i] = b.write(ctx, w, &last)
				if b.busy.end(name) {
					b.Add(controller.Key{Kind: kindVolume, Name: name})
				}
			})
			continue
		}
		errs[i] = b.write(ctx, w, &last)
		beside.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
	}
	b.recordEvent(about, p)
	return nil
}

func (b *binder) write(ctx context.Context, w bind.Write, last *versions) (err error) {
	switch {
	case w.Volume != nil:
		last.volume, err = write(ctx, b.volumes.Update, w.Volume, last.volume)
	case w.VolumeStatus != nil:
		last.volume, err = write(ctx, b.volumes.UpdateStatus, w.VolumeStatus, last.volume)
	case w.Claim != nil:
		last.claim, err = write(ctx, b.claims.Update, w.Claim, last.claim)
	default:
		last.claim, err = write(ctx, b.claims.UpdateStatus, b.withUnused(w.ClaimStatus), last.claim)
	}
	return err
}

// withUnused adds the condition Unused to a claim that becomes Bound: the protection, which keeps it from then on,
// would otherwise need another write of the claim.
func (b *binder) withUnused(c *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	unused := protect.Unused(c, b.pods.By(cluster.PodsByClaim, cluster.Key(c)), metav1.Now())
	if unused == nil {
		return c
	}
	others := slices.DeleteFunc(c.Status.Conditions,
		func(k corev1.PersistentVolumeClaimCondition) bool { return k.Type == unused.Type })
	c.Status.Conditions = append(others, *unused)
	return c
}

// write writes an object, based on the given version if it is not empty, and returns the new
// version.
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

func (b *binder) recordEvent(about runtime.Object, p bind.Plan) {
	switch p.Event {
	case bind.Normal, bind.Lasting:
		b.Events.Note(about, p.Because)
	case bind.Warning:
		b.Events.Warn(about, p.Because)
	case bind.Silent:
	}
	if len(p.Writes) > 0 {
		b.Env.Log.Debug("bind", "reason", p.Because.Reason, "message", p.Because.Message)
	}
}

// busy is the set of volumes whose status is being written together with their claims. The write of a claim queues its
// volume, whose status would then be written twice, and one of the writes refused. It is safe for concurrent use.
type busy struct {
	mu sync.Mutex
	// asked says, by name, whether a volume of the set was requested while it was busy.
	asked map[string]bool
}

// begin adds a volume.
func (b *busy) begin(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.asked == nil {
		b.asked = map[string]bool{}
	}
	b.asked[name] = false
}

// has says whether a volume is in the set, and remembers the request.
func (b *busy) has(name string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, in := b.asked[name]
	if in {
		b.asked[name] = true
	}
	return in
}

// end removes a volume, and says whether it was requested in between.
func (b *busy) end(name string) (asked bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	asked = b.asked[name]
	delete(b.asked, name)
	return asked
}

// free is the set of free volumes. It is safe for concurrent use.
type free struct {
	mu      sync.Mutex
	volumes *bind.Free
}

// set adds a volume if it is free, removes it otherwise, and says whether it is free.
func (f *free) set(v *corev1.PersistentVolume) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.volumes.Set(v)
	return bind.IsFree(v)
}

func (f *free) remove(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.volumes.Remove(name)
}

// has says whether a volume of the set fits a claim.
func (f *free) has(claim *corev1.PersistentVolumeClaim) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.volumes.Best(claim, nil) != nil
}

// take removes the best volume for a claim and returns its name; "" means that none fits.
func (f *free) take(claim *corev1.PersistentVolumeClaim) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	v := f.volumes.Best(claim, nil)
	if v == nil {
		return ""
	}
	f.volumes.Remove(v.Name)
	return v.Name
}
