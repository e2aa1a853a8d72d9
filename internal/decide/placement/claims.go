package placement

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/decide/driverstatus"
	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/volume"
)

// assignment assigns volumes to the claims of a Pod on one node.
type assignment struct {
	f    Facts
	node Node
	// volumes holds the free volumes that unbound claims get, by claim.
	volumes map[string]*corev1.PersistentVolume
	// adds is the number of volumes of each driver that the Pod adds to the node.
	adds map[string]int
	// hosted holds the drivers that the FlexVolume host serves.
	hosted map[string]bool
}

// assign gives each claim of the Pod a volume on a node: the one to which it is bound, a free one,
// or one that will be created there. It returns the free volumes by claim, or why a claim cannot
// have a volume there.
func assign(f Facts, n Node) (map[string]*corev1.PersistentVolume, volume.Because) {
	s := assignment{
		f: f, node: n, volumes: map[string]*corev1.PersistentVolume{}, adds: map[string]int{}, hosted: map[string]bool{},
	}
	// Small claims come first, so that they do not get volumes that larger ones need.
	claims := slices.Clone(f.Claims)
	slices.SortStableFunc(claims, func(a, b Claim) int {
		return a.Object.Spec.Resources.Requests.Storage().Cmp(*b.Object.Spec.Resources.Requests.Storage())
	})
	for _, c := range claims {
		var why volume.Because
		if c.Volume != nil {
			why = s.use(c.Volume)
		} else {
			why = s.find(c)
		}
		if why.Reason != "" {
			return nil, why
		}
	}
	for _, driver := range slices.Sorted(maps.Keys(s.adds)) {
		if why := s.driverProblem(driver); why != "" {
			return nil, refusal(why)
		}
	}
	return s.volumes, volume.Because{}
}

// use counts an existing volume, or returns why the node cannot use it.
func (s *assignment) use(v *corev1.PersistentVolume) volume.Because {
	if !reachable(v, s.node.Object) {
		return refusal("volume " + v.Name + " is not reachable there")
	}
	if csi := v.Spec.CSI; csi != nil {
		more := 1
		if s.node.Volumes[csi.Driver][csi.VolumeHandle] {
			more = 0
		}
		s.adds[csi.Driver] += more
		s.hosted[csi.Driver] = driverstatus.Hosted(v)
	}
	return volume.Because{}
}

func reachable(v *corev1.PersistentVolume, n *corev1.Node) bool {
	return v.Spec.NodeAffinity == nil || topology.Selects(v.Spec.NodeAffinity.Required, n)
}

// find gives an unbound claim a free volume or one that will be created, or returns why it cannot. For a claim with a
// selected node, a volume may be in creation there, so the claim gets no other one. A selected node that no longer
// exists is ignored.
func (s *assignment) find(c Claim) volume.Because {
	selected := volume.SelectedNode(c.Object.Annotations)
	if selected != s.node.Object.Name && s.exists(selected) {
		return refusal(fmt.Sprintf("claim %s is promised to node %s", c.Name, selected))
	}
	if v := s.free(c); selected == "" && v != nil {
		s.volumes[c.Name] = v
		return s.use(v)
	}
	if c.Class.Provisioner == volume.NoProvisioner {
		return refusal("no volume of class " + c.Class.Name + " for claim " + c.Name + " is available there")
	}
	allowed := topology.Flatten(c.Class.AllowedTopologies)
	if len(allowed) > 0 && !slices.ContainsFunc(allowed, func(t topology.Segment) bool {
		return t.Matches(s.node.Object.Labels)
	}) {
		return refusal("class " + c.Class.Name + " does not allow volumes there")
	}
	if why := c.elsewhere(s.node.Object); why != "" {
		return refusal(why)
	}
	// The free space of the selected node may already exclude a volume in creation there.
	if selected != s.node.Object.Name {
		if why := needOf(c).Refuses(s.node.Object); why.Reason != "" {
			return why
		}
	}
	s.adds[c.Class.Provisioner]++
	return volume.Because{}
}

// free returns the best free volume for a claim on the node, or nil.
func (s *assignment) free(c Claim) *corev1.PersistentVolume {
	if c.Free == nil {
		return nil
	}
	return c.Free.Best(c.Object, func(v *corev1.PersistentVolume) bool {
		return !s.isTaken(v) && reachable(v, s.node.Object)
	})
}

func (s *assignment) exists(node string) bool {
	return slices.ContainsFunc(s.f.Nodes, func(n Node) bool { return n.Object.Name == node })
}

func (s *assignment) isTaken(v *corev1.PersistentVolume) bool {
	for _, taken := range s.volumes {
		if taken.Name == v.Name {
			return true
		}
	}
	return false
}

// driverProblem returns why a driver cannot serve the added volumes on the node, or "".
func (s *assignment) driverProblem(driver string) string {
	if s.node.CSI != nil {
		for _, d := range s.node.CSI.Spec.Drivers {
			if d.Name == driver {
				return s.limitProblem(d)
			}
		}
	}
	if why := driverstatus.Lack(driver, s.node.Object); why != "" && s.hosted[driver] {
		return why
	}
	return "driver " + driver + " is not registered there"
}

func (s *assignment) limitProblem(d storagev1.CSINodeDriver) string {
	if d.Allocatable != nil && d.Allocatable.Count != nil && s.adds[d.Name] > 0 &&
		len(s.node.Volumes[d.Name])+s.adds[d.Name] > int(*d.Allocatable.Count) {
		return fmt.Sprintf("driver %s has its limit of %d volumes there", d.Name, *d.Allocatable.Count)
	}
	return ""
}
