package lease

import (
	"fmt"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	decide "volplane.dev/volplane/internal/decide/lease"
	"volplane.dev/volplane/internal/decide/planes"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/volume"
)

// Leases show which programs are alive.
type Leases struct {
	byName map[string][]*coordinationv1.Lease
	// hidden says that they could not be read.
	hidden bool
	// clock is the time at the cluster.
	clock time.Time
}

// Read indexes the leases, and determines the time of the cluster. The clock of this host
// may differ from it; but the API server that has answered renews its own lease every ten
// seconds, so the newest renewal is not older than that.
func Read(all []*coordinationv1.Lease, hidden bool, now time.Time) Leases {
	l := Leases{byName: make(map[string][]*coordinationv1.Lease, len(all)), hidden: hidden, clock: now}
	var newest time.Time
	for _, one := range all {
		l.byName[one.Name] = append(l.byName[one.Name], one)
		if t := renewed(one); newest.Before(t) {
			newest = t
		}
	}
	if !newest.IsZero() && now.Sub(newest).Abs() > shortestLease {
		l.clock = newest
	}
	return l
}

// Facts are about the volume that links are about.
type Facts struct {
	View cluster.View
	// Volume is nil when there is none; Driver is its driver, or the one that is to make it.
	Volume *corev1.PersistentVolume
	Driver string
}

// actor is a program that acts next, if a Lease shows whether it is alive.
type actor struct {
	// name is the program in a sentence, and subject the object under which it is reported.
	name, subject string
	// namespace holds its lease; empty where drivers' sidecars are, wherever that is.
	namespace, lease string
	reason           volume.Reason
	// next is who has to look when it does not live.
	next volume.Actor
}

// Follow adds to the links that wait for a program what its Lease says of it, if the
// program is not alive. A program without a lease may be configured not to use one, so
// nothing is said about it.
func (l Leases) Follow(links []chain.Link, f Facts) []chain.Link {
	if len(l.byName) == 0 && !l.hidden {
		return links
	}
	out := make([]chain.Link, 0, len(links))
	for _, link := range links {
		a, known := f.actor(link)
		if known && link.State == chain.Waiting && l.hidden {
			link.Because.Message += "; whether " + a.name + " is alive is not known, because you may not list leases"
		}
		out = append(out, link)
		if !known {
			continue
		}
		dead, ok := l.dead(a)
		if !ok {
			dead, ok = l.untouched(link, a, f)
		}
		if ok && !slices.Contains(out, dead) {
			out = append(out, dead)
		}
	}
	return out
}

// actor returns the program that has to act before a link holds; false when none
// does, or none that has a lease.
func (f Facts) actor(l chain.Link) (actor, bool) {
	next, driver := l.Because.Next, f.Driver
	if next == volume.Driver(driver) {
		next = callerOf(l.Subject)
	}
	switch {
	case l.State == chain.OK:
	case next.Node() != "":
		return actor{
			name: next.String(), subject: "node/" + next.Name, namespace: corev1.NamespaceNodeLease, lease: next.Name,
			reason: volume.ReasonNodeGone, next: volume.Administrator(next.Name),
		}, true
	case next.Kind != volume.KindController:
	case slices.Contains([]string{"binder", "attachdetach", "protection", "ephemeral"}, next.Name):
		return f.controlPlane("kube-controller-manager"), true
	case next.Name == "placement":
		return f.controlPlane("kube-scheduler"), true
	case driver == "":
	case slices.Contains([]string{"provisioner", "attacher", "resizer"}, next.Name):
		name := map[string]func(string) string{
			"provisioner": volume.ProvisionerLease, "attacher": volume.AttacherLease, "resizer": volume.ResizerLease,
		}[next.Name]
		return actor{
			name: "the " + next.Name + " of driver " + driver, subject: "csidriver/" + driver,
			lease: name(driver), reason: volume.ReasonLeaderGone, next: volume.Driver(driver),
		}, true
	}
	return actor{}, false
}

// callerOf returns who calls a driver for what a link is about.
func callerOf(subject string) volume.Actor {
	kind, _, _ := strings.Cut(subject, "/")
	return volume.Controller(map[string]string{
		"pv": "provisioner", "attachment": "attacher", "volumeattachment": "attacher", "resize": "resizer",
	}[kind])
}

// controlPlane returns the program of Kubernetes with that name, or what does its work in one of volplane's control
// planes.
func (f Facts) controlPlane(name string) actor {
	lease := name
	if planes.First(f.View.Nodes.List()) != "" {
		name, lease = "the control plane that runs the controllers of the cluster", volume.ControlPlaneLease
	}
	return actor{
		name: name, subject: "lease/" + lease, namespace: volume.NamespaceSystem, lease: lease,
		reason: volume.ReasonLeaderGone, next: volume.ControlPlane(),
	}
}

// of returns the lease of a program; nil when there is none. Of several the
// newest counts: some may be left of an earlier installation.
func (l Leases) of(a actor) *coordinationv1.Lease {
	var newest *coordinationv1.Lease
	for _, one := range l.byName[a.lease] {
		there := one.Namespace == a.namespace || a.namespace == "" && one.Namespace != corev1.NamespaceNodeLease
		if there && (newest == nil || renewed(newest).Before(renewed(one))) {
			newest = one
		}
	}
	return newest
}

// dead reports a program whose lease is not being renewed; false if it is, or if there is
// no lease.
func (l Leases) dead(a actor) (chain.Link, bool) {
	held := l.of(a)
	if held == nil || held.Spec.RenewTime == nil {
		return chain.Link{}, false
	}
	held = l.first(held)
	age, name := l.clock.Sub(renewed(held)), held.Namespace+"/"+held.Name
	if age <= max(time.Duration(ptr.Deref(held.Spec.LeaseDurationSeconds, 0))*time.Second, shortestLease) {
		return chain.Link{}, false
	}
	holder := ptr.Deref(held.Spec.HolderIdentity, "")
	message := fmt.Sprintf("%s shows no sign of life: %s last renewed lease %s %s ago",
		a.name, holder, name, age.Round(time.Second))
	if holder == "" {
		message = fmt.Sprintf("%s is not running: lease %s was released %s ago, and no process has acquired it since",
			a.name, name, age.Round(time.Second))
	}
	return chain.New(a.subject, chain.Problem, a.reason, message, a.next), true
}

// first returns the lease without which the holder of a long lease does not work, if the lease says so: it shows within
// seconds that the holder is dead. Otherwise it returns the lease itself.
func (l Leases) first(long *coordinationv1.Lease) *coordinationv1.Lease {
	holder := ptr.Deref(long.Spec.HolderIdentity, "")
	for _, one := range l.byName[decide.With(long.Annotations[volume.AnnHeldWith], holder)] {
		if one.Namespace == long.Namespace && ptr.Deref(one.Spec.HolderIdentity, "") == holder {
			return one
		}
	}
	return long
}

// Held says whether a lease of that name, in any namespace, has a holder that is alive.
func (l Leases) Held(name string) bool {
	a := actor{lease: name}
	_, dead := l.dead(a)
	return l.of(a) != nil && !dead
}

// Calls says whether a live process may call a driver as its attacher does, as far as leases may be read: to a user
// who may not read them, a missing lease is not reported.
func (l Leases) Calls(driver string) bool {
	held := l.of(actor{lease: volume.AttacherLease(driver)})
	return l.hidden || held != nil && ptr.Deref(held.Spec.HolderIdentity, "") != "" && l.Held(held.Name)
}

// untouched reports an attachment that no attacher has taken up, if there is no lease of
// an attacher either: each adds its finalizer before it calls the driver.
func (l Leases) untouched(link chain.Link, a actor, f Facts) (chain.Link, bool) {
	node := strings.TrimPrefix(link.Subject, "attachment/")
	if l.hidden || l.of(a) != nil || link.Because.Reason != volume.ReasonAttaching || f.Volume == nil {
		return chain.Link{}, false
	}
	for _, va := range f.View.Attachments.By(cluster.AttachmentsByVolume, f.Volume.Name) {
		finalizer := volume.AttacherFinalizer(va.Spec.Attacher)
		if va.Spec.NodeName != node || slices.Contains(va.Finalizers, finalizer) ||
			l.clock.Sub(va.CreationTimestamp.Time) < patience {
			continue
		}
		message := fmt.Sprintf("no attacher of driver %s has begun to attach: finalizer %s is missing, "+
			"and no process has ever held lease %s", va.Spec.Attacher, finalizer, a.lease)
		return chain.New(a.subject, chain.Problem, a.reason, message, a.next), true
	}
	return chain.Link{}, false
}

// patience is how long an attacher may take to take up an attachment.
const patience = time.Minute

// shortestLease is the minimum age at which the last renewal of a program counts as too
// old: the default lease duration of sidecars and control planes.
const shortestLease = 15 * time.Second

func renewed(l *coordinationv1.Lease) time.Time {
	if l.Spec.RenewTime == nil {
		return time.Time{}
	}
	return l.Spec.RenewTime.Time
}
