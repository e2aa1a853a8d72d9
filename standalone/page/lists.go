package page

import (
	"cmp"
	"net/url"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/decide/diskspace"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/gather"
)

// These are the limits of a list's parameters.
const maxFind, maxPage = 80, 1 << 20

// queryOf reads the parameters of a list. Invalid ones are ignored.
func queryOf(v url.Values) query {
	q := query{find: clean(v.Get("find")), node: v.Get("node")}
	if n, err := strconv.Atoi(v.Get("page")); err == nil && n > 1 && n < maxPage {
		q.page = n - 1
	}
	if len(q.find) > maxFind {
		q.find = ""
	}
	if len(q.node) > 253 {
		q.node = ""
	}
	return q
}

// encode returns the query of an address, with its question mark; "" without parameters.
func (q query) encode() string {
	v := url.Values{}
	if q.page > 0 {
		v.Set("page", strconv.Itoa(q.page+1))
	}
	if q.find != "" {
		v.Set("find", q.find)
	}
	if q.node != "" {
		v.Set("node", q.node)
	}
	if len(v) == 0 {
		return ""
	}
	return "?" + v.Encode()
}

// claimList is the page of all claims, those with problems first.
type claimList struct {
	Counts string
	Rows   []claimRow
	Pages  pages
}

type claimRow struct {
	Namespace                   string
	Name                        ref
	State                       chain.State
	Phase, Size, Class, Command string
	Volume                      ref
}

func (g glance) claims(q query) claimList {
	type line struct {
		*corev1.PersistentVolumeClaim
		state chain.State
	}
	var all []line
	for _, c := range g.Claims {
		if q.found(c.Name, c.Namespace) {
			all = append(all, line{c, g.stateOf(object{"pvc", c.Namespace, c.Name})})
		}
	}
	slices.SortStableFunc(all, func(a, b line) int { return cmp.Compare(rank(a.state), rank(b.state)) })
	part, links := cut(all, g.root+"claims", q)
	v := claimList{
		Counts: tally(g.Claims, func(c *corev1.PersistentVolumeClaim) string { return string(c.Status.Phase) }), Pages: links,
	}
	for _, c := range part {
		o := object{"pvc", c.Namespace, c.Name}
		class, _ := bind.ClassOf(c.PersistentVolumeClaim)
		row := claimRow{
			Namespace: clean(c.Namespace), Name: g.named(o), State: c.state, Phase: clean(string(c.Status.Phase)),
			Size: cmp.Or(sizeOf(c.Status.Capacity), sizeOf(c.Spec.Resources.Requests)), Class: clean(class),
			Command: o.command("why"),
		}
		if c.Spec.VolumeName != "" {
			row.Volume = g.named(object{"pv", "", c.Spec.VolumeName})
		}
		v.Rows = append(v.Rows, row)
	}
	return v
}

// volumeList is the page of all volumes.
type volumeList struct {
	Counts string
	Rows   []volumeRow
	Pages  pages
}

type volumeRow struct {
	Name                 ref
	State                chain.State
	Phase, Size, Command string
	Claim, Driver        ref
}

func (g glance) volumes(q query) volumeList {
	var all []*corev1.PersistentVolume
	for _, v := range g.Volumes {
		if q.found(v.Name) || v.Spec.ClaimRef != nil && q.found(v.Spec.ClaimRef.Name, v.Spec.ClaimRef.Namespace) {
			all = append(all, v)
		}
	}
	state := func(v *corev1.PersistentVolume) chain.State { return g.stateOf(object{"pv", "", v.Name}) }
	slices.SortStableFunc(all, func(a, b *corev1.PersistentVolume) int {
		return cmp.Compare(rank(state(a)), rank(state(b)))
	})
	part, links := cut(all, g.root+"volumes", q)
	out := volumeList{
		Counts: tally(g.Volumes, func(v *corev1.PersistentVolume) string { return string(v.Status.Phase) }), Pages: links,
	}
	for _, v := range part {
		o := object{"pv", "", v.Name}
		row := volumeRow{
			Name: g.named(o), State: state(v), Phase: clean(string(v.Status.Phase)), Size: sizeOf(v.Spec.Capacity),
			Command: o.command("why"),
		}
		if c := v.Spec.ClaimRef; c != nil {
			row.Claim = g.named(object{"pvc", c.Namespace, c.Name})
		}
		if v.Spec.CSI != nil {
			row.Driver = g.named(object{"csidriver", "", v.Spec.CSI.Driver})
		}
		out.Rows = append(out.Rows, row)
	}
	return out
}

// mountList is the page of what Pods use, by node.
type mountList struct {
	// Node is the only node whose uses are shown; "" means all.
	Node  string
	Rows  []mountRow
	Pages pages
}

type mountRow struct {
	Node, Claim, Pod                            ref
	Namespace, Path, Since, Used, Free, Command string
}

func (g glance) mounts(q query) mountList {
	all := slices.DeleteFunc(g.uses(), func(u gather.Use) bool {
		return q.node != "" && u.Node != q.node || !q.found(u.Claim, u.Namespace, u.Pod, u.Node)
	})
	part, links := cut(all, g.root+"mounts", q)
	v := mountList{Node: clean(q.node), Pages: links}
	for _, u := range part {
		claim := object{"pvc", u.Namespace, u.Claim}
		row := mountRow{
			Node: g.named(object{"node", "", u.Node}), Claim: g.named(claim), Pod: g.named(object{"pod", u.Namespace, u.Pod}),
			Namespace: clean(u.Namespace), Path: clean(u.Path), Since: "not mounted", Command: claim.command("why"),
		}
		if u.Since != nil {
			row.Since = chain.Moment(u.Since.Time)
		}
		if is, known := g.usage[u.Namespace+"/"+u.Claim]; known {
			row.Used, row.Free = diskspace.Text(is.Used), diskspace.Text(is.Available)
		}
		v.Rows = append(v.Rows, row)
	}
	return v
}
