package page

import (
	"cmp"
	"context"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/decide/diskspace"
	"volplane.dev/volplane/internal/gather"
)

// about is the page of one object.
type about struct {
	Subject string
	// Namespace is empty for objects without one.
	Namespace string
	// Gone means that the object does not exist.
	Gone     bool
	Chain    chainView
	Facts    []fact
	Life     []moment
	Commands []string
	// Untold says why the history is incomplete; "" if it is complete.
	Untold string
	// failed says that it is because something could not be read.
	failed bool
}

// fact is one thing that is known of an object.
type fact struct {
	Name  string
	Value ref
}

// about returns the page of an object.
func (g glance) about(ctx context.Context, p Plane, o object) about {
	v := about{Subject: clean(o.subject()), Namespace: clean(o.ns)}
	told, found := g.explain(o)
	if !found {
		v.Gone = true
		return v
	}
	v.Chain, v.Commands = g.chain(o.ns, told), []string{o.command("why"), o.command("describe"), o.command("events")}
	related := g.related(o)
	v.Facts = g.facts(o)
	for _, r := range related[1:] {
		v.Facts = append(v.Facts, fact{"Related", g.to(r)})
	}
	v.Life, v.Untold, v.failed = p.life(ctx, related)
	return v
}

// facts returns what is known of a claim, volume, driver or node, in addition to its explanation.
func (g glance) facts(o object) []fact {
	var out []fact
	add := func(name string, value ref) {
		if value.Text != "" {
			out = append(out, fact{name, value})
		}
	}
	text := func(name, value string) { add(name, ref{Text: clean(value)}) }
	switch o.kind {
	case "pvc":
		if c := cluster.Find(g.walk.View.Claims, o.ns+"/"+o.name); c != nil {
			g.claimFacts(c, add, text)
		}
	case "pv":
		if v := cluster.Find(g.walk.View.Volumes, o.name); v != nil {
			g.volumeFacts(v, add, text)
		}
	case "csidriver":
		for _, d := range g.drivers() {
			if d.Name.Text == clean(o.name) {
				text("Health", d.Health)
				text("Nodes", strconv.Itoa(d.Nodes))
				text("Volumes", strconv.Itoa(d.Volumes))
				text("Calls per second", d.Pace)
			}
		}
	case "node":
		for _, n := range g.nodes() {
			if n.Name.Text == clean(o.name) {
				text("Drivers", strconv.Itoa(n.Drivers))
				add("Uses by Pods", ref{strconv.Itoa(n.Uses), n.Href})
				text("Used", n.Used)
				text("Free", n.Free)
			}
		}
	}
	return out
}

func (g glance) claimFacts(c *corev1.PersistentVolumeClaim, add func(string, ref), text func(string, string)) {
	class, _ := bind.ClassOf(c)
	text("Phase", string(c.Status.Phase))
	text("Size", cmp.Or(sizeOf(c.Status.Capacity), sizeOf(c.Spec.Resources.Requests)))
	text("Access", accessOf(c.Spec.AccessModes))
	if class != "" {
		add("Class", g.named(object{"storageclass", "", class}))
	}
	if c.Spec.VolumeName != "" {
		add("Volume", g.named(object{"pv", "", c.Spec.VolumeName}))
	}
	for _, p := range g.walk.View.Pods.By(cluster.PodsByClaim, cluster.Key(c)) {
		for _, u := range gather.UsesOf(p) {
			if u.Claim == c.Name {
				text("Mounted at", u.Path)
				add("On node", g.named(object{"node", "", u.Node}))
			}
		}
	}
	if is, known := g.usage[cluster.Key(c)]; known {
		text("Used", diskspace.Text(is.Used))
		text("Free", diskspace.Text(is.Available))
	}
}

func (g glance) volumeFacts(v *corev1.PersistentVolume, add func(string, ref), text func(string, string)) {
	text("Phase", string(v.Status.Phase))
	text("Size", sizeOf(v.Spec.Capacity))
	text("Access", accessOf(v.Spec.AccessModes))
	text("When released", string(v.Spec.PersistentVolumeReclaimPolicy))
	if c := v.Spec.ClaimRef; c != nil {
		add("Claim", g.to(object{"pvc", c.Namespace, c.Name}))
	}
	if v.Spec.CSI != nil {
		add("Driver", g.named(object{"csidriver", "", v.Spec.CSI.Driver}))
		text("Handle", v.Spec.CSI.VolumeHandle)
	}
}

func accessOf(modes []corev1.PersistentVolumeAccessMode) string {
	out := ""
	for _, m := range modes {
		out += " " + string(m)
	}
	return clean(out)
}
