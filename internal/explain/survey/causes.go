package survey

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/drivers"
	"volplane.dev/volplane/internal/explain/since"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/explain/why"
	"volplane.dev/volplane/internal/volume"
)

// Cause is a link that does not hold, and all objects that wait because of it.
type Cause struct {
	chain.Link
	// Waits are the objects that wait.
	Waits []Held
	// Time is what is known of when the link stopped to hold; only Summarize looks.
	Time since.Time
}

// Held is an object that waits, "type/name"; Namespace is empty for an object
// without one.
type Held struct{ Namespace, Subject string }

// Causes returns everything that does not hold, sorted by the number of objects that wait for it. It inspects each
// claim, Pod, snapshot, group of snapshots and node, each volume without a claim, each volume that is being moved, and
// the volumes without a claim that were requested from drivers; each counts for the first of its links that does not
// hold.
func Causes(w why.Walk) []Cause {
	g := grouping{at: map[group]int{}}
	if w.Full != nil {
		g.add("", chain.Chain{
			Subject: "control plane", Links: []chain.Link{{Subject: "control plane", State: chain.Problem, Because: *w.Full}},
		})
	}
	g.addNamespaced(w)
	g.addVolumes(w)
	for _, n := range w.Nodes {
		c := aboutNode(w, n)
		c.Links = append(c.Links, refused(n)...)
		g.add("", c)
	}
	g.joinDrivers()
	slices.SortStableFunc(g.causes, func(a, b Cause) int {
		return cmp.Or(len(b.Waits)-len(a.Waits), cmp.Compare(a.Subject, b.Subject),
			cmp.Compare(a.Waits[0].Namespace, b.Waits[0].Namespace))
	})
	return g.causes
}

// addNamespaced adds what waits in namespaces.
func (g *grouping) addNamespaced(w why.Walk) {
	for _, c := range w.Claims {
		g.add(c.Namespace, claimChain(w, c))
	}
	for _, p := range w.Pods {
		if c := w.AboutPod(p); !cluster.Finished(p) && (drivers.UsesVolumes(w.View, p) || !unplacedAlone(c)) {
			g.add(p.Namespace, c)
		}
	}
	for _, s := range w.Snapshots {
		g.add(s.Namespace, w.AboutSnapshot(s))
	}
	for _, s := range w.Groups {
		g.add(s.Namespace, w.AboutGroup(s))
	}
}

// addVolumes adds volumes without an existing claim, and those without a claim that were requested from drivers.
func (g *grouping) addVolumes(w why.Walk) {
	for _, v := range w.Volumes {
		if v.Status.Phase != corev1.VolumeBound {
			g.add("", w.AboutVolume(v))
		}
	}
	for _, m := range w.Moves {
		// Existing objects have already been inspected.
		ns, name, _ := strings.Cut(m.Claim, "/")
		switch {
		case m.Claim != "" && cluster.Find(w.View.Claims, m.Claim) == nil:
			c, _ := w.Claim(ns, name)
			g.add(ns, c)
		case m.Claim == "" && cluster.Find(w.View.Volumes, m.Volume) == nil:
			c, _ := w.Volume(m.Volume)
			g.add("", c)
		}
	}
	for _, in := range Unsettled(w) {
		if c, told := abandoned(w, in); told {
			g.add(in.Claim.Namespace, c)
		}
	}
}

// unplacedAlone says whether all that is wrong is that a Pod has no node: no matter
// of volumes if the Pod has none.
func unplacedAlone(c chain.Chain) bool {
	r := c.Answer().Because.Reason
	return r == volume.ReasonFailedPlacing || r == volume.ReasonWaitForPodScheduled
}

// grouping joins the objects that wait for the same.
type grouping struct {
	causes []Cause
	at     map[group]int
	// said is what was reported for each cause.
	said [][]volume.Because
}

// group is what makes two links the same cause: the link, or the driver that is
// not there, whatever waits for it. The namespace only counts for links about what
// is in one.
type group struct {
	namespace, driver string
	link              chain.Link
}

// namespaced returns the types of links that are about something in a namespace.
func namespaced() []string { return []string{"pvc", "pod", "volumesnapshot", "volumegroupsnapshot"} }

func (g *grouping) add(ns string, c chain.Chain) {
	l := c.Answer()
	if l.State == chain.OK {
		return
	}
	key := group{link: l}
	if kind, _, _ := strings.Cut(l.Subject, "/"); slices.Contains(namespaced(), kind) {
		key.namespace = ns
	}
	if driver, dead := deadDriver(l); dead {
		key = group{driver: driver}
	}
	i, ok := g.at[key]
	if !ok {
		i, g.at[key] = len(g.causes), len(g.causes)
		g.causes, g.said = append(g.causes, Cause{Link: l}), append(g.said, nil)
	}
	g.said[i] = append(g.said[i], l.Because)
	g.causes[i].Waits = append(g.causes[i].Waits, Held{ns, c.Subject})
}

// joinDrivers gives each cause that is a driver everything that was reported about the driver.
func (g *grouping) joinDrivers() {
	for key, i := range g.at {
		all := slices.Compact(slices.Clone(g.said[i]))
		if key.driver == "" || len(all) == 1 {
			continue
		}
		g.causes[i].Subject, g.causes[i].Because.Message = "csidriver/"+key.driver, together(key.driver, all)
	}
}

// RenderCauses writes the causes for people; spaces says to name the namespaces, and when, if not nil, returns
// what is known about the time of a cause.
func RenderCauses(w io.Writer, causes []Cause, spaces bool, when func(Cause) string) error {
	var b strings.Builder
	columns := chain.Columns(w)
	for i, c := range causes {
		if i > 0 {
			b.WriteString("\n")
		}
		subject, waits := c.Subject, make([]string, 0, len(c.Waits))
		for _, w := range c.Waits {
			name := w.Subject
			if spaces && w.Namespace != "" {
				name += " (" + w.Namespace + ")"
			}
			if w.Subject == c.Subject {
				subject = name
				continue
			}
			waits = append(waits, name)
		}
		fmt.Fprintf(&b, "%s  %s  %s\n", subject, c.State, c.Because.Reason)
		text := c.Because.Message
		if next := c.Because.Next; !next.IsZero() {
			text = strings.TrimRight(text, ".") + ". Next: " + next.String() + "."
		}
		chain.Paragraph(&b, text, columns)
		if when != nil {
			chain.Paragraph(&b, when(c), columns)
		}
		if len(waits) > 0 {
			chain.Paragraph(&b, "Held up: "+chain.Names(waits), columns)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// slow is the age from which something begun is worth telling.
const slow = 10 * time.Second

// Unsettled returns the intents that are not recent: a driver was called to create a
// volume some time ago, there is no PersistentVolume yet, and the driver may have created
// it.
func Unsettled(w why.Walk) []*provision.Intent {
	var out []*provision.Intent
	for _, in := range w.Begun {
		v := cluster.Find(w.View.Volumes, in.Name)
		if w.Now.Sub(in.Begun.Time) >= slow && (v == nil || !provision.Owns(in.Claim.UID, v)) {
			out = append(out, in)
		}
	}
	return out
}

// abandoned explains an intent that no claim waits for; false if a claim does, whose own
// chain reports it.
func abandoned(w why.Walk, in *provision.Intent) (chain.Chain, bool) {
	claim := cluster.Find(w.View.Claims, in.Claim.Namespace+"/"+in.Claim.Name)
	if claim != nil && claim.UID == in.Claim.UID && claim.DeletionTimestamp == nil && claim.Spec.VolumeName == "" {
		return chain.Chain{}, false
	}
	at := ""
	if !in.Begun.IsZero() {
		at = " at " + chain.Moment(in.Begun.Time)
	}
	becomes := "deleted"
	if in.Reclaim != corev1.PersistentVolumeReclaimDelete {
		becomes = "given a PersistentVolume, because it is to be retained"
	}
	message := fmt.Sprintf("driver %s was asked for volume %s of claim %s/%s%s and may have created it, and no claim "+
		"needs it any longer; the call is repeated until its outcome is known, and what it created is then %s",
		in.Driver, in.Name, in.Claim.Namespace, in.Claim.Name, at, becomes)
	l := chain.New("intent/"+in.Name, chain.Waiting, volume.ReasonProvisioning, message, volume.Driver(in.Driver))
	if e := w.Warnings.About(in.Claim.UID, ""); e != nil {
		b := state.FromWarning(e, volume.Driver(in.Driver))
		b.Message = message + ": " + b.Message
		l = chain.Broken(l.Subject, b)
	}
	return chain.Chain{Subject: l.Subject, Links: []chain.Link{l}}, true
}

// deadDriver returns the driver that has to act before a link can hold, because it is
// missing: it has not registered, or no process serves its socket. False otherwise.
func deadDriver(l chain.Link) (string, bool) {
	dead := l.Because.Reason == volume.ReasonDriverMissing || l.Because.Reason == volume.ReasonLeaderGone ||
		l.Because.Gone
	next := l.Because.Next
	return next.Name, l.State == chain.Problem && dead && next.Kind == volume.KindDriver
}

// together returns what is reported about a missing driver, for several nodes and volumes.
func together(driver string, all []volume.Because) string {
	var nodes, out []string
	for _, b := range all {
		if b.Node != "" {
			nodes = append(nodes, b.Node)
		} else if !slices.Contains(out, b.Message) {
			out = append(out, b.Message)
		}
	}
	slices.Sort(nodes)
	if nodes = slices.Compact(nodes); len(nodes) > 0 {
		where := map[bool]string{true: "node", false: "nodes"}[len(nodes) == 1]
		missing := fmt.Sprintf("driver %s has not registered on %s %s", driver, where, chain.Names(nodes))
		out = slices.Insert(out, 0, missing)
	}
	return strings.Join(chain.Few(out), "; ")
}
