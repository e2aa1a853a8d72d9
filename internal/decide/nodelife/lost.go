package nodelife

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/volume"
)

// LostFacts is what the decision about a host that is lost for good depends on.
type LostFacts struct {
	Name string
	// Node is the Node object, or nil if it is gone.
	Node *corev1.Node
	// Others are the other Nodes.
	Others []*corev1.Node
	// Pods are those that are bound to the node, and Attachments those to it.
	Pods        []*corev1.Pod
	Attachments []*storagev1.VolumeAttachment
	// Volumes, Claims and Contents are all of the cluster; Contents are of snapshots and of groups of them.
	Volumes  []*corev1.PersistentVolume
	Claims   []*corev1.PersistentVolumeClaim
	Contents []*unstructured.Unstructured
	// Intents are the objects with the intent log of the host.
	Intents []string
	// Local says which drivers are node-local.
	Local map[string]bool
	// Own says that the control plane runs on this node.
	Own bool
	// Force says that the user insists although the node is alive, and Fenced that its identity was revoked. Unfenceable
	// means that volplane cannot revoke it: the node belongs to a cluster with kubelets.
	Force, Fenced, Unfenceable bool
}

// LostPlan is the next step for a host that is lost for good. All of it may be repeated.
type LostPlan struct {
	// Refused says that nothing is done, and Because why.
	Refused bool
	// Fence means that the identity of the host is revoked first, before anything else.
	Fence bool
	// Taint means that the Node gets the taint out-of-service, which removes its attachments by force.
	Taint bool
	// Volumes, Contents and Attachments are marked as lost with the node.
	Volumes     []*corev1.PersistentVolume
	Contents    []*unstructured.Unstructured
	Attachments []*storagev1.VolumeAttachment
	// Forget are the objects with intents to delete, and Reselect the claims that are not to wait for the node.
	Forget   []string
	Reselect []*corev1.PersistentVolumeClaim
	// Pods are deleted with a grace period of 0.
	Pods []*corev1.Pod
	// Remove means that the Node must be deleted: nothing belongs to it any more.
	Remove bool
	// Done says that there is nothing left to do.
	Done    bool
	Because volume.Because
}

// Lost decides the next step for a host that is lost for good. The order never gives one volume to two hosts: the host
// loses its identity before anything of it is released, and its Node is deleted after its Pods and its attachments.
func Lost(f LostFacts) LostPlan {
	alive := f.Node != nil && Ready(f.Node)
	switch {
	case f.Own:
		return LostPlan{Refused: true, Because: volume.Say(volume.ReasonNodeReady, volume.User(),
			"the control plane itself runs on node "+f.Name+": it is not lost")}
	case alive && f.Unfenceable:
		return LostPlan{Refused: true, Because: volume.Say(volume.ReasonNodeReady, volume.User(),
			"node "+f.Name+" is alive, and its kubelet's identity cannot be revoked from here: shut the machine down first")}
	case alive && !f.Force && !OutOfService(f.Node):
		return LostPlan{Refused: true, Because: volume.Say(volume.ReasonNodeReady, volume.User(),
			"node "+f.Name+" is alive, or was less than a minute ago: wait until it is not Ready, or use --force")}
	case !f.Fenced && !f.Unfenceable:
		return LostPlan{
			Fence: true, Because: volume.Say(volume.ReasonNodeGone, volume.Actor{},
				"the identity of node "+f.Name+" is revoked"),
		}
	}
	return f.step()
}

// step decides about a host that is fenced.
func (f LostFacts) step() LostPlan {
	p := f.marks()
	p.Remove = f.Node != nil && !p.Taint && len(f.Pods)+len(f.Attachments) == 0
	left := len(f.Pods) + len(f.Attachments) + len(p.Volumes) + len(p.Contents) + len(p.Forget) + len(p.Reselect)
	p.Done = f.Node == nil && left == 0
	p.Because = f.waits(p)
	return p
}

// marks returns what is released of a host.
func (f LostFacts) marks() LostPlan {
	p := LostPlan{Taint: f.Node != nil && !OutOfService(f.Node), Pods: f.Pods, Forget: f.Intents}
	lost, _, contents := f.made()
	p.Volumes = slices.DeleteFunc(lost, provision.IsLost)
	p.Contents = slices.DeleteFunc(contents, func(c *unstructured.Unstructured) bool {
		return volume.IsLost(c.GetAnnotations(), f.Name)
	})
	for _, a := range f.Attachments {
		if f.Local[a.Spec.Attacher] && !volume.IsLost(a.Annotations, f.Name) {
			p.Attachments = append(p.Attachments, a)
		}
	}
	for _, c := range f.Claims {
		if c.Spec.VolumeName == "" && volume.SelectedNode(c.Annotations) == f.Name {
			p.Reselect = append(p.Reselect, c)
		}
	}
	return p
}

// waits describes what a plan waits for.
func (f LostFacts) waits(p LostPlan) volume.Because {
	switch {
	case p.Done:
		return volume.Say(volume.ReasonNodeGone, volume.Actor{}, "node "+f.Name+" is gone, and nothing waits for it")
	case len(f.Pods) > 0:
		return volume.Sayf(volume.ReasonNodeGone, volume.Actor{},
			"pods of node %s that are not deleted yet: %d, the first is %s/%s", f.Name, len(f.Pods), f.Pods[0].Namespace,
			f.Pods[0].Name)
	case len(f.Attachments) > 0:
		return volume.Sayf(volume.ReasonStillAttached, volume.Driver(f.Attachments[0].Spec.Attacher), "volumes still "+
			"attached to node %s: %d, the first attachment is %s", f.Name, len(f.Attachments), f.Attachments[0].Name)
	}
	return volume.Say(volume.ReasonNodeGone, volume.Actor{}, "the objects of node "+f.Name+" are being removed")
}

// made returns what the host has created: the volumes and snapshot contents that only this host had, and the volumes
// that another node also reaches. The data of the latter may still exist, so they are left alone, and so are the host's
// snapshots, which such a node may reach as well.
func (f LostFacts) made() (lost, shared []*corev1.PersistentVolume, contents []*unstructured.Unstructured) {
	for _, v := range f.Volumes {
		if provision.MadeOn(v) != f.Name {
			continue
		}
		if f.isElsewhere(v) {
			shared = append(shared, v)
		} else {
			lost = append(lost, v)
		}
	}
	for _, c := range f.Contents {
		if len(shared) == 0 && c.GetAnnotations()[volume.AnnProvisionedOn] == f.Name {
			contents = append(contents, c)
		}
	}
	return lost, shared, contents
}

// isElsewhere says whether a volume can be used from another node, or from anywhere.
func (f LostFacts) isElsewhere(v *corev1.PersistentVolume) bool {
	if v.Spec.NodeAffinity == nil || v.Spec.NodeAffinity.Required == nil {
		return true
	}
	return slices.ContainsFunc(f.Others, func(n *corev1.Node) bool {
		return topology.Selects(v.Spec.NodeAffinity.Required, n)
	})
}

// mostNamed is how many objects a report names of each kind.
const mostNamed = 20

// LostReport says what is lost with a host, what continues elsewhere, and what may still run there.
func LostReport(f LostFacts) string {
	var out strings.Builder
	list := func(title string, lines []string) {
		if len(lines) == 0 {
			return
		}
		fmt.Fprintf(&out, "%s\n", title)
		for i, line := range lines {
			if i == mostNamed {
				fmt.Fprintf(&out, "  and %d more\n", len(lines)-mostNamed)
				break
			}
			fmt.Fprintf(&out, "  %s\n", line)
		}
	}
	fmt.Fprintf(&out, "Node %s is given up for good.\n", f.Name)
	lost, shared, contents := f.made()
	list("Lost for good, because no other host has them:", append(described(lost), named(contents)...))
	if len(f.Intents) > 0 {
		list("Lost, too:", []string{"volumes that its drivers had begun to create"})
	}
	list("Kept, because another host reaches them (set the host of each: kubectl annotate pv NAME --overwrite "+
		volume.AnnProvisionedOn+"=HOST):", described(shared))
	var away []string
	for _, a := range f.Attachments {
		if !f.Local[a.Spec.Attacher] && a.Spec.Source.PersistentVolumeName != nil {
			away = append(away, "volume "+*a.Spec.Source.PersistentVolumeName+" of driver "+a.Spec.Attacher)
		}
	}
	list("Detached from it, so that other hosts can use them:", away)
	var pods []string
	for _, p := range f.Pods {
		pods = append(pods, "pod "+p.Namespace+"/"+p.Name)
	}
	list("Deleted; they are mounted on another host when they are created again:", pods)
	out.WriteString("Its identity is revoked, so it cannot rejoin on its own. If the host is still running, what is\n" +
		"mounted there stays mounted and may be written to: make sure that it is off, or cut off from shared storage.\n")
	return out.String()
}

// described returns a line about each volume, in the order of their claims.
func described(all []*corev1.PersistentVolume) []string {
	var out []string
	for _, v := range slices.SortedFunc(slices.Values(all), func(a, b *corev1.PersistentVolume) int {
		return strings.Compare(cluster.ClaimOf(a), cluster.ClaimOf(b))
	}) {
		line := "volume " + v.Name
		if s := v.Spec.CSI; s != nil {
			line += " (" + s.VolumeHandle + " of driver " + s.Driver + ")"
		}
		if claim := cluster.ClaimOf(v); claim != "" {
			line += ", claim " + claim
		}
		out = append(out, line)
	}
	return out
}

func named[T interface{ GetName() string }](all []T) []string {
	var out []string
	for _, o := range all {
		out = append(out, "snapshot content "+o.GetName())
	}
	return out
}
