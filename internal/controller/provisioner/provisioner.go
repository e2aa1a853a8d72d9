package provisioner

import (
	"context"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
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
	// workers is the number of keys that are reconciled at the same time, beside the calls of drivers.
	workers = 100
	// firstPause is the pause after the first failure of a call; it doubles.
	firstPause = 100 * time.Millisecond
	// sweepPause is how long a resolved intent may stay in the log, so that a new intent can replace
	// it without a write of its own.
	sweepPause = time.Second
	// slowAfter is the duration of a call after which an event says that it is in flight.
	slowAfter = 2 * time.Second
	// lateness is how long the driver of an unresolved intent may be missing before an event says so: after a start,
	// drivers register a little later.
	lateness = 10 * time.Second
	// places is the number of create calls, and of delete calls, that may be in flight at each driver;
	// one namespace may have half of them. A driver may refuse calls that are too many for it; they are
	// repeated with back-off.
	places = 1000
)

// Declaration is what the provisioner of a standalone control plane reads and writes.
func Declaration() controller.Declaration { return DeclarationWith(Options{Intents: Standalone()}) }

// DeclarationWith is what a provisioner with the given logs and choices reads and writes.
func DeclarationWith(o Options) controller.Declaration {
	d := controller.Declaration{
		Name: "provisioner",
		Inputs: append(kube.Read("", "persistentvolumeclaims", "persistentvolumes", "nodes"),
			kube.Read("storage.k8s.io", "storageclasses", "csinodes", "volumeattachments")...),
		Outputs: append(o.Intents.access(),
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
	if o.Choices.OtherNamespaces {
		d.Outputs = append(d.Outputs, kube.Write(volume.GroupGateway, volume.ResourceGrants, "list"))
	}
	return d
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
}

// Contest says how claims are taken for which the provisioners of several nodes compete: claims that bind immediately,
// and for which no node is selected.
type Contest struct {
	// Off leaves such claims alone.
	Off bool
	// BaseDelay and MaxDelay bound the random pause before a claim is taken, at first and after several attempts; 0 means
	// 20 seconds, and a minute.
	BaseDelay, MaxDelay time.Duration
}

const (
	defaultBaseDelay = 20 * time.Second
	defaultMaxDelay  = time.Minute
)

// Meter counts attempts.
type Meter interface {
	// Provisioned counts an attempt to make a volume of a class. source is the kind of the object whose data it gets.
	Provisioned(class, source string, took time.Duration, err error)
	// Deleted counts an attempt to delete a volume of a class.
	Deleted(class string, took time.Duration, err error)
	// Intents is given a function that counts the intents which are not resolved.
	Intents(count func() int)
}

type provisioner struct {
	controller.Env
	*controller.Controller
	Options
	log      *intents
	claims   kube.Writer[*corev1.PersistentVolumeClaim]
	volumes  kube.Writer[*corev1.PersistentVolume]
	view     cluster.View
	attempts *attempts
	// protecting serializes the writes of finalizers to the claims and snapshots that volumes are created from: of many
	// clones of one claim only the first writes.
	protecting sync.Mutex
}

// New returns the provisioner. It must be made before the caches start.
func New(env controller.Env, o Options) *controller.Controller {
	p := &provisioner{
		Env: env, Options: o, log: newIntents(env.Client, o), attempts: newAttempts(env.Pace),
		Controller: &controller.Controller{
			Declaration: DeclarationWith(o), Workers: workers, Places: places, RetryMin: firstPause,
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
	p.claims.BeforeDelete(p.rememberDeleted)
	p.claims.Watch(p.claimChanged)
	p.volumes.Watch(p.volumeChanged)
	p.Caches.Classes().Watch(func(_, class *storagev1.StorageClass) {
		if class != nil {
			p.enqueueClaims(func(c *corev1.PersistentVolumeClaim) bool { name, _ := bind.ClassOf(c); return name == class.Name })
		}
	})
	p.Caches.Attachments().Watch(func(before, after *storagev1.VolumeAttachment) {
		if after == nil && before.Spec.Source.PersistentVolumeName != nil {
			p.enqueueVolume(*before.Spec.Source.PersistentVolumeName)
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

func claimKey(uid types.UID) controller.Key {
	return controller.Key{Kind: kindClaim, Name: string(uid)}
}

func volumeKey(name string) controller.Key { return controller.Key{Kind: kindVolume, Name: name} }

func (p *provisioner) enqueueClaim(uid types.UID) { p.Add(claimKey(uid)) }

func (p *provisioner) enqueueVolume(name string) { p.Add(volumeKey(name)) }

func (p *provisioner) claimChanged(before, after *corev1.PersistentVolumeClaim) {
	p.enqueueUnclaimed(before, after)
	if after == nil || after.Spec.VolumeName != "" || volume.SelectedNode(after.Annotations) != "" {
		p.attempts.learn(controller.Latest(before, after).UID, func(a *attempt) { a.due, a.inVain = time.Time{}, 0 })
	}
	switch {
	case after == nil:
		p.Requests.Forget(before.UID)
		p.attempts.learn(before.UID, func(a *attempt) { a.refusals, a.until = 0, nil })
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
	p.forgetDeleted(before, v)
	p.enqueueSharers(controller.Latest(before, v))
	if v == nil {
		return
	}
	p.enqueueVolume(v.Name)
	if r := v.Spec.ClaimRef; r != nil && r.UID != "" {
		p.enqueueClaim(r.UID)
	}
}

func (p *provisioner) driverAppeared(name string) {
	p.attempts.forgetRefusals() // another version of the driver may answer differently
	p.log.driverChanged(name)
	for _, in := range p.log.open() {
		if in.Driver == name {
			p.enqueueClaim(in.Claim.UID)
		}
	}
	p.enqueueClaims(func(c *corev1.PersistentVolumeClaim) bool { return c.Spec.VolumeName == "" })
	for _, v := range p.volumes.List() {
		if provision.DeleterOf(v) == name {
			p.enqueueVolume(v.Name)
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
		p.attempts.learn(types.UID(uid), func(a *attempt) { a.inherited = true })
		p.enqueueClaim(types.UID(uid))
	}
	if len(open) > 0 {
		for _, in := range p.log.open() {
			p.attempts.hold(nameOf(in), in)
		}
	}
	return err
}
