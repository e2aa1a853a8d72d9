package why

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/volume"
)

// Objects are the objects of a cluster as they were read: all, or at least
// those that the question concerns.
type Objects struct {
	Claims      []*corev1.PersistentVolumeClaim
	Volumes     []*corev1.PersistentVolume
	Classes     []*storagev1.StorageClass
	Drivers     []*storagev1.CSIDriver
	Attachments []*storagev1.VolumeAttachment
	Pods        []Consumer
	Nodes       []*corev1.Node
	CSINodes    []*storagev1.CSINode
	// Moves are the moves of volumes between a Flex plugin and the bridge that
	// were begun and not finished.
	Moves []Move
	// Warnings are events of type Warning, oldest first.
	Warnings []*corev1.Event
	// Making are the claims for which a provisioner has begun to have a volume
	// made and has no final answer, by UID.
	Making map[types.UID]bool
	// Begun is what it has written down for them, as far as that makes sense; Now
	// is when it was read.
	Begun []*provision.Intent
	Now   time.Time
	// MakingHidden says that Making could not be read.
	MakingHidden bool
	// Full says why the control plane takes no new objects; nil when it does.
	Full *volume.Because
}

// Consumer is a Pod with the names of the claims that it uses.
type Consumer struct {
	Pod    *corev1.Pod
	Claims []string
}

// Move is a volume that is being moved, with its claim, "namespace/name", if it
// has one; Back says that it is moved back.
type Move struct {
	Volume, Claim string
	Back          bool
}

// cluster finds objects by what refers to them.
type cluster struct {
	Objects
	claims  map[string]*corev1.PersistentVolumeClaim
	volumes map[string]*corev1.PersistentVolume
	classes map[string]*storagev1.StorageClass
	drivers map[string]*storagev1.CSIDriver
	// attachments are found by the name of their volume, users by the key of a
	// claim that they use.
	attachments map[string][]*storagev1.VolumeAttachment
	users       map[string][]*corev1.Pod
	// sources are found by the key of the Pod that needs them.
	sources map[string][]source
}

func index(o Objects) cluster {
	c := cluster{
		Objects:     o,
		claims:      byName(o.Claims, func(c *corev1.PersistentVolumeClaim) string { return c.Namespace + "/" + c.Name }),
		volumes:     byName(o.Volumes, func(v *corev1.PersistentVolume) string { return v.Name }),
		classes:     byName(o.Classes, func(c *storagev1.StorageClass) string { return c.Name }),
		drivers:     byName(o.Drivers, func(d *storagev1.CSIDriver) string { return d.Name }),
		attachments: map[string][]*storagev1.VolumeAttachment{},
		users:       map[string][]*corev1.Pod{},
		sources:     map[string][]source{},
	}
	for _, a := range o.Attachments {
		if v := a.Spec.Source.PersistentVolumeName; v != nil {
			c.attachments[*v] = append(c.attachments[*v], a)
		}
	}
	for _, p := range o.Pods {
		if s := c.sourcesOf(p); len(s) > 0 {
			c.sources[p.Pod.Namespace+"/"+p.Pod.Name] = s
		}
		for _, claim := range p.Claims {
			key := p.Pod.Namespace + "/" + claim
			c.users[key] = append(c.users[key], p.Pod)
		}
	}
	return c
}

func byName[T any](all []*T, name func(*T) string) map[string]*T {
	out := make(map[string]*T, len(all))
	for _, o := range all {
		out[name(o)] = o
	}
	return out
}

// claim returns the facts about a claim, which need not exist.
func (c cluster) claim(ns, name string) facts {
	f := c.all()
	f.Namespace, f.ClaimName = ns, name
	f.Claim, f.Pods = c.claims[ns+"/"+name], c.users[ns+"/"+name]
	class := ""
	if f.Claim != nil {
		class, _ = bind.ClassOf(f.Claim)
		f.Volume, f.Attachments = c.volumes[f.Claim.Spec.VolumeName], c.attachments[f.Claim.Spec.VolumeName]
	}
	return c.withClass(f, class)
}

// volume returns the facts about a volume, and of the claim that it is bound to.
func (c cluster) volume(v *corev1.PersistentVolume) facts {
	if ref := v.Spec.ClaimRef; ref != nil && (v.Status.Phase == corev1.VolumeBound || bind.Together(c.claims[ref.Namespace+"/"+ref.Name], v)) {
		return c.claim(ref.Namespace, ref.Name)
	}
	f := c.all()
	f.Volume, f.Attachments = v, c.attachments[v.Name]
	return c.withClass(f, bind.VolumeClassOf(v))
}

// all returns the facts that are the same for every claim.
func (c cluster) all() facts {
	return facts{Nodes: c.Nodes, CSINodes: c.CSINodes, Sources: c.sources, Everywhere: c.Attachments, Moves: c.Moves, Warnings: c.Warnings, Making: c.Making, Begun: c.Begun, MakingHidden: c.MakingHidden}
}

func (c cluster) withClass(f facts, class string) facts {
	f.Class = c.classes[class]
	if d := bind.DefaultClass(c.Classes); d != nil {
		f.DefaultClass = d.Name
	}
	f.Driver = c.drivers[f.driverName()]
	return f
}

// first returns the first element that fits; nil when none does.
func first[T any](all []*T, fits func(*T) bool) *T {
	if i := slices.IndexFunc(all, fits); i >= 0 {
		return all[i]
	}
	return nil
}
