package provision

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/volume"
)

// MadeOn returns the node on which a node-local driver has made a volume, or "". Upstream's provisioner beside a driver
// on each node has the node's name in its identity.
func MadeOn(v *corev1.PersistentVolume) string {
	if node := v.Annotations[volume.AnnProvisionedOn]; node != "" || v.Spec.CSI == nil {
		return node
	}
	const fields = 3 // the time, a random number, and the rest
	parts := strings.SplitN(v.Spec.CSI.VolumeAttributes[volume.KeyIdentity], "-", fields)
	if len(parts) < fields {
		return ""
	}
	node, _ := strings.CutPrefix(parts[fields-1], v.Spec.CSI.Driver+"-")
	if node == parts[fields-1] {
		return ""
	}
	return node
}

// IsLost says whether a volume was given up with the node that has made it.
func IsLost(v *corev1.PersistentVolume) bool { return volume.IsLost(v.Annotations, MadeOn(v)) }

// IsIn says whether a volume is for the processes in a scope. place is the segment of the scope's node as its driver
// has told it, and nil if volumes are found by what was recorded at them alone. Otherwise a volume must be accessible
// from there; but one that other nodes have made is never deleted, though it may be accessible from there, too: the
// driver here may not know it, and would say that it is gone.
func IsIn(s volume.Scope, place topology.Segment, v *corev1.PersistentVolume) bool {
	made := MadeOn(v)
	if place == nil {
		return s.Has(made)
	}
	local := len(place) > 0 && v.Spec.NodeAffinity != nil && v.Spec.NodeAffinity.Required != nil
	here := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: s.Node, Labels: place}}
	if local && !topology.Selects(v.Spec.NodeAffinity.Required, here) {
		return false
	}
	return made == s.Node || made == "" && local
}

// isElsewhere says whether the volume of an intent's claim is one that another node has made: what this node may have
// made is another volume of the same name.
func (in *Intent) isElsewhere(v *corev1.PersistentVolume) bool {
	return in.Node != "" && v != nil && MadeOn(v) != "" && MadeOn(v) != in.Node
}

// isForeign says whether a driver on each node has answered with a volume that it cannot have made for this one. Its
// name may then mean the same volume on all nodes, which another one may need.
func (in *Intent) isForeign(a Answer) bool {
	return in.Node != "" && !topology.Meets(a.Segments, in.Requisite)
}

// IsVolumeOf says whether an object with the name of an intent is that of the volume that the intent may have made.
func IsVolumeOf(in *Intent, v *corev1.PersistentVolume) bool {
	return IsObjectOf(in, v) && !in.isElsewhere(v)
}

// IsSame says whether the volume that the driver has answered with is that of an object. Drivers on different nodes may
// have volumes with the same handle; if they may share one, it is taken for the same.
func IsSame(in *Intent, a Answer, v *corev1.PersistentVolume) bool {
	s := v.Spec.CSI
	return s != nil && s.Driver == in.Driver && s.VolumeHandle == a.Handle &&
		(!in.isElsewhere(v) || equality.Semantic.DeepEqual(topology.Affinity(a.Segments), v.Spec.NodeAffinity))
}

// Contest has the facts about a claim that binds at once and for which no node is selected, while the driver runs on
// each node and has a provisioner there.
type Contest struct {
	// Off says that this provisioner takes no such claims.
	Off bool
	// Wait is how long it still has to wait before it may take the claim.
	Wait time.Duration
	// Room is how many bytes the driver has for such a volume on this node; nil if it did not say.
	Room *int64
}

// IsContested says whether the provisioners of several nodes compete for a claim of a driver that is on each node.
func (f ClaimFacts) IsContested() bool {
	return f.Intent == nil && f.Claim != nil && f.Driver != "" && volume.SelectedNode(f.Claim.Annotations) == "" &&
		f.Class != nil && f.Class.Provisioner == f.Driver && !bind.BindsLate(f.Class)
}

// Delay returns for how long to wait before a claim is taken, after some attempts in vain. random is between 0 and 1.
func Delay(base, longest time.Duration, attempts int, random float64) time.Duration {
	limit := base
	for range attempts {
		if limit >= longest {
			break
		}
		limit *= 2
	}
	return time.Duration(random * float64(min(limit, longest)))
}

// compete decides whether to take a claim. What is wrong with it is told by whoever has taken it, and not by all.
func (f ClaimFacts) compete() Plan {
	c, k := f.Claim, f.Contest
	wait := func(next volume.Actor, message string) Plan {
		return because(Nothing, volume.ReasonWaitForFirstConsumer, next, message)
	}
	if k.Off {
		return wait(volume.User(),
			"claim "+c.Name+" waits until its node is selected, which provisioners of nodes do not do")
	}
	if f.Topology && len(f.Places.Allowed) > 0 {
		if _, err := topology.Require(f.Places); err != nil {
			return wait(volume.Actor{}, "claim "+c.Name+" is for another node: "+err.Error())
		}
	}
	if k.Wait > 0 {
		p := wait(volume.Actor{}, "claim "+c.Name+" is taken by the first node that has room for it")
		p.Wait = k.Wait
		return p
	}
	if bytes, err := Bytes(c.Spec.Resources.Requests.Storage()); err == nil && k.Room != nil && *k.Room < bytes {
		p := wait(volume.Actor{},
			fmt.Sprintf("claim %s is for another node: driver %s has %d bytes on node %s", c.Name, f.Driver,
				*k.Room, f.Scope.Node))
		p.Full = true
		return p
	}
	if why := f.elsewhere(f.origin()); why != "" {
		p := wait(volume.Actor{}, "claim "+c.Name+" is for another node: "+why)
		p.Full = true
		return p
	}
	p := because(Take, volume.ReasonProvisioning, volume.Actor{}, "claim "+c.Name+" is taken by node "+f.Scope.Node)
	p.Node = f.Scope.Node
	return p
}

// Wanted returns the intent of the claim's volume as it would be on the node of this provisioner, or nil if there can
// be none.
func Wanted(f ClaimFacts) *Intent { return request(f).Intent }

// Taken returns the claim with a selected node.
func Taken(claim *corev1.PersistentVolumeClaim, node string) *corev1.PersistentVolumeClaim {
	c := claim.DeepCopy()
	metav1.SetMetaDataAnnotation(&c.ObjectMeta, volume.AnnSelectedNode, node)
	return c
}
