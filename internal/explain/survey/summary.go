package survey

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/driverstatus"
	"volplane.dev/volplane/internal/decide/health"
	"volplane.dev/volplane/internal/decide/nodelife"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/since"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/explain/why"
	"volplane.dev/volplane/internal/volume"
)

// Path is the URL path at which a control plane that has its objects in memory serves a Summary as JSON, and
// ParameterNamespace the parameter that restricts it to a namespace.
const (
	Path               = "/volplane/summary"
	ParameterNamespace = "namespace"
)

// Summary is what there is to say about a whole cluster, or about a namespace with the cluster's volumes and nodes. It
// names only objects about which something is to be said, so that it stays small however many there are.
type Summary struct {
	// Now is when the objects were read.
	Now time.Time
	// Claims, Volumes and Attachments are the numbers of objects by phase.
	Claims, Volumes, Attachments map[string]int
	Pods                         int
	// Unbound are the claims that are not bound. UnhealthyClaims and UnhealthyPods have volumes that are not well.
	Unbound, UnhealthyClaims, UnhealthyPods Some
	// Storage is what drivers say of storage that is not well.
	Storage    []Said
	Nodes      []NodeState
	Unresolved Unresolved
	Causes     []Cause
}

// Some is a number of objects, and the first of them.
type Some struct {
	Number int
	First  Held
}

func (s *Some) add(namespace, subject string) {
	if s.Number++; s.Number == 1 {
		s.First = Held{namespace, subject}
	}
}

// Said is a message about something on a node.
type Said struct{ Node, Message string }

// NodeState is the state of a node.
type NodeState struct {
	Name    string
	Created time.Time
	Ready   bool
	// Attached and InUse are the numbers of volumes in its status.
	Attached, InUse int
	// Drivers have registered there.
	Drivers []string
	// Unusable is why drivers cannot be used there.
	Unusable []string
}

// Unresolved is the number of volumes whose creation has had no known outcome for some time, with the claim and the
// driver of the one that was begun first.
type Unresolved struct {
	Number        int
	Claim, Driver string
	Begun         time.Time
}

// Summarize returns what there is to say about the objects.
func Summarize(o state.Objects) Summary {
	w := why.Of(o)
	s := Summary{
		Now: o.Now, Claims: map[string]int{}, Volumes: map[string]int{}, Attachments: map[string]int{},
		Pods: len(o.Pods), Unresolved: unresolved(w), Causes: Causes(w),
	}
	s.count(o)
	s.addNodes(w)
	times := since.TimesIn(o, w.View)
	for i, c := range s.Causes {
		first := c.Waits[0]
		told := chain.Chain{Subject: first.Subject, Links: []chain.Link{c.Link}}
		s.Causes[i].Time = times.Of(first.Namespace, told, c.Link)
	}
	return s
}

func (s *Summary) count(o state.Objects) {
	for _, c := range o.Claims {
		s.Claims[string(c.Status.Phase)]++
		if c.Status.Phase != corev1.ClaimBound {
			s.Unbound.add(c.Namespace, c.Name)
		}
		if c.Status.HealthStatus != nil && len(c.Status.HealthStatus.HealthConditions) > 0 {
			s.UnhealthyClaims.add(c.Namespace, c.Name)
		}
	}
	for _, v := range o.Volumes {
		s.Volumes[string(v.Status.Phase)]++
	}
	for _, a := range o.Attachments {
		s.Attachments[attachedOrNot(a)]++
	}
	for _, p := range o.Pods {
		if !cluster.Finished(p) && isUnhealthy(p) {
			s.UnhealthyPods.add(p.Namespace, p.Name)
		}
	}
}

func attachedOrNot(a *storagev1.VolumeAttachment) string {
	if a.Status.Attached {
		return "attached"
	}
	return "not attached"
}

// isUnhealthy says whether the node agent or a kubelet reports an unhealthy volume of a Pod.
func isUnhealthy(p *corev1.Pod) bool {
	return cluster.IsFalse(cluster.PodCondition(p, volume.ConditionVolumesHealthy)) ||
		slices.ContainsFunc(p.Status.VolumeHealth, func(h corev1.PodVolumeHealth) bool {
			return len(h.HealthConditions) > 0
		})
}

func (s *Summary) addNodes(w why.Walk) {
	for _, n := range w.CSINodes {
		for _, d := range n.Spec.Drivers {
			if b, bad := health.StorageProblem(n, d.Name, nil); bad {
				s.Storage = append(s.Storage, Said{n.Name, b.Message})
			}
		}
	}
	for _, n := range w.Nodes {
		is := NodeState{
			Name: n.Name, Created: n.CreationTimestamp.Time, Ready: nodelife.Ready(n),
			Attached: len(n.Status.VolumesAttached), InUse: len(n.Status.VolumesInUse),
		}
		if registered := cluster.Find(w.View.CSINodes, n.Name); registered != nil {
			for _, d := range registered.Spec.Drivers {
				is.Drivers = append(is.Drivers, d.Name)
			}
		}
		notes := driverstatus.Of(n)
		for _, driver := range slices.Sorted(maps.Keys(notes)) {
			if b := driverstatus.Absent(driver, n); notes[driver] != "" && b.Reason != "" {
				is.Unusable = append(is.Unusable, b.Message)
			}
		}
		s.Nodes = append(s.Nodes, is)
	}
}

func unresolved(w why.Walk) Unresolved {
	var u Unresolved
	for _, in := range Unsettled(w) {
		if u.Number++; u.Number == 1 || in.Begun.Time.Before(u.Begun) {
			u.Claim, u.Driver, u.Begun = in.Claim.Namespace+"/"+in.Claim.Name, in.Driver, in.Begun.Time
		}
	}
	return u
}
