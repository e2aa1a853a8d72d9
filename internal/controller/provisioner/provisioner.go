package provisioner

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
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
	// kindClaim is for claims by UID: an intent outlives its claim.
	kindClaim  = "claim"
	kindVolume = "volume"
	// kindLog is for the intent log.
	kindLog = "intents"
	// kindSnapshot is for the finalizers of snapshots.
	kindSnapshot = "snapshot"
)

const (
	// workers is the number of keys that are reconciled at once, beside the calls of drivers.
	workers = 100
	// firstPause is the pause after the first failure of a call; it doubles.
	firstPause = 100 * time.Millisecond
	// sweepPause is how long a resolved intent may stay in the log, so that a new intent can replace
	// it without a write of its own.
	sweepPause = time.Second
	// slowAfter is the duration of a call after which an event says that it is in flight.
	slowAfter = 2 * time.Second
	// defaultLateness is the default of Options.Lateness.
	defaultLateness = 10 * time.Second
)

// Declaration is what the provisioner of a standalone control plane reads and writes.
func Declaration() controller.Declaration { return DeclarationWith(Standalone()) }

// DeclarationWith is what a provisioner with the given logs reads and writes.
func DeclarationWith(intents Logs) controller.Declaration {
	return controller.Declaration{
		Name: "provisioner",
		Inputs: append(kube.Read("", "persistentvolumeclaims", "persistentvolumes", "nodes"),
			kube.Read("storage.k8s.io", "storageclasses", "csinodes", "volumeattachments")...),
		Outputs: append(intents.access(),
			kube.Write("", "persistentvolumeclaims", "update").
				Only(kube.Finalizer(volume.FinalizerCloning), kube.Annotation(volume.AnnAlphaSelectedNode),
					kube.Annotation(volume.AnnRefusedOn)).
				Shared("takes away a node on which there can be no volume, and names its own beside a driver on each node",
					kube.Annotation(volume.AnnSelectedNode)),
			kube.Write("", "persistentvolumes", "get", "create", "patch", "delete").
				Only(kube.Finalizer(volume.FinalizerProvisioner)).Shared(
				"of a volume that its driver has deleted, in one write that names them",
				kube.Finalizer(volume.FinalizerVolumeProtection), kube.Finalizer(volume.FinalizerAttacherPrefix+"*")),
			kube.Write("", "secrets", "get"),
			kube.Write("storage.k8s.io", "volumeattributesclasses", "get"),
			kube.Write(volume.GroupSnapshot, volume.ResourceSnapshots, "get", "list", "update").
				Only(kube.Finalizer(volume.FinalizerRestoring)),
			kube.Write(volume.GroupSnapshot, volume.ResourceSnapshotContents, "get"),
		),
	}
}

// Options are the provisioner's dependencies beside its Env.
type Options struct {
	// Drivers holds the drivers that this process can call.
	Drivers *csi.Set
	// Scope says which volumes belong to this process whose drivers it does not reach.
	Scope volume.Scope
	// Requests holds the requests of a binder in this process.
	Requests *controller.Requests
	// Protects says whether the protection controller runs in this process, too. Then the
	// provisioner removes the protection finalizer of a deleted volume together with its own.
	Protects bool
	// Attaches says whether the attacher runs in this process, too. Then the objects of volumes that can be attached
	// are created with its finalizer, which it would otherwise add with a write of its own, and takes away.
	Attaches bool
	// Intents says where the intents are.
	Intents Logs
	// Choices are what the user of the provisioner has chosen.
	Choices provision.Options
	// WithoutTopology says that drivers are not told where a volume is to be.
	WithoutTopology bool
	// Contest says how claims are taken for which the provisioners of several nodes compete.
	Contest Contest
	// Identity is written to the attributes of volumes; "" for none.
	Identity string
	// Selects says that volplane selects the nodes of claims, and not the scheduler of a cluster.
	Selects bool
	// Meter, if set, counts attempts.
	Meter Meter
	// Lateness is how long the driver of an unresolved intent may be missing before an event says
	// so; 0 means ten seconds.
	Lateness time.Duration
}

type provisioner struct {
	controller.Env
	*controller.Controller
	Options
	log     *intents
	claims  kube.Writer[*corev1.PersistentVolumeClaim]
	volumes kube.Writer[*corev1.PersistentVolume]
	view    cluster.View
	// inherited holds the UIDs of claims whose intents an earlier process has written.
	inherited sync.Map
	// doubtful holds the UIDs of claims whose drivers have refused, but may have created a volume.
	doubtful sync.Map
	// missing holds, by claim UID, since when the driver of an unresolved intent has been missing.
	missing sync.Map
	// handles holds, by volume key, the names of the volumes whose objects are being written.
	handles sync.Map
	// names holds, by driver and name of a volume, the UID of the claim whose intent has them; see holdName.
	names sync.Map
	// departed holds the UIDs of claims that were seen to go while a volume refers to them.
	departed sync.Map
	refused  refusals
	sources  sources
	// contests holds when this process may take claims.
	contests contests
}

// New returns the provisioner. It must be made before the caches start.
func New(env controller.Env, o Options) *controller.Controller {
	p := &provisioner{
		Env: env, Options: o, log: newIntents(env.Client, o), refused: refusals{retry: env.Pace},
		Controller: &controller.Controller{
			Declaration: DeclarationWith(o.Intents), Workers: workers, Places: places, RetryMin: firstPause,
			Pace: env.Pace, Log: env.Log,
		},
		claims: env.Caches.WriteClaims(env.Client), volumes: env.Caches.WriteVolumes(env.Client),
		view: cluster.View{
			Claims: env.Caches.Claims(), Volumes: env.Caches.Volumes(), Classes: env.Caches.Classes(), Nodes: env.Caches.Nodes(),
			CSINodes: env.Caches.CSINodes(), Attachments: env.Caches.Attachments(),
		},
	}
	p.Controller.Reconcile, p.Controller.Close = p.reconcile, p.log.sweep
	p.Add(controller.Key{Kind: kindLog})
	p.Add(controller.Key{Kind: kindSnapshot})
	p.watch()
	if o.Meter != nil {
		o.Meter.Intents(func() int { return len(p.log.open()) })
	}
	p.Drivers.Subscribe(p.driverAppeared)
	p.Requests.Serve(p.serves, p.enqueueClaim)
	return p.Controller
}

func (p *provisioner) watch() {
	p.claims.BeforeDelete(p.claimDeparts)
	p.claims.Watch(p.claimChanged)
	p.volumes.Watch(p.volumeChanged)
	p.Caches.Classes().Watch(func(_, class *storagev1.StorageClass) {
		if class != nil {
			p.enqueueClaims(func(c *corev1.PersistentVolumeClaim) bool { name, _ := bind.ClassOf(c); return name == class.Name })
		}
	})
	p.Caches.Attachments().Watch(func(before, after *storagev1.VolumeAttachment) {
		if after == nil && before.Spec.Source.PersistentVolumeName != nil {
			p.Add(controller.Key{Kind: kindVolume, Name: *before.Spec.Source.PersistentVolumeName})
		}
	})
	p.Caches.Nodes().Watch(func(_, after *corev1.Node) {
		if after == nil {
			// What a lost node was restoring is forgotten.
			p.Add(controller.Key{Kind: kindSnapshot})
		}
	})
	p.Caches.CSINodes().Watch(func(before, after *storagev1.CSINode) {
		if after != nil && (before == nil || !equality.Semantic.DeepEqual(before.Spec, after.Spec)) {
			p.enqueueClaims(func(c *corev1.PersistentVolumeClaim) bool { return c.Spec.VolumeName == "" })
		}
	})
}

// serves says whether this provisioner creates volumes of a driver for a node. Those of a node-local driver for no node
// are its own if no other node has the driver: otherwise placement selects a node.
func (p *provisioner) serves(driver, node string) bool {
	d, ok := p.Drivers.For(driver, node)
	if !ok || lacks(d) != "" {
		return false
	}
	others := func(n *storagev1.CSINode) bool { return n.Name != d.Scope.Node && cluster.HasDriver(n, driver) }
	return node != "" || d.Scope.Node == "" || !slices.ContainsFunc(p.view.CSINodes.List(), others)
}

// creates says whether the volume of a claim is for this process to create. A claim without a node of a node-local
// driver is if the binder has asked for it within the process; whoever asks by the annotation asks placement for a
// node, too.
func creates(scope volume.Scope, c *corev1.PersistentVolumeClaim) bool {
	node := volume.SelectedNode(c.Annotations)
	return scope.Has(node) && (node != "" || scope.Node == "" || provision.ProvisionerOf(c) == "")
}

func (p *provisioner) enqueueClaim(uid types.UID) {
	p.Add(controller.Key{Kind: kindClaim, Name: string(uid)})
}

func (p *provisioner) claimChanged(before, after *corev1.PersistentVolumeClaim) {
	p.enqueueUnclaimed(before, after)
	if after == nil || after.Spec.VolumeName != "" || volume.SelectedNode(after.Annotations) != "" {
		p.contests.forget(controller.Latest(before, after).UID)
	}
	switch {
	case after == nil:
		p.Requests.Forget(before.UID)
		p.refused.forget(before.UID)
		p.enqueueClaim(before.UID)
	case after.Spec.VolumeName != "":
		p.Requests.Forget(after.UID)
		p.enqueueClaim(after.UID)
		if after.Status.Phase == corev1.ClaimBound && (before == nil || before.Status.Phase != corev1.ClaimBound) {
			// Clones of the claim can be created now.
			for _, c := range p.claims.By(cluster.UnboundBySource, cluster.Key(after)) {
				p.enqueueClaim(c.UID)
			}
			p.releaseRestored(after)
		}
	default:
		p.enqueueClaim(after.UID)
	}
}

// volumeChanged queues the volume, others that have its handle, and the claim to which it refers.
func (p *provisioner) volumeChanged(before, v *corev1.PersistentVolume) {
	p.forgetDeparted(before, v)
	p.enqueueSharers(controller.Latest(before, v))
	if v == nil {
		return
	}
	p.Add(controller.Key{Kind: kindVolume, Name: v.Name})
	if r := v.Spec.ClaimRef; r != nil && r.UID != "" {
		p.enqueueClaim(r.UID)
	}
}

func (p *provisioner) driverAppeared(name string) {
	p.refused.forgetAll() // another version of the driver may answer differently
	p.log.driverChanged(name)
	for _, in := range p.log.open() {
		if in.Driver == name {
			p.enqueueClaim(in.Claim.UID)
		}
	}
	p.enqueueClaims(func(c *corev1.PersistentVolumeClaim) bool { return c.Spec.VolumeName == "" })
	for _, v := range p.volumes.List() {
		if provision.DeleterOf(v) == name {
			p.Add(controller.Key{Kind: kindVolume, Name: v.Name})
		}
	}
	p.Add(controller.Key{Kind: kindLog})
	p.Add(controller.Key{Kind: kindSnapshot})
}

func (p *provisioner) enqueueClaims(match func(*corev1.PersistentVolumeClaim) bool) {
	for _, c := range p.claims.List() {
		if match(c) {
			p.enqueueClaim(c.UID)
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
		return controller.Result{}, p.log.sweep(ctx)
	case kindSnapshot:
		return controller.Result{}, p.reconcileSnapshot(ctx, key.Namespace, key.Name)
	default:
		return p.reconcileClaim(ctx, key.Name)
	}
}

// load reads the intent log, unless it was read, and queues the claims of its intents.
func (p *provisioner) load(ctx context.Context) error {
	open, err := p.log.load(ctx)
	for _, uid := range open {
		p.inherited.Store(types.UID(uid), nil)
		p.enqueueClaim(types.UID(uid))
	}
	if len(open) > 0 {
		for _, in := range p.log.open() {
			p.names.LoadOrStore(nameKey(in), in.Claim.UID)
		}
	}
	return err
}

func (p *provisioner) reconcileClaim(ctx context.Context, uid string) (controller.Result, error) {
	claim, exists := p.claims.ByUID(uid)
	text, open := p.log.get(uid)
	if exists && !open && claim.DeletionTimestamp != nil {
		return controller.Result{}, p.releaseClaim(ctx, claim)
	}
	if in := p.log.uncalled(uid); in != nil && !open {
		return p.awaitCaller(ctx, claim, in)
	}
	if !exists && !open {
		return controller.Result{}, nil
	}
	known := provision.Memory{Asked: p.Requests.Asked(types.UID(uid)), Options: p.Choices}
	if open {
		var err error
		if known.Intent, err = provision.ParseIntent(text); err != nil {
			return controller.Result{}, err
		}
		_, known.Doubtful = p.doubtful.Load(types.UID(uid))
	}
	f, err := p.gather(ctx, provision.ClaimFactsOf(p.view, claim, known))
	if err != nil {
		return controller.Result{}, err
	}
	plan := provision.Claim(f)
	if result, waits := p.waits(claim, plan); waits {
		return result, nil
	}
	return controller.Result{}, p.apply(ctx, claim, plan)
}

// waits says whether a plan must not be applied yet, and returns the result with the pause.
func (p *provisioner) waits(claim *corev1.PersistentVolumeClaim, plan provision.Plan) (controller.Result, bool) {
	if left := p.pause(claim, plan); left > 0 {
		return controller.Result{After: left}, true
	}
	if plan.Intent != nil && plan.Because.Reason == volume.ReasonDriverMissing {
		return p.awaitDriver(plan), true
	}
	if plan.Full {
		plan.Wait = p.contests.again(claim.UID, p.Contest)
	}
	if plan.Wait > 0 {
		return controller.Result{After: plan.Wait}, true
	}
	pause := p.enterCreateLane(plan)
	return controller.Result{After: pause}, pause > 0
}

// awaitDriver warns if the driver of an unresolved intent has been missing for Options.Lateness:
// after a start, drivers register a little later.
func (p *provisioner) awaitDriver(plan provision.Plan) controller.Result {
	if left := p.untilLate(plan.Intent); left > 0 {
		return controller.Result{After: left}
	}
	p.Events.Warn(&plan.Intent.Claim, plan.Because)
	return controller.Result{}
}

// awaitCaller does what awaitDriver does, for an intent in the log of another process, which may have resolved it
// meanwhile. Nothing else is done for the claim: a volume may have been made.
func (p *provisioner) awaitCaller(
	ctx context.Context, claim *corev1.PersistentVolumeClaim, in *provision.Intent,
) (controller.Result, error) {
	plan := provision.Claim(provision.ClaimFactsOf(p.view, claim, provision.Memory{Intent: in}))
	if plan.Because.Reason != volume.ReasonDriverMissing {
		return controller.Result{}, nil
	}
	if p.untilLate(in) <= 0 {
		if err := p.log.readOthers(ctx); err != nil {
			return controller.Result{}, err
		}
		if p.log.uncalled(string(in.Claim.UID)) == nil {
			p.missing.Delete(in.Claim.UID)
			p.enqueueClaim(in.Claim.UID)
			return controller.Result{}, nil
		}
	}
	return p.awaitDriver(plan), nil
}

// untilLate returns for how long a driver may still be missing before it is told.
func (p *provisioner) untilLate(in *provision.Intent) time.Duration {
	since, _ := p.missing.LoadOrStore(in.Claim.UID, time.Now())
	return cmp.Or(p.Lateness, defaultLateness) - time.Since(since.(time.Time))
}

// pause returns for how long a plan must wait because its request has failed before.
func (p *provisioner) pause(claim *corev1.PersistentVolumeClaim, plan provision.Plan) time.Duration {
	now := time.Now()
	switch {
	case plan.Step == provision.Record, plan.Step == provision.Create:
		return p.refused.left(plan.Intent.Claim.UID, plan.Intent.Request(), now)
	case plan.Reschedule:
		node := volume.SelectedNode(claim.Annotations)
		left := p.refused.left(claim.UID, node, now)
		if left == 0 {
			p.refused.add(claim.UID, node, now)
		}
		return left
	}
	return 0
}

func (p *provisioner) apply(ctx context.Context, claim *corev1.PersistentVolumeClaim, plan provision.Plan) error {
	switch plan.Step {
	case provision.Record, provision.Create:
		if err := p.holdName(plan.Intent); err != nil {
			return err
		}
		// The Secret is read first: without it, a volume could not be deleted again.
		secret, err := p.secret(ctx, plan.Intent)
		if err != nil {
			return err
		}
		if err := p.record(ctx, plan); err != nil {
			return err
		}
		return p.measured(claim, func() error { return p.create(ctx, claim, plan, secret) })
	case provision.Undo:
		if err := p.holdName(plan.Intent); err != nil {
			return err
		}
		return p.undo(ctx, plan.Intent)
	case provision.Finish:
		p.resolve(plan.Intent)
		return nil
	case provision.Take:
		return p.take(ctx, claim, plan.Node)
	case provision.Nothing:
		return p.wait(ctx, claim, plan)
	}
	return fmt.Errorf("%w %d", errStep, plan.Step)
}

// wait tells why nothing is done for a claim now, and has it looked at again if nothing will tell when that is over.
func (p *provisioner) wait(ctx context.Context, claim *corev1.PersistentVolumeClaim, plan provision.Plan) error {
	if claim != nil {
		p.tell(claim, plan)
	}
	if plan.Reschedule {
		return p.reschedule(ctx, claim)
	}
	if plan.Fault {
		// The error requeues the claim, because not everything that can resolve the problem is
		// watched, such as the source of a clone or the labels of a node (S4-032, S4-035).
		return fmt.Errorf("provision: %w: %s", errFault, plan.Because.Message)
	}
	return nil
}

// tell records why nothing is done for a claim, if its owner has to know.
func (p *provisioner) tell(claim *corev1.PersistentVolumeClaim, plan provision.Plan) {
	switch {
	case plan.Fault:
		p.Events.WarnWith(claim, plan.Because, p.Try(controller.Key{Kind: kindClaim, Name: string(claim.UID)}).Notes())
	case plan.Tell:
		p.Events.Note(claim, plan.Because)
	}
}

// record writes a new intent to the log, and protects the source of the volume's data.
func (p *provisioner) record(ctx context.Context, plan provision.Plan) error {
	in := plan.Intent
	if plan.Step == provision.Record {
		in.Begun = metav1.Now()
		if err := p.log.put(ctx, in); err != nil {
			return err
		}
	}
	err := p.protect(ctx, in)
	if !errors.Is(err, errSourceGone) {
		return err
	}
	return p.settle(ctx, in, provision.Creation{}, provision.AfterSourceGone(plan, err.Error()), err)
}

// resolve ends an intent whose volume has an object or does not exist.
func (p *provisioner) resolve(in *provision.Intent) {
	p.doubtful.Delete(in.Claim.UID)
	p.missing.Delete(in.Claim.UID)
	p.log.done(string(in.Claim.UID))
	p.names.CompareAndDelete(nameKey(in), in.Claim.UID)
	pause := sweepPause
	if _, inherited := p.inherited.LoadAndDelete(in.Claim.UID); inherited {
		pause = 0 // it has waited long enough
	}
	p.AddAfter(controller.Key{Kind: kindLog}, pause)
	p.releaseSource(in)
}
