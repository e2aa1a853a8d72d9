package placement

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/decide/capacity"
	"volplane.dev/volplane/internal/decide/ephemeral"
	"volplane.dev/volplane/internal/decide/placement"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/decide/snapshot"
	"volplane.dev/volplane/internal/volume"
)

func (p *placer) gather(pod *corev1.Pod) placement.Facts {
	f := placement.Facts{Pod: pod}
	for _, name := range cluster.ClaimNames(pod) {
		f.Claims = append(f.Claims, p.claim(pod, name))
	}
	if pod.Spec.NodeName != "" {
		if n, ok := p.nodes.Get(pod.Spec.NodeName); ok {
			f.Nodes = []placement.Node{{Object: n}}
		}
		return f
	}
	placed := p.placedByNode(pod.UID)
	for _, n := range p.nodes.List() {
		f.Nodes = append(f.Nodes, p.node(n, placed[n.Name]))
	}
	return f
}

func (p *placer) claim(pod *corev1.Pod, name string) placement.Claim {
	c, key := placement.Claim{Name: name}, pod.Namespace+"/"+name
	c.Object, _ = p.claims.Get(key)
	if c.Object == nil {
		c.Ephemeral = ephemeral.Wants(pod, name)
		return c
	}
	c.Stranger = ephemeral.Stranger(pod, c.Object)
	if class, _ := bind.ClassOf(c.Object); class != "" {
		c.Class, _ = p.classes.Get(class)
	}
	if slices.Contains(c.Object.Spec.AccessModes, corev1.ReadWriteOncePod) {
		c.Holder = p.holder(pod, key)
	}
	switch {
	case c.Object.Status.Phase == corev1.ClaimBound:
		c.Volume, _ = p.volumes.Get(c.Object.Spec.VolumeName)
	case bind.BindsLate(c.Class):
		c.Free = p.free
		for _, v := range p.volumes.By(cluster.VolumesByClaim, key) {
			// The retained volume of an earlier claim of this name is not this one's.
			if bind.RefersTo(v.Spec.ClaimRef, c.Object) {
				c.Reserved = append(c.Reserved, v)
			}
		}
		if v, ok := p.volumes.Get(p.reserved[key]); ok {
			c.Reserved = append(c.Reserved, v)
		}
		p.aboutDriver(&c)
	}
	return c
}

// aboutDriver adds what is known of the driver that creates the volume of a claim, and of its capacity.
func (p *placer) aboutDriver(c *placement.Claim) {
	driver := c.Class.Provisioner
	if c.Driver, _ = p.csiDrivers.Get(driver); capacity.Counts(c.Driver) {
		c.Capacities = p.capacities.By(cluster.CapacitiesByClass, c.Class.Name)
	}
	// Placement reads no grants, and so nothing about sources in other namespaces.
	if from := cluster.SourceOf(c.Object); !from.IsElsewhere(c.Object) {
		local := c.Driver != nil && volume.IsNodeLocal(c.Driver.Annotations)
		c.Origin = p.source(from).Origin(c.Object, driver, local)
	}
}

// source returns what is known of the source of a claim's data.
func (p *placer) source(from cluster.DataSource) (s provision.Source) {
	if from.IsClaim() {
		if s.Claim = cluster.Find(p.claims, from.Key()); s.Claim != nil {
			s.Volume = cluster.Find(p.volumes, s.Claim.Spec.VolumeName)
		}
	}
	if !from.IsSnapshot() {
		return s
	}
	shot := cluster.Find(p.snapshots, from.Key())
	if shot == nil {
		return s
	}
	content := cluster.Find(p.contents, snapshot.ContentName(shot))
	if content == nil {
		return s
	}
	s.Snapshot = provision.SnapshotOf(p.view, shot, content)
	if s.Snapshot.Kept.Affinity == nil {
		s.Snapshot.Kept.Affinity = p.affinityOf(content)
	}
	return s
}

// affinityOf returns the nodes that can use the source volume of a snapshot; nil if they are not known.
func (p *placer) affinityOf(content *cluster.VolumeSnapshotContent) *corev1.VolumeNodeAffinity {
	handle := ptr.Deref(content.Spec.Source.VolumeHandle, "")
	if found := p.volumes.By(cluster.VolumesByHandle, volume.Key(content.Spec.Driver, handle)); len(found) > 0 {
		return found[0].Spec.NodeAffinity
	}
	return nil
}

// holder returns the name of another Pod that has a ReadWriteOncePod claim, or "".
func (p *placer) holder(pod *corev1.Pod, claim string) string {
	for _, other := range p.pods.By(cluster.PodsByClaim, claim) {
		if other.UID != pod.UID && (other.Spec.NodeName != "" || p.isPlaced(other.UID)) && !cluster.Finished(other) {
			return other.Name
		}
	}
	return ""
}

func (p *placer) node(n *corev1.Node, placed []*corev1.Pod) placement.Node {
	pods := p.pods.By(cluster.PodsByNode, n.Name)
	placed = slices.DeleteFunc(placed, func(c *corev1.Pod) bool {
		return slices.ContainsFunc(pods, func(pod *corev1.Pod) bool { return pod.UID == c.UID })
	})
	node := placement.Node{Object: n, Pods: len(pods) + len(placed)}
	node.CSI, _ = p.csiNodes.Get(n.Name)
	if limited(node.CSI) {
		node.Volumes = p.volumesOn(n.Name, append(pods, placed...))
	}
	return node
}

func limited(n *storagev1.CSINode) bool {
	return n != nil && slices.ContainsFunc(n.Spec.Drivers, func(d storagev1.CSINodeDriver) bool {
		return d.Allocatable != nil && d.Allocatable.Count != nil
	})
}

// volumesOn returns, by driver, the handles of the volumes that are attached to a node, and of those
// that will be attached for its Pods.
func (p *placer) volumesOn(node string, pods []*corev1.Pod) map[string]map[string]bool {
	out := map[string]map[string]bool{}
	add := func(driver, handle string) {
		if out[driver] == nil {
			out[driver] = map[string]bool{}
		}
		out[driver][handle] = true
	}
	for _, a := range p.attachments.By(cluster.AttachmentsByNode, node) {
		add(a.Spec.Attacher, p.handle(a))
	}
	for _, pod := range pods {
		if cluster.Finished(pod) {
			continue
		}
		for _, name := range cluster.ClaimNames(pod) {
			c := p.claim(pod, name)
			switch {
			case c.Volume != nil && c.Volume.Spec.CSI != nil:
				add(c.Volume.Spec.CSI.Driver, c.Volume.Spec.CSI.VolumeHandle)
			case c.Volume == nil && c.Object != nil && c.Class != nil:
				add(c.Class.Provisioner, "claim/"+string(c.Object.UID))
			}
		}
	}
	return out
}

// handle returns the handle of an attached volume, or another unique name if it is unknown.
func (p *placer) handle(a *storagev1.VolumeAttachment) string {
	name := a.Spec.Source.PersistentVolumeName
	if name == nil {
		return "attachment/" + a.Name
	}
	if v, ok := p.volumes.Get(*name); ok && v.Spec.CSI != nil {
		return v.Spec.CSI.VolumeHandle
	}
	return "volume/" + *name
}
