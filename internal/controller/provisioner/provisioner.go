package provisioner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

const (
	// Claims are worked on by UID: an intent outlives its claim.
	kindClaim  = "claim"
	kindVolume = "volume"
	kindLog    = "intents"
	// Snapshots are looked at for their finalizer only.
	kindSnapshot = "snapshot"
)

const (
	// workers is how much is looked at and written at once, beside the calls of
	// drivers.
	workers = 100
	// firstPause is the pause before a call that failed is repeated; it doubles.
	firstPause = 100 * time.Millisecond
	// sweepPause is how long a resolved intent may stand in the log, so that
	// new ones can take its place without a write of its own.
	sweepPause = time.Second
	// patience is how long a driver may take before the claim's owner is told
	// that it works.
	patience = 2 * time.Second
	lateness = 10 * time.Second
)

// Intents is where the provisioner of a whole control plane keeps what it has
// begun. One beside a driver has another log, that nobody else writes.
func Intents() kube.LogPlace {
	return kube.LogPlace{Namespace: volume.NamespaceSystem, Name: "volplane-intents"}
}

// Declaration is what the provisioner of a whole control plane reads and
// writes.
func Declaration() controller.Declaration { return DeclarationWith(Intents()) }

// DeclarationWith is what a provisioner with that log reads and writes.
func DeclarationWith(intents kube.LogPlace) controller.Declaration {
	return controller.Declaration{
		Name: "provisioner",
		Inputs: append(kube.Read("", "persistentvolumeclaims", "persistentvolumes", "nodes"),
			kube.Read("storage.k8s.io", "storageclasses", "csinodes", "volumeattachments")...),
		Outputs: append(intents.Access(),
			kube.Write("", "persistentvolumeclaims", "update").Only(kube.Finalizer(volume.FinalizerCloning)).
				Shared("takes away a node on which there can be no volume", kube.Annotation(volume.AnnSelectedNode)),
			kube.Write("", "persistentvolumes", "get", "create", "update", "patch", "delete").
				Only(kube.Finalizer(volume.FinalizerProvisioner)).Shared(
				"of a volume that its driver has deleted, in one write, if they are still what it has read",
				kube.Finalizer(volume.FinalizerVolumeProtection), kube.Finalizer(volume.FinalizerAttacherPrefix+"*")),
			kube.Write("", "secrets", "get"),
			kube.Write("storage.k8s.io", "volumeattributesclasses", "get"),
			kube.Write(volume.GroupSnapshot, volume.ResourceSnapshots, "get", "list", "update").
				Only(kube.Finalizer(volume.FinalizerRestoring)),
			kube.Write(volume.GroupSnapshot, volume.ResourceSnapshotContents, "get"),
		),
	}
}

// Options say what a provisioner works with beside its Env.
type Options struct {
	// Drivers are those that the process reaches.
	Drivers *csi.Set
	// Requests are what a binder of the same process asks for.
	Requests *controller.Requests
	// Protects says that volumes are protected by this process, too: then
	// their finalizers go in one write.
	Protects bool
	// Intents is where the log is.
	Intents kube.LogPlace
	// Lateness is how long a driver may be away that may have made a volume before
	// that is told; 0 is ten seconds.
	Lateness time.Duration
}

type provisioner struct {
	controller.Env
	*controller.Controller
	Options
	log     *kube.IntentLog
	claims  kube.Writer[*corev1.PersistentVolumeClaim]
	volumes kube.Writer[*corev1.PersistentVolume]
	view    cluster.View
	// old are the claims whose intents were found in the log, doubtful those whose
	// drivers said no and may have made a volume, missing when it was seen of those
	// with an intent that their drivers are not there, by UID: no object says so.
	old, doubtful, missing sync.Map
	// handles are the ids of drivers' volumes whose objects are being written, which
	// no cache shows yet.
	handles sync.Map
	refused refusals
	sources sources
}

// New returns the provisioner. It must be made before the caches start.
func New(env controller.Env, o Options) *controller.Controller {
	p := &provisioner{
		Env: env, Options: o, log: kube.NewIntentLog(env.Client, o.Intents),
		Controller: &controller.Controller{
			Declaration: DeclarationWith(o.Intents), Workers: workers, Places: places, RetryMin: firstPause, Log: env.Log,
		},
		claims: env.Caches.WriteClaims(env.Client), volumes: env.Caches.WriteVolumes(env.Client),
		view: cluster.View{
			Claims: env.Caches.Claims(), Volumes: env.Caches.Volumes(), Classes: env.Caches.Classes(), Nodes: env.Caches.Nodes(),
			CSINodes: env.Caches.CSINodes(), Attachments: env.Caches.Attachments(),
		},
	}
	p.Controller.Reconcile, p.Controller.Closing = p.reconcile, p.log.Sweep
	p.Add(controller.Key{Kind: kindLog})
	p.Add(controller.Key{Kind: kindSnapshot})
	p.watch()
	p.Drivers.Subscribe(p.driverAppeared)
	p.Requests.Serve(p.serves, p.wakeClaim)
	return p.Controller
}

func (p *provisioner) watch() {
	p.claims.Watch(p.claimChanged)
	p.volumes.Watch(p.volumeChanged)
	p.Caches.Classes().Watch(func(_, class *storagev1.StorageClass) {
		if class != nil {
			p.wakeClaims(func(c *corev1.PersistentVolumeClaim) bool { name, _ := bind.ClassOf(c); return name == class.Name })
		}
	})
	p.Caches.Attachments().Watch(func(before, after *storagev1.VolumeAttachment) {
		if after == nil && before.Spec.Source.PersistentVolumeName != nil {
			p.Add(controller.Key{Kind: kindVolume, Name: *before.Spec.Source.PersistentVolumeName})
		}
	})
	p.Caches.CSINodes().Watch(func(before, after *storagev1.CSINode) {
		if after != nil && (before == nil || !equality.Semantic.DeepEqual(before.Spec, after.Spec)) {
			p.wakeClaims(func(c *corev1.PersistentVolumeClaim) bool { return c.Spec.VolumeName == "" })
		}
	})
}

// serves says whether volumes of the driver are made here.
func (p *provisioner) serves(driver string) bool {
	d, ok := p.Drivers.Get(driver)
	return ok && lacks(d) == ""
}

func (p *provisioner) wakeClaim(uid types.UID) {
	p.Add(controller.Key{Kind: kindClaim, Name: string(uid)})
}

func (p *provisioner) claimChanged(before, after *corev1.PersistentVolumeClaim) {
	if before != nil && (after == nil || after.Spec.VolumeName != before.Spec.VolumeName) {
		// Nothing is deleted that a claim names.
		for _, v := range p.volumes.By(cluster.VolumesByClaim, cluster.Key(before)) {
			p.Add(controller.Key{Kind: kindVolume, Name: v.Name})
		}
	}
	switch {
	case after == nil:
		p.Requests.Forget(before.UID)
		p.refused.forget(before.UID)
		p.wakeClaim(before.UID)
	case after.Spec.VolumeName != "":
		p.Requests.Forget(after.UID)
		p.wakeClaim(after.UID)
		if after.Status.Phase == corev1.ClaimBound && (before == nil || before.Status.Phase != corev1.ClaimBound) {
			// Copies of it can be made now.
			for _, c := range p.claims.By(cluster.UnboundBySource, cluster.Key(after)) {
				p.wakeClaim(c.UID)
			}
		}
	default:
		p.wakeClaim(after.UID)
	}
}

// volumeChanged wakes the volume and the claim whose volume it is.
func (p *provisioner) volumeChanged(_, v *corev1.PersistentVolume) {
	if v == nil {
		return
	}
	p.Add(controller.Key{Kind: kindVolume, Name: v.Name})
	if r := v.Spec.ClaimRef; r != nil && r.UID != "" {
		p.wakeClaim(r.UID)
	}
}

func (p *provisioner) driverAppeared(name string) {
	// It may answer otherwise than the one before it.
	p.refused.forgetAll()
	for _, in := range p.open() {
		if in.Driver == name {
			p.wakeClaim(in.Claim.UID)
		}
	}
	p.wakeClaims(func(c *corev1.PersistentVolumeClaim) bool { return c.Spec.VolumeName == "" })
	for _, v := range p.volumes.List() {
		if provision.DeleterOf(v) == name {
			p.Add(controller.Key{Kind: kindVolume, Name: v.Name})
		}
	}
	p.Add(controller.Key{Kind: kindLog})
	p.Add(controller.Key{Kind: kindSnapshot})
}

func (p *provisioner) wakeClaims(which func(*corev1.PersistentVolumeClaim) bool) {
	for _, c := range p.claims.List() {
		if which(c) {
			p.wakeClaim(c.UID)
		}
	}
}

func (p *provisioner) reconcile(ctx context.Context, key controller.Key) (controller.Result, error) {
	if key.Kind == kindVolume {
		return p.reconcileVolume(ctx, key.Name)
	}
	if err := p.load(ctx); err != nil {
		return controller.Result{}, err
	}
	switch key.Kind {
	case kindLog:
		return controller.Result{}, p.log.Sweep(ctx)
	case kindSnapshot:
		return controller.Result{}, p.reconcileSnapshot(ctx, key.Namespace, key.Name)
	default:
		return p.reconcileClaim(ctx, key.Name)
	}
}

// load reads the log if it has to be read, and wakes what is found open in it.
func (p *provisioner) load(ctx context.Context) error {
	open, err := p.log.Load(ctx)
	for _, uid := range open {
		p.old.Store(types.UID(uid), nil)
		p.wakeClaim(types.UID(uid))
	}
	return err
}

func (p *provisioner) reconcileClaim(ctx context.Context, uid string) (controller.Result, error) {
	claim, exists := p.claims.ByUID(uid)
	text, begun := p.log.Get(uid)
	if !exists && !begun {
		return controller.Result{}, nil
	}
	if exists && !begun && claim.DeletionTimestamp != nil {
		return controller.Result{}, p.releaseClaim(ctx, claim)
	}
	b := provision.Begun{Asked: p.Requests.Asked(types.UID(uid))}
	if begun {
		var err error
		if b.Intent, err = provision.ParseIntent(text); err != nil {
			return controller.Result{}, err
		}
		_, b.Doubtful = p.doubtful.Load(types.UID(uid))
	}
	f, err := p.gather(ctx, provision.ClaimFactsOf(p.view, claim, b))
	if err != nil {
		return controller.Result{}, err
	}
	plan := provision.Claim(f)
	if result, waits := p.waits(claim, plan); waits {
		return result, nil
	}
	return controller.Result{}, p.apply(ctx, claim, plan)
}

// waits says whether a plan is not for now, and when to look again.
func (p *provisioner) waits(claim *corev1.PersistentVolumeClaim, plan provision.Plan) (controller.Result, bool) {
	if left := p.pause(claim, plan); left > 0 {
		return controller.Result{After: left}, true
	}
	if plan.Intent != nil && plan.Because.Reason == volume.ReasonDriverMissing {
		return p.await(plan), true
	}
	left := p.turn(plan)
	return controller.Result{After: left}, left > 0
}

// await leaves an intent to its driver, which may have made a volume and is not
// there. After a start drivers come a little later.
func (p *provisioner) await(plan provision.Plan) controller.Result {
	since, _ := p.missing.LoadOrStore(plan.Intent.Claim.UID, time.Now())
	if left := cmp.Or(p.Lateness, lateness) - time.Since(since.(time.Time)); left > 0 {
		return controller.Result{After: left}
	}
	p.Events.Warn(&plan.Intent.Claim, plan.Because)
	return controller.Result{}
}

// pause says how long a plan waits because the same has failed before.
func (p *provisioner) pause(claim *corev1.PersistentVolumeClaim, plan provision.Plan) time.Duration {
	now := time.Now()
	switch {
	case plan.Step == provision.Record, plan.Step == provision.Create:
		return p.refused.left(plan.Intent.Claim.UID, plan.Intent.Question(), now)
	case plan.Reschedule:
		node := claim.Annotations[volume.AnnSelectedNode]
		left := p.refused.left(claim.UID, node, now)
		if left == 0 {
			p.refused.add(claim.UID, node, now)
		}
		return left
	}
	return 0
}

// gather adds what the claim's driver, if it is here, and the API server say.
func (p *provisioner) gather(ctx context.Context, f provision.ClaimFacts) (provision.ClaimFacts, error) {
	d, ok := p.Drivers.Get(f.Driver)
	if !ok {
		return f, nil
	}
	f.Ours, f.Lacks = true, lacks(d)
	if f.Lacks != "" || f.Settles() {
		return f, nil
	}
	if f.Topology = d.Plugin.AccessibilityConstraints; f.Topology {
		f.Places = f.PlacesOf(p.view)
	}
	f.Source.Clones, f.Source.Restores, f.Modifies = d.Controller.Clone, d.Controller.Snapshot, d.Controller.Modify
	var err error
	if f.Source.Restores && provision.IsSnapshot(f.Claim) {
		if f.Source.Snapshot, err = p.snapshot(ctx, f.Claim.Namespace, f.Claim.Spec.DataSource.Name); err != nil {
			return f, err
		}
	}
	f.Attributes, err = p.attributes(ctx, f.Claim)
	return f, err
}

// lacks names the capability without which a driver makes and deletes no
// volumes; "" is none.
func lacks(d *csi.Driver) string {
	switch {
	case !d.Plugin.ControllerService:
		return "CONTROLLER_SERVICE"
	case !d.Controller.CreateDelete:
		return "CREATE_DELETE_VOLUME"
	}
	return ""
}

func (p *provisioner) apply(ctx context.Context, claim *corev1.PersistentVolumeClaim, plan provision.Plan) error {
	switch plan.Step {
	case provision.Record, provision.Create:
		// A Secret that is missing is found before anything may have been
		// made that could not be undone without it.
		secret, err := p.secret(ctx, plan.Intent)
		if err != nil {
			return err
		}
		if err := p.record(ctx, plan); err != nil {
			return err
		}
		return p.create(ctx, claim, plan, secret)
	case provision.Undo:
		return p.undo(ctx, plan.Intent)
	case provision.Finish:
		p.resolve(plan.Intent)
		return nil
	case provision.Nothing:
	}
	if plan.Fault && claim != nil {
		p.Events.Warn(claim, plan.Because)
	}
	if plan.Reschedule {
		return p.reschedule(ctx, claim)
	}
	if plan.Fault {
		// Not all that can mend it is watched: the source of a clone, the
		// labels of a node (S4-032, S4-035).
		return fmt.Errorf("provision: %w: %s", errFault, plan.Because.Message)
	}
	return nil
}

// record puts a new intent on the disk, and protects what the volume is made
// from.
func (p *provisioner) record(ctx context.Context, plan provision.Plan) error {
	in := plan.Intent
	if plan.Step == provision.Record {
		in.Begun = metav1.Now()
		if err := p.log.Put(ctx, string(in.Claim.UID), in.String()); err != nil {
			return err
		}
	}
	err := p.protect(ctx, in)
	if !errors.Is(err, errSourceGone) {
		return err
	}
	return p.settle(ctx, in, provision.Creation{}, provision.AfterSourceGone(plan, err.Error()), err)
}

// resolve ends an intent: its volume object exists, or nothing does.
func (p *provisioner) resolve(in *provision.Intent) {
	p.doubtful.Delete(in.Claim.UID)
	p.missing.Delete(in.Claim.UID)
	p.log.Done(string(in.Claim.UID))
	pause := sweepPause
	if _, old := p.old.LoadAndDelete(in.Claim.UID); old {
		// What an earlier life left is not waited for twice.
		pause = 0
	}
	p.AddAfter(controller.Key{Kind: kindLog}, pause)
	p.releaseSource(in)
}

// reschedule has another node selected for a claim.
func (p *provisioner) reschedule(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	_, err := p.claims.Update(ctx, provision.Unselected(claim))
	return err
}

// hold keeps a handle for the intent's volume until release is called, and
// returns the name of another volume that has it already, or is being saved
// with it at this moment; "" is none.
func (p *provisioner) hold(in *provision.Intent, handle string) (taken string, release func()) {
	key := volume.Key(in.Driver, handle)
	if other, held := p.handles.LoadOrStore(key, in.Name); held {
		return other.(string), func() {}
	}
	release = func() { p.handles.Delete(key) }
	for _, v := range p.volumes.By(cluster.VolumesByHandle, key) {
		if v.Name != in.Name {
			return v.Name, release
		}
	}
	return "", release
}
