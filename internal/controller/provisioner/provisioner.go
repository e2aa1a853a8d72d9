package provisioner

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

const (
	kindClaim  = "claim"
	kindVolume = "volume"
)

// firstPause is the pause before a call that failed is repeated; it doubles.
const firstPause = 100 * time.Millisecond

// Declaration is what the provisioner reads and writes.
func Declaration() controller.Declaration {
	return controller.Declaration{
		Name: "provisioner",
		Inputs: append(kube.Read("", "persistentvolumeclaims", "persistentvolumes", "nodes"),
			kube.Read("storage.k8s.io", "storageclasses", "csinodes", "volumeattachments")...),
		Outputs: []kube.Access{
			kube.Write("", "persistentvolumeclaims", "update"),
			kube.Write("", "persistentvolumes", "get", "create", "update", "delete"),
			kube.Write("", "secrets", "get"),
			kube.Write(volume.GroupSnapshot, volume.ResourceSnapshots, "get"),
			kube.Write(volume.Domain, volume.ResourceIntents, "write"),
		},
	}
}

type provisioner struct {
	controller.Env
	*controller.Controller
	drivers     *csi.Set
	claims      *kube.Cache[*corev1.PersistentVolumeClaim]
	volumes     *kube.Cache[*corev1.PersistentVolume]
	classes     *kube.Cache[*storagev1.StorageClass]
	nodes       *kube.Cache[*corev1.Node]
	csiNodes    *kube.Cache[*storagev1.CSINode]
	attachments *kube.Cache[*storagev1.VolumeAttachment]
}

// New returns the provisioner for the drivers of a set. It must be made before
// the caches start.
func New(env controller.Env, drivers *csi.Set) *controller.Controller {
	p := &provisioner{
		Env: env, drivers: drivers,
		Controller: &controller.Controller{Declaration: Declaration(), Workers: 100, RetryMin: firstPause, Log: env.Log},
		claims:     env.Caches.Claims(), volumes: env.Caches.Volumes(), classes: env.Caches.Classes(),
		nodes: env.Caches.Nodes(), csiNodes: env.Caches.CSINodes(), attachments: env.Caches.Attachments(),
	}
	p.Controller.Reconcile = p.reconcile
	p.claims.Watch(func(before, c *corev1.PersistentVolumeClaim) {
		if c != nil && !onlyIntent(before, c) {
			p.Add(controller.Key{Kind: kindClaim, Namespace: c.Namespace, Name: c.Name})
		}
	})
	p.volumes.Watch(p.volumeChanged)
	p.classes.Watch(func(_, class *storagev1.StorageClass) {
		if class != nil {
			p.wakeClaims(func(c *corev1.PersistentVolumeClaim) bool { name, _ := bind.ClassOf(c); return name == class.Name })
		}
	})
	p.attachments.Watch(func(before, after *storagev1.VolumeAttachment) {
		if after == nil && before.Spec.Source.PersistentVolumeName != nil {
			p.Add(controller.Key{Kind: kindVolume, Name: *before.Spec.Source.PersistentVolumeName})
		}
	})
	p.csiNodes.Watch(func(_, n *storagev1.CSINode) {
		if n != nil {
			p.wakeClaims(func(c *corev1.PersistentVolumeClaim) bool { return c.Spec.VolumeName == "" })
		}
	})
	drivers.Subscribe(p.driverAppeared)
	return p.Controller
}

// onlyIntent says whether nothing but the intent differs: the provisioner's own
// write. To be woken by it would take away the pause before a call that failed
// is repeated.
func onlyIntent(before, after *corev1.PersistentVolumeClaim) bool {
	if before == nil {
		return false
	}
	a, b := provision.WithoutIntent(before, false), provision.WithoutIntent(after, false)
	a.ResourceVersion = b.ResourceVersion
	return equality.Semantic.DeepEqual(a, b)
}

// volumeChanged wakes the volume and the claim whose volume it is.
func (p *provisioner) volumeChanged(_, v *corev1.PersistentVolume) {
	if v == nil {
		return
	}
	p.Add(controller.Key{Kind: kindVolume, Name: v.Name})
	if r := v.Spec.ClaimRef; r != nil {
		p.Add(controller.Key{Kind: kindClaim, Namespace: r.Namespace, Name: r.Name})
	}
}

func (p *provisioner) driverAppeared(name string) {
	p.wakeClaims(func(c *corev1.PersistentVolumeClaim) bool {
		return provision.ProvisionerOf(c) == name || c.Annotations[volume.AnnIntent] != ""
	})
	for _, v := range p.volumes.List() {
		if v.Annotations[volume.AnnProvisionedBy] == name {
			p.Add(controller.Key{Kind: kindVolume, Name: v.Name})
		}
	}
}

func (p *provisioner) wakeClaims(which func(*corev1.PersistentVolumeClaim) bool) {
	for _, c := range p.claims.List() {
		if which(c) {
			p.Add(controller.Key{Kind: kindClaim, Namespace: c.Namespace, Name: c.Name})
		}
	}
}

func (p *provisioner) reconcile(ctx context.Context, key controller.Key) (controller.Result, error) {
	if key.Kind == kindVolume {
		return controller.Result{}, p.reconcileVolume(ctx, key.Name)
	}
	claim, ok := p.claims.Get(key.Namespace + "/" + key.Name)
	if !ok {
		return controller.Result{}, nil
	}
	facts, err := p.gather(ctx, claim)
	if err != nil {
		return controller.Result{}, err
	}
	return controller.Result{}, p.apply(ctx, claim, provision.Claim(facts))
}

func (p *provisioner) gather(ctx context.Context, claim *corev1.PersistentVolumeClaim) (provision.ClaimFacts, error) {
	f := provision.ClaimFacts{Claim: claim}
	var err error
	if f.Intent, err = provision.IntentOf(claim); err != nil {
		return f, fmt.Errorf("claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	if name, _ := bind.ClassOf(claim); name != "" {
		f.Class, _ = p.classes.Get(name)
	}
	f.Saved, _ = p.volumes.Get(provision.NameOf(claim))
	name := provision.ProvisionerOf(claim)
	if f.Intent != nil {
		name = f.Intent.Driver
	}
	d, ok := p.drivers.Get(name)
	if !ok {
		return f, nil
	}
	f.Ours, f.Lacks = true, lacks(d)
	if f.Lacks == "" && f.Intent == nil {
		f.Topology = d.Plugin.AccessibilityConstraints
		f.Places = p.places(claim, f.Class, name)
		f.Source, err = p.source(ctx, claim, d)
	}
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

func (p *provisioner) places(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, driver string) topology.Facts {
	t := topology.Facts{
		Driver: driver, Claim: claim.Name, Selected: claim.Annotations[volume.AnnSelectedNode],
		Nodes: map[string]*corev1.Node{}, CSINodes: map[string]*storagev1.CSINode{},
	}
	if class != nil {
		t.Allowed = class.AllowedTopologies
	}
	for _, n := range p.csiNodes.List() {
		t.CSINodes[n.Name] = n
		if node, ok := p.nodes.Get(n.Name); ok {
			t.Nodes[n.Name] = node
		}
	}
	return t
}

func (p *provisioner) apply(ctx context.Context, claim *corev1.PersistentVolumeClaim, plan provision.Plan) error {
	switch plan.Step {
	case provision.Record:
		recorded, err := provision.WithIntent(claim, plan.Intent)
		if err != nil {
			return err
		}
		if claim, err = p.update(ctx, recorded); err != nil {
			return err
		}
		p.Events.Note(claim, plan.Because)
		return p.create(ctx, claim, plan.Intent)
	case provision.Create:
		return p.create(ctx, claim, plan.Intent)
	case provision.Undo:
		return p.undo(ctx, claim, plan.Intent)
	case provision.Finish:
		_, err := p.update(ctx, provision.WithoutIntent(claim, false))
		return err
	case provision.Nothing:
	}
	if plan.Fault {
		p.Events.Warn(claim, plan.Because)
	}
	if plan.Reschedule {
		_, err := p.update(ctx, provision.WithoutIntent(claim, true))
		return err
	}
	if plan.Fault {
		// Not all that can mend it is watched: the source of a clone, the
		// labels of a node (S4-032, S4-035).
		return fmt.Errorf("provision claim %s/%s: %w: %s", claim.Namespace, claim.Name, errFault, plan.Because.Message)
	}
	return nil
}

func (p *provisioner) update(ctx context.Context, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, error) {
	got, err := p.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, claim, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("write claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	p.claims.Wrote(got)
	return got, nil
}

// takenBy returns the name of a volume object that has the handle already.
func (p *provisioner) takenBy(driver, handle, but string) string {
	all := p.volumes.By(kube.VolumesByHandle, driver+"^"+handle)
	i := slices.IndexFunc(all, func(v *corev1.PersistentVolume) bool { return v.Name != but })
	if i < 0 {
		return ""
	}
	return all[i].Name
}
