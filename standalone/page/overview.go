package page

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/decide/diskspace"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/survey"
	"volplane.dev/volplane/internal/gather"
)

const (
	// mostCauses limits the causes on the first page, and mostWaits the objects named for each.
	mostCauses, mostWaits = 20, 5
	// mostRows bounds the drivers and nodes on the first page.
	mostRows = 200
)

// overview is the first page.
type overview struct {
	Counts            []count
	Causes            []causeView
	Problems, Waiting int
	// MoreCauses, MoreDrivers and MoreNodes are how many are not shown.
	MoreCauses, MoreDrivers, MoreNodes int
	Drivers                            []driverView
	Nodes                              []nodeView
}

// count is how many objects of a kind there are, by their states.
type count struct{ Kind, Text, Href, Command string }

// causeView is why something waits.
type causeView struct {
	Link    linkView
	Waits   []ref
	More    int
	Chain   chainView
	Command string
}

// driverView is a driver, with what it says of itself.
type driverView struct {
	Name    ref
	State   chain.State
	Health  string
	Nodes   int
	Volumes int
	Pace    string
	Command string
}

// nodeView is a node, with what is mounted there.
type nodeView struct {
	Name       ref
	State      chain.State
	Drivers    int
	Uses       int
	Href       string
	Used, Free string
	Command    string
}

func (g glance) overview() overview {
	v := overview{Counts: g.counts()}
	for _, c := range g.causes {
		if c.State == chain.Problem {
			v.Problems++
		} else {
			v.Waiting++
		}
	}
	shown := g.causes[:min(len(g.causes), mostCauses)]
	for _, c := range shown {
		v.Causes = append(v.Causes, g.cause(c))
	}
	v.MoreCauses = len(g.causes) - len(shown)
	v.Drivers, v.Nodes = g.drivers(), g.nodes()
	v.Drivers, v.MoreDrivers = firstRows(v.Drivers)
	v.Nodes, v.MoreNodes = firstRows(v.Nodes)
	return v
}

// firstRows returns the rows of a table that are shown, and the number of the others.
func firstRows[T any](all []T) (shown []T, more int) {
	shown = all[:min(len(all), mostRows)]
	return shown, len(all) - len(shown)
}

func (g glance) counts() []count {
	attached := func(a *storagev1.VolumeAttachment) string {
		if a.Status.Attached {
			return "attached"
		}
		return "not attached"
	}
	phase := func(c *corev1.PersistentVolumeClaim) string { return string(c.Status.Phase) }
	volume := func(v *corev1.PersistentVolume) string { return string(v.Status.Phase) }
	return []count{
		{"Claims", tally(g.Claims, phase), g.root + "claims", "volplane get pvc -A"},
		{"Volumes", tally(g.Volumes, volume), g.root + "volumes", "volplane get pv"},
		{"Attachments", tally(g.Attachments, attached), "", "volplane get volumeattachments"},
		{
			"Uses by Pods", tally(g.uses(), func(gather.Use) string { return "on all nodes" }), g.root + "mounts",
			"volplane mounts -A",
		},
	}
}

func (g glance) cause(c survey.Cause) causeView {
	first := c.Waits[0]
	told := chain.Chain{Subject: first.Subject, Links: []chain.Link{c.Link}}
	v := causeView{
		Link:    g.chain(first.Namespace, told).Links[0],
		Command: "volplane why -A",
	}
	if o, ok := subjectOf(first.Namespace, first.Subject); ok {
		v.Command = o.command("why")
		if whole, found := g.explain(o); found {
			v.Chain = g.chain(o.ns, whole)
		}
	}
	for i, held := range c.Waits {
		if i == mostWaits {
			v.More = len(c.Waits) - i
			break
		}
		r := g.toSubject(held.Namespace, held.Subject)
		if held.Namespace != "" {
			r.Text += clean(" (" + held.Namespace + ")")
		}
		v.Waits = append(v.Waits, r)
	}
	return v
}

// drivers returns all drivers that any object names, those with problems first.
func (g glance) drivers() []driverView {
	nodes, volumes, names := map[string]int{}, map[string]int{}, map[string]bool{}
	for _, n := range g.CSINodes {
		for _, d := range n.Spec.Drivers {
			nodes[d.Name]++
			names[d.Name] = true
		}
	}
	for _, d := range g.Objects.Drivers {
		names[d.Name] = true
	}
	for _, v := range g.Volumes {
		if v.Spec.CSI != nil {
			volumes[v.Spec.CSI.Driver]++
			names[v.Spec.CSI.Driver] = true
		}
	}
	var out []driverView
	for _, name := range slices.Sorted(maps.Keys(names)) {
		out = append(out, g.driver(name, nodes[name], volumes[name]))
	}
	slices.SortStableFunc(out, func(a, b driverView) int { return cmp.Compare(rank(a.State), rank(b.State)) })
	return out
}

// rank orders states: problems first.
func rank(s chain.State) int {
	return slices.Index([]chain.State{chain.Problem, chain.Waiting, chain.OK}, s)
}

func (g glance) driver(name string, nodes, volumes int) driverView {
	o := object{"csidriver", "", name}
	v := driverView{
		Name: g.named(o), State: chain.OK, Nodes: nodes, Volumes: volumes, Command: o.command("why"), Health: "registered",
		Pace: fmt.Sprintf("%.1f", g.pace[name]),
	}
	connected, known := g.connected[name]
	switch {
	case known && connected:
		v.Health = "connected"
	case known:
		v.State, v.Health = chain.Problem, "not connected"
	case nodes == 0:
		v.State, v.Health = chain.Waiting, "not registered on any node"
	}
	return v
}

func (g glance) nodes() []nodeView {
	drivers, uses, space := map[string]int{}, map[string]int{}, map[string]Usage{}
	for _, n := range g.CSINodes {
		drivers[n.Name] = len(n.Spec.Drivers)
	}
	for _, u := range g.uses() {
		uses[u.Node]++
		if is, known := g.usage[u.Namespace+"/"+u.Claim]; known {
			sum := space[u.Node]
			space[u.Node] = Usage{sum.Used + is.Used, sum.Available + is.Available}
		}
	}
	var out []nodeView
	for _, n := range g.Nodes {
		o := object{"node", "", n.Name}
		v := nodeView{
			Name: g.named(o), State: ready(n), Drivers: drivers[n.Name], Uses: uses[n.Name],
			Href: g.root + "mounts" + query{node: n.Name}.encode(), Command: o.command("why"),
		}
		if sum, known := space[n.Name]; known {
			v.Used, v.Free = diskspace.Text(sum.Used), diskspace.Text(sum.Available)
		}
		out = append(out, v)
	}
	slices.SortStableFunc(out, func(a, b nodeView) int { return cmp.Compare(rank(a.State), rank(b.State)) })
	return out
}

// sizeOf returns a size as its owner wrote it.
func sizeOf(list corev1.ResourceList) string {
	q, ok := list[corev1.ResourceStorage]
	if !ok {
		return ""
	}
	return clean(strings.TrimSpace(q.String()))
}
