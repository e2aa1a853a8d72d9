package why

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/drivers"
	"volplane.dev/volplane/internal/explain/kubelet"
	"volplane.dev/volplane/internal/explain/scheduling"
	"volplane.dev/volplane/internal/volume"
)

func (f facts) mounts() []chain.Link {
	out := f.lastUser()
	for _, p := range f.covered() {
		out = append(out, f.mounted(p))
	}
	return out
}

func (w Walk) mounted(p *corev1.Pod) chain.Link {
	subject, node := "pod/"+p.Name, p.Spec.NodeName
	if cluster.Finished(p) {
		return chain.New(subject, chain.OK, volume.ReasonNotInUse,
			"the Pod has ended ("+string(p.Status.Phase)+")"+cause(p), volume.Actor{})
	}
	if node == "" {
		if b, bad := scheduling.Unplaced(p); bad {
			return scheduling.Facts{View: w.View, Warnings: w.Warnings}.Homeless(p, b)
		}
		return chain.New(subject, chain.Waiting, volume.ReasonWaitForPodScheduled, "the Pod has no node yet",
			volume.Controller("placement"))
	}
	if l, down := w.NodeDown(node); down {
		return l
	}
	if p.DeletionTimestamp != nil {
		if l, ok := w.Failed(subject, p, volume.ReasonFailedUnmount, volume.NodeAgent(node)); ok {
			return chain.Broken(subject, chain.OnNode(node, l.Because))
		}
		if c := w.condition(p); c.State == chain.Waiting && c.Because.Reason == volume.ReasonMounting &&
			c.Because.Next != volume.NodeAgent(node) {
			return chain.New(subject, chain.Waiting, volume.ReasonUnmounting,
				"the Pod is being deleted; its volumes are unmounted after that: "+c.Because.Message, c.Because.Next)
		}
		return kubelet.Facts{View: w.View, Warnings: w.Warnings}.Ending(p)
	}
	if l, ok := w.wrongNode(subject, p); ok {
		return l
	}
	return w.condition(p)
}

// wrongNode explains a Pod on a node for which its volumes cannot be made, or where they cannot be used.
func (w Walk) wrongNode(subject string, p *corev1.Pod) (chain.Link, bool) {
	if l, ok := w.Failed(subject, p, volume.ReasonFailedPlacing, volume.Actor{}); ok && w.hasUnbound(p) {
		return l, true
	}
	return scheduling.Facts{View: w.View, Warnings: w.Warnings}.WrongNode(p)
}

// hasUnbound says whether one of a Pod's claims has no volume.
func (w Walk) hasUnbound(p *corev1.Pod) bool {
	return slices.ContainsFunc(cluster.ClaimNames(p), func(name string) bool {
		c := cluster.Find(w.View.Claims, p.Namespace+"/"+name)
		return c != nil && c.Spec.VolumeName == ""
	})
}

// cause returns why a Pod has ended, if its status says so.
func cause(p *corev1.Pod) string {
	if p.Status.Message == "" {
		return ""
	}
	return ": " + p.Status.Message
}

// condition repeats what the node agent reports about the Pod's mounts.
func (w Walk) condition(p *corev1.Pod) chain.Link {
	subject := "pod/" + p.Name
	for _, c := range p.Status.Conditions {
		if c.Type != volume.ConditionVolumesMounted {
			continue
		}
		reason := volume.Reason(cmp.Or(c.Reason, string(volume.ReasonMounting)))
		b := volume.Because{
			Reason: reason, Message: c.Message, Cause: volume.CauseOf(p.Annotations[volume.AnnCauseMounted], c.Message),
			Next: cmp.Or(volume.ParseActor(p.Annotations[volume.AnnNextMounted]), volume.NodeAgent(p.Spec.NodeName)),
		}
		switch {
		case c.Status == corev1.ConditionTrue:
			if l, ok := w.unhealthyMount(subject, p); ok {
				return l
			}
			return chain.New(subject, chain.OK, volume.ReasonMounted,
				cmp.Or(c.Message, "all volumes are mounted"), volume.Actor{})
		case reason == volume.ReasonDriverMissing, reason == volume.ReasonRegistrationRefused:
			if lacks, ok := drivers.Lacks(w.View, p, p.Spec.NodeName); ok {
				b = lacks
			}
			return chain.Broken(subject, b)
		case strings.HasPrefix(c.Reason, "Failed"), reason == volume.ReasonClaimMissing, reason == volume.ReasonMountBroken:
			if broken, ok := drivers.BrokenFor(w.View, p, b.Cause); ok {
				return chain.New(subject, chain.Problem, reason, broken.Message, broken.Next)
			}
			return chain.Broken(subject, chain.OnNode(p.Spec.NodeName, b))
		default:
			return chain.Link{Subject: subject, State: chain.Waiting, Because: b}
		}
	}
	return kubelet.Facts{View: w.View, Warnings: w.Warnings}.Mounted(p)
}

// unhealthyMount repeats what the node agent reports about a mounted volume that is unhealthy.
func (w Walk) unhealthyMount(subject string, p *corev1.Pod) (chain.Link, bool) {
	c := cluster.PodCondition(p, volume.ConditionVolumesHealthy)
	if !cluster.IsFalse(c) {
		return chain.Link{}, false
	}
	return chain.Broken(subject, volume.Because{
		Reason: volume.Reason(c.Reason), Message: c.Message,
		Next:  cmp.Or(volume.ParseActor(p.Annotations[volume.AnnNextHealthy]), volume.User()),
		Cause: volume.CauseOf(p.Annotations[volume.AnnCauseHealthy], ""),
	}), true
}

// NodeDown reports a node that is not working.
func (w Walk) NodeDown(name string) (chain.Link, bool) {
	subject, n := "node/"+name, w.node(name)
	if n == nil {
		return chain.New(subject, chain.Problem, volume.ReasonNodeGone, "node "+name+" does not exist", volume.User()), true
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			since := ""
			if t := c.LastTransitionTime; !t.IsZero() {
				since = " since " + chain.Moment(t.Time)
			}
			message := fmt.Sprintf("node %s is not ready%s: %s", name, since, cmp.Or(c.Message, c.Reason))
			return chain.New(subject, chain.Problem, volume.ReasonNodeGone, message, volume.Administrator(name)), true
		}
	}
	return chain.Link{}, false
}
