package why

import (
	"fmt"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/decide/chain"
	"volplane.dev/volplane/internal/decide/drivers"
	"volplane.dev/volplane/internal/volume"
)

// actor is a program that acts next, as far as a Lease tells whether it lives.
type actor struct {
	// name is the program in a sentence, and subject the object that it is told
	// under.
	name, subject string
	// namespace holds its lease; empty where drivers' sidecars are, wherever that is.
	namespace, lease string
	reason           volume.Reason
	// next is who has to look when it does not live.
	next string
}

// alive adds to the links that wait for a program what its Lease says of it, when
// it does not live. A program without a lease may have been told not to use one,
// so nothing is said of it.
func (f facts) alive(links []chain.Link) []chain.Link {
	if len(f.Leases) == 0 && !f.LeasesHidden {
		return links
	}
	out := make([]chain.Link, 0, len(links))
	for _, l := range links {
		a, known := f.actor(l)
		if known && l.State == chain.Waiting && f.LeasesHidden {
			l.Because.Message += "; whether " + a.name + " is alive is not told, for you may not list leases"
		}
		out = append(out, l)
		if !known {
			continue
		}
		dead, ok := f.dead(a)
		if !ok {
			dead, ok = f.untouched(l, a)
		}
		if ok && !slices.Contains(out, dead) {
			out = append(out, dead)
		}
	}
	return out
}

// actor returns the program that has to act before a link holds; false when none
// does, or none that has a lease.
func (f facts) actor(l chain.Link) (actor, bool) {
	next, driver := l.Because.Next, f.driverName()
	if next == driver {
		next = callerOf(l.Subject)
	}
	node, isNode := strings.CutPrefix(next, "node ")
	switch {
	case l.State == chain.OK:
	case isNode:
		return actor{
			name: "node " + node, subject: "node/" + node, namespace: corev1.NamespaceNodeLease, lease: node,
			reason: volume.ReasonNodeGone, next: "administrator of node " + node,
		}, true
	case slices.Contains([]string{"binder", "attachdetach", "protection", "ephemeral"}, next):
		return controlPlaneActor("kube-controller-manager"), true
	case next == "placement":
		return controlPlaneActor("kube-scheduler"), true
	case driver == "":
	case slices.Contains([]string{"provisioner", "attacher", "resizer"}, next):
		prefix := map[string]string{"attacher": "external-attacher-leader-", "resizer": "external-resizer-"}[next]
		return actor{
			name: "the " + next + " of driver " + driver, subject: "csidriver/" + driver,
			lease: prefix + volume.SanitizedDriver(driver), reason: volume.ReasonLeaderGone, next: driver,
		}, true
	}
	return actor{}, false
}

// callerOf returns who calls a driver for what a link is about.
func callerOf(subject string) string {
	kind, _, _ := strings.Cut(subject, "/")
	return map[string]string{
		"pv": "provisioner", "attachment": "attacher", "volumeattachment": "attacher", "resize": "resizer",
	}[kind]
}

func controlPlaneActor(name string) actor {
	return actor{
		name: name, subject: "lease/" + name, namespace: volume.NamespaceSystem, lease: name,
		reason: volume.ReasonLeaderGone, next: "administrator of the control plane",
	}
}

// leaseOf returns the lease of a program; nil when there is none. Of several the
// newest counts: some may be left of an earlier installation.
func (k known) leaseOf(a actor) *coordinationv1.Lease {
	var newest *coordinationv1.Lease
	for _, l := range k.leases[a.lease] {
		there := l.Namespace == a.namespace || a.namespace == "" && l.Namespace != corev1.NamespaceNodeLease
		if there && (newest == nil || renewed(newest).Before(renewed(l))) {
			newest = l
		}
	}
	return newest
}

// dead tells of a program whose lease nobody renews; false when somebody does, or
// when there is no lease.
func (k known) dead(a actor) (chain.Link, bool) {
	l := k.leaseOf(a)
	if l == nil || l.Spec.RenewTime == nil {
		return chain.Link{}, false
	}
	age, name := k.clock.Sub(renewed(l)), l.Namespace+"/"+l.Name
	if age <= max(time.Duration(ptr.Deref(l.Spec.LeaseDurationSeconds, 0))*time.Second, shortestLease) {
		return chain.Link{}, false
	}
	holder := ptr.Deref(l.Spec.HolderIdentity, "")
	message := fmt.Sprintf("%s shows no sign of life: %s has renewed lease %s for the last time %s ago",
		a.name, holder, name, age.Round(time.Second))
	if holder == "" {
		message = fmt.Sprintf("%s does not run: lease %s was given back %s ago, and nobody has taken it since",
			a.name, name, age.Round(time.Second))
	}
	return chain.New(a.subject, chain.Problem, a.reason, message, a.next), true
}

// untouched tells of an attachment that no attacher has taken up, when there is no
// lease of an attacher either: each adds its finalizer before it calls the driver.
func (f facts) untouched(l chain.Link, a actor) (chain.Link, bool) {
	node := strings.TrimPrefix(l.Subject, "attachment/")
	inProcess := drivers.ControlPlane(f.view) != nil // whose attacher needs no lease
	if inProcess || f.LeasesHidden || f.leaseOf(a) != nil || l.Because.Reason != volume.ReasonAttaching {
		return chain.Link{}, false
	}
	for _, va := range f.attached() {
		finalizer := volume.AttacherFinalizer(va.Spec.Attacher)
		if va.Spec.NodeName != node || slices.Contains(va.Finalizers, finalizer) ||
			f.clock.Sub(va.CreationTimestamp.Time) < patience {
			continue
		}
		message := fmt.Sprintf("no attacher of driver %s has taken up what there is to attach: finalizer %s is missing, "+
			"and nobody has ever held lease %s", va.Spec.Attacher, finalizer, a.lease)
		return chain.New(a.subject, chain.Problem, a.reason, message, a.next), true
	}
	return chain.Link{}, false
}

// patience is how long an attacher may take to take up an attachment.
const patience = time.Minute

// shortestLease is how old the last sign of life of a program may be at least: that
// is what sidecars and control planes take, if nobody says otherwise.
const shortestLease = 15 * time.Second

func renewed(l *coordinationv1.Lease) time.Time {
	if l.Spec.RenewTime == nil {
		return time.Time{}
	}
	return l.Spec.RenewTime.Time
}

// readLeases puts the leases in order, and finds out what time it is at the cluster.
// The clock of whoever asks may be another one; but the API server that has answered
// renews a lease of its own every ten seconds, so the newest renewal is no older.
func (k *known) readLeases() {
	k.leases = make(map[string][]*coordinationv1.Lease, len(k.Leases))
	var newest time.Time
	for _, l := range k.Leases {
		k.leases[l.Name] = append(k.leases[l.Name], l)
		if t := renewed(l); newest.Before(t) {
			newest = t
		}
	}
	k.clock = k.Now
	if !newest.IsZero() && k.Now.Sub(newest).Abs() > shortestLease {
		k.clock = newest
	}
}
