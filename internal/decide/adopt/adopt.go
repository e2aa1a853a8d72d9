package adopt

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/volume"
)

// Facts are what the cluster has, and the user's choices.
type Facts struct {
	// Driver is the driver's name, ManagedBy the label of objects that are ours.
	Driver, ManagedBy string
	// Namespace and Shape are the user's choices; empty means no choice. WithoutNodes says whether the nodes' part is
	// omitted; nil means no choice.
	Namespace, Shape string
	WithoutNodes     *bool
	// Controllers are those to run. ChoseControllers means that the user chose them.
	Controllers      []string
	ChoseControllers bool
	// Args are arguments of the controllers that the user gave.
	Args []string
	// ChangedBlocks means that the user chose to serve the changed blocks of snapshots.
	ChangedBlocks bool
	// Found is the CSIDriver; nil if there is none.
	Found *storagev1.CSIDriver
	// Wanted has the requested fields of the CSIDriver.
	Wanted storagev1.CSIDriverSpec
	// Workloads are all workloads of the cluster, with or without a driver.
	Workloads []Workload
	// CSINodes and NodeLabels are those of the nodes; NodeLabels by the node's name.
	CSINodes   []storagev1.CSINode
	NodeLabels map[string]map[string]string
	// InTree are the names of the in-tree volumes that the driver has taken over, in order.
	InTree []string
}

// Workload is a DaemonSet, Deployment or StatefulSet.
type Workload struct {
	Kind, Namespace, Name string
	Labels, Annotations   map[string]string
	Pod                   corev1.PodSpec
}

// String returns the name of the workload as kubectl takes it.
func (w Workload) String() string {
	return fmt.Sprintf("%s/%s in the namespace %s", strings.ToLower(w.Kind), w.Name, w.Namespace)
}

// Plan is what the manifests keep.
type Plan struct {
	// Namespace, KubeletDir and SocketDir are those of the running workloads; empty if they are unknown.
	Namespace, KubeletDir, SocketDir string
	// Driver is the CSIDriver to print; nil if it belongs to another program.
	Driver *storagev1.CSIDriver
	// WithoutNodes means that another program runs the driver on the nodes.
	WithoutNodes bool
	// Shape is the kind of workload for the controllers; empty to leave it open.
	Shape string
	// NodeDeployment says that they work on each node for its own volumes.
	NodeDeployment bool
	// Controllers are those to run.
	Controllers []string
	// ControllerArgs are arguments of the vendor's sidecars that were not given explicitly.
	ControllerArgs []string
	// Notes are for the user, in the order of their subjects.
	Notes []string
	// Refused is why no manifests can do what was requested; empty if they can.
	Refused []string
}

func (p *Plan) note(format string, args ...any) {
	p.Notes = append(p.Notes, fmt.Sprintf(format, args...))
}

// Decide returns what to keep.
func Decide(f Facts) Plan {
	p := Plan{Controllers: f.Controllers}
	p.driver(f)
	mine := f.ofDriver()
	p.places(f, mine)
	p.others(f, mine)
	onNodes := p.take(f, mine)
	p.shape(f, mine, p.topology(f) && !onNodes)
	p.work(f)
	p.inTree(f)
	return p
}

// inTree reports what ends for in-tree volumes that only upstream's sidecars translate to volumes of the driver.
func (p *Plan) inTree(f Facts) {
	if len(f.InTree) == 0 {
		return
	}
	p.note("PersistentVolumes of a plugin of Kubernetes' own whose place the driver has taken: %d, the first is %s; "+
		"csi-provisioner, csi-attacher and csi-resizer serve them, and volplane attaches, expands and deletes none of them: "+
		"keep those sidecars until no such volume is left", len(f.InTree), f.InTree[0])
}

// work reports what the CSIDriver requires and no controller does.
func (p *Plan) work(f Facts) {
	if f.Found == nil {
		return
	}
	for _, w := range []struct {
		asked             *bool
		field, by, effect string
	}{
		{f.Found.Spec.AttachRequired, "attachRequired", "attacher", "no volume is attached"},
		{f.Found.Spec.StorageCapacity, "storageCapacity", "capacity", "the scheduler finds no room for new volumes"},
	} {
		if w.asked != nil && *w.asked && !slices.Contains(p.Controllers, w.by) {
			p.note("the CSIDriver has %s: true, and %q is not among --controllers: unless another program does its work, %s",
				w.field, w.by, w.effect)
		}
	}
}

// driver decides about the CSIDriver. One that belongs to another program is never printed, because deleting the
// printed objects would delete it, too.
func (p *Plan) driver(f Facts) {
	if f.Found == nil {
		p.Driver = &storagev1.CSIDriver{Spec: f.Wanted}
		return
	}
	changes := differences(f.Found.Spec, f.Wanted)
	if owner := f.Found.Labels[volume.LabelMadeBy]; owner != f.ManagedBy {
		p.note("the CSIDriver %s stays as it is, and is not printed: it is not volplane's", f.Driver)
		for _, c := range changes {
			p.Refused = append(p.Refused, fmt.Sprintf("%s of the CSIDriver %s is %s, not %s, and the CSIDriver is not "+
				"volplane's: change it where it is created", c.field, f.Driver, c.is, c.wanted))
		}
		return
	}
	for _, c := range changes {
		if immutable(c.field) {
			p.Refused = append(p.Refused, fmt.Sprintf("%s of the CSIDriver %s is %s and cannot become %s: Kubernetes never "+
				"changes it; delete the CSIDriver first ('kubectl delete csidriver %s'), and no Pod can mount a volume of the "+
				"driver until it is there again", c.field, f.Driver, c.is, c.wanted, f.Driver))
		}
	}
	p.Driver = f.Found.DeepCopy()
	p.Driver.Spec = overlay(f.Found.Spec, f.Wanted)
	delete(p.Driver.Annotations, corev1.LastAppliedConfigAnnotation)
	p.note("the CSIDriver %s is kept with all its fields", f.Driver)
}

// ours says whether volplane's manifests have created a workload.
func (f Facts) ours(w Workload) bool { return w.Labels[volume.LabelMadeBy] == f.ManagedBy }

// others reports what runs already, and what to do about it.
func (p *Plan) others(f Facts, mine []Workload) {
	if f.WithoutNodes != nil {
		p.WithoutNodes = *f.WithoutNodes
	}
	for _, w := range mine {
		if f.ours(w) {
			continue
		}
		switch registers, controls := w.registers(), w.controls(); {
		case registers && controls:
			p.both(f, w)
		case registers && f.WithoutNodes == nil:
			p.WithoutNodes = true
			p.note("%s runs the driver on the nodes, so nothing is printed for them: two drivers on a node would take each "+
				"other's socket; to replace it, delete it before you apply this (volumes stay mounted), and use "+
				"--without-nodes=false", w)
		case controls:
			p.note("%s runs controllers of the driver: delete it, or scale it to 0; if they elect a leader in the same "+
				"namespace, you can do that after volplane's run, and otherwise do it before", w)
		}
		if names := w.others(); w.controls() && len(names) > 1 {
			p.note("the containers %s of %s are not sidecars: one is the driver, and what the others do ends with them",
				strings.Join(names, ", "), w.short())
		}
	}
}

// both decides about a workload that runs the driver on nodes, and controllers: deleting it removes the driver from the
// nodes, too.
func (p *Plan) both(f Facts, w Workload) {
	what := fmt.Sprintf("%s runs the driver on the nodes, and its controllers: ", w)
	const replace = "delete it before you apply this (volumes stay mounted)"
	switch {
	case f.WithoutNodes == nil:
		p.Refused = append(p.Refused, what+"to replace it, use --without-nodes=false, and "+replace+"; to keep it on the "+
			"nodes, use --without-nodes, and take the sidecars of controllers out of it")
	case *f.WithoutNodes:
		p.note("%stake the sidecars of controllers out of it, and do not delete it", what)
	default:
		p.note("%s%s", what, replace)
	}
}

// shape decides how the controllers run: as requested, or as volplane's do already. Where each node creates its own
// volumes, only the user knows whether one controller reaches all of them.
func (p *Plan) shape(f Facts, mine []Workload, eachNode bool) {
	i := slices.IndexFunc(mine, func(w Workload) bool { return f.ours(w) && w.controls() })
	switch {
	case i >= 0:
		p.asRunning(f, mine[i])
	case eachNode && f.Shape == "":
		p.Refused = append(p.Refused, "each node creates its own volumes: if the driver's controller on a node serves only "+
			"those, use --shape=daemonset --node-deployment; and if it serves all nodes, choose with --shape")
	}
}

// asRunning keeps the shape of volplane's own workload.
func (p *Plan) asRunning(f Facts, w Workload) {
	shape := strings.ToLower(w.Kind)
	if f.Shape != "" && f.Shape != shape {
		p.note("%s runs volplane's controllers already: delete it, or those of both shapes run", w)
		return
	}
	p.Shape = shape
	p.NodeDeployment = slices.ContainsFunc(w.containers(), func(c corev1.Container) bool {
		return slices.Contains(c.Args, "--provisioner-node-deployment")
	})
	p.note("volplane's controllers run as %s already, and stay so", w)
}

// topology returns whether each node has its own topology, according to the nodes' entries for the driver.
func (p *Plan) topology(f Facts) (eachNode bool) {
	var keys []string
	segments := map[string]bool{}
	var nodes []string
	for _, n := range f.CSINodes {
		i := slices.IndexFunc(n.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == f.Driver })
		if i < 0 {
			continue
		}
		nodes = append(nodes, n.Name)
		keys = append(keys, n.Spec.Drivers[i].TopologyKeys...)
		var segment []string
		for _, k := range n.Spec.Drivers[i].TopologyKeys {
			segment = append(segment, k+"="+f.NodeLabels[n.Name][k])
		}
		segments[strings.Join(segment, ",")] = true
	}
	slices.Sort(keys)
	keys = slices.Compact(keys)
	named := strings.Join(keys, ", ")
	switch {
	case len(nodes) == 0:
		p.note("no node has registered the driver, so its topology is not known")
	case len(keys) == 0:
		p.note("the driver has no topology: its controllers may run anywhere")
	case len(nodes) == 1 && !strings.Contains(join(segments), "="+nodes[0]):
		p.note("only the node %s has registered the driver, so it is not known whether other nodes share its topology (%s)",
			nodes[0], named)
	case len(segments) == len(nodes):
		p.note("each node has a topology of its own (%s), so volumes stay on the node that creates them", named)
		return true
	default:
		p.note("nodes share their topologies (%s): the controllers may run anywhere", named)
	}
	return false
}

func join(of map[string]bool) string {
	return strings.Join(slices.Sorted(maps.Keys(of)), ",")
}
