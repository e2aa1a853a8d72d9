package placement

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/decide/capacity"
	"volplane.dev/volplane/internal/decide/note"
	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/volume"
)

// settlement is how the claims of a Pod are served on one node.
type settlement struct {
	f    Facts
	node Node
	// volumes are the available ones that unbound claims get, by claim.
	volumes map[string]*corev1.PersistentVolume
	// adds is how many volumes of a driver come to the node; hosted says which of
	// the drivers are a host's.
	adds   map[string]int
	hosted map[string]bool
}

// settle serves each claim of the Pod on a node: with the volume that it has,
// with an available one, or with one to be made there. It returns the available
// volumes that it used, by claim, or what keeps a claim from the node.
func settle(f Facts, n Node) (map[string]*corev1.PersistentVolume, string) {
	s := settlement{
		f: f, node: n, volumes: map[string]*corev1.PersistentVolume{}, adds: map[string]int{}, hosted: map[string]bool{},
	}
	// Small claims first, so that they do not take what larger ones need.
	claims := slices.Clone(f.Claims)
	slices.SortStableFunc(claims, func(a, b Claim) int {
		return a.Object.Spec.Resources.Requests.Storage().Cmp(*b.Object.Spec.Resources.Requests.Storage())
	})
	for _, c := range claims {
		var why string
		if c.Volume != nil {
			why = s.uses(c.Volume)
		} else {
			why = s.serve(c)
		}
		if why != "" {
			return nil, why
		}
	}
	for _, driver := range slices.Sorted(maps.Keys(s.adds)) {
		if why := s.refusesDriver(driver); why != "" {
			return nil, why
		}
	}
	return s.volumes, ""
}

// uses counts a volume that exists.
func (s *settlement) uses(v *corev1.PersistentVolume) string {
	if !reachable(v, s.node.Object) {
		return "volume " + v.Name + " is not reachable there"
	}
	if csi := v.Spec.CSI; csi != nil {
		more := 1
		if s.node.Volumes[csi.Driver][csi.VolumeHandle] {
			more = 0
		}
		s.adds[csi.Driver] += more
		s.hosted[csi.Driver] = note.Hosted(v)
	}
	return ""
}

func reachable(v *corev1.PersistentVolume, n *corev1.Node) bool {
	return v.Spec.NodeAffinity == nil || Selects(v.Spec.NodeAffinity.Required, n)
}

// serve finds a volume for a claim that has none, or has one made. A claim that
// was promised to a node may have a volume under way there: then no other one
// will do. A promise to a node that is gone is void.
func (s *settlement) serve(c Claim) string {
	promised := c.Object.Annotations[volume.AnnSelectedNode]
	if promised != s.node.Object.Name && s.knows(promised) {
		return fmt.Sprintf("claim %s is promised to node %s", c.Name, promised)
	}
	if v := s.free(c); promised == "" && v != nil {
		s.volumes[c.Name] = v
		return s.uses(v)
	}
	if c.Class.Provisioner == volume.NoProvisioner {
		return "no volume of class " + c.Class.Name + " for claim " + c.Name + " is available there"
	}
	allowed := topology.Flatten(c.Class.AllowedTopologies)
	if len(allowed) > 0 && !slices.ContainsFunc(allowed, func(t topology.Segment) bool {
		return within(t, s.node.Object.Labels)
	}) {
		return "class " + c.Class.Name + " does not allow volumes there"
	}
	// What a volume under way takes at the promised node is not there any more.
	if promised != s.node.Object.Name {
		need := capacity.Need{Claim: c.Object, Class: c.Class, Driver: c.Driver, Known: c.Capacities}
		if why := need.Refuses(s.node.Object); why != "" {
			return why
		}
	}
	s.adds[c.Class.Provisioner]++
	return ""
}

// free returns the best volume that the claim may get at the node; nil is none.
func (s *settlement) free(c Claim) *corev1.PersistentVolume {
	if c.Free == nil {
		return nil
	}
	return c.Free.Best(c.Object, func(v *corev1.PersistentVolume) bool {
		return !s.isTaken(v) && reachable(v, s.node.Object)
	})
}

func (s *settlement) knows(node string) bool {
	return slices.ContainsFunc(s.f.Nodes, func(n Node) bool { return n.Object.Name == node })
}

func (s *settlement) isTaken(v *corev1.PersistentVolume) bool {
	for _, taken := range s.volumes {
		if taken.Name == v.Name {
			return true
		}
	}
	return false
}

// refusesDriver says whether a driver is missing on the node or has as many
// volumes there as it takes.
func (s *settlement) refusesDriver(driver string) string {
	if s.node.CSI != nil {
		for _, d := range s.node.CSI.Spec.Drivers {
			if d.Name == driver {
				return s.refusesMore(d)
			}
		}
	}
	if why := note.Lack(driver, s.node.Object); why != "" && s.hosted[driver] {
		return why
	}
	return "driver " + driver + " is not registered there"
}

func (s *settlement) refusesMore(d storagev1.CSINodeDriver) string {
	if d.Allocatable != nil && d.Allocatable.Count != nil && s.adds[d.Name] > 0 &&
		len(s.node.Volumes[d.Name])+s.adds[d.Name] > int(*d.Allocatable.Count) {
		return fmt.Sprintf("driver %s has its limit of %d volumes there", d.Name, *d.Allocatable.Count)
	}
	return ""
}

func within(s topology.Segment, labels map[string]string) bool {
	for k, v := range s {
		if labels[k] != v {
			return false
		}
	}
	return true
}
