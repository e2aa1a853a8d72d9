package why

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/volume"
)

func (f facts) mounts() []Link {
	var out []Link
	for _, p := range f.told() {
		out = append(out, f.mounted(p))
	}
	return out
}

func (f facts) mounted(p *corev1.Pod) Link {
	subject, node := "pod/"+p.Name, p.Spec.NodeName
	if finished(p) {
		return link(subject, OK, volume.ReasonNotInUse, "the Pod has ended ("+string(p.Status.Phase)+")", "")
	}
	if node == "" {
		if m, bad := unplaced(p); bad {
			return link(subject, Problem, volume.ReasonFailedPlacing, m, "user")
		}
		return link(subject, Waiting, volume.ReasonWaitForPodScheduled, "the Pod has no node yet", "placement")
	}
	if l, down := f.nodeDown(node); down {
		return l
	}
	if p.DeletionTimestamp != nil {
		if l, ok := f.failed(subject, p, volume.ReasonFailedUnmount, "node "+node); ok {
			return l
		}
		return link(subject, Waiting, volume.ReasonUnmounting, "the Pod is being deleted; its volumes are being unmounted", "node "+node)
	}
	return f.condition(p)
}

// condition repeats what the node agent says of the Pod's mounts.
func (f facts) condition(p *corev1.Pod) Link {
	subject, node := "pod/"+p.Name, "node "+p.Spec.NodeName
	for _, c := range p.Status.Conditions {
		if c.Type != volume.ConditionVolumesMounted {
			continue
		}
		reason := volume.Reason(orText(c.Reason, string(volume.ReasonMounting)))
		switch {
		case c.Status == corev1.ConditionTrue:
			return link(subject, OK, volume.ReasonMounted, orText(c.Message, "all volumes are mounted"), "")
		case strings.HasPrefix(c.Reason, "Failed"), reason == volume.ReasonDriverMissing, reason == volume.ReasonClaimMissing:
			return link(subject, Problem, reason, c.Message, blame(c.Message, node))
		default:
			return link(subject, Waiting, reason, c.Message, node)
		}
	}
	if l, ok := f.failed(subject, p, volume.ReasonFailedMount, node); ok {
		return l
	}
	return link(subject, Waiting, volume.ReasonMounting, node+" has not said anything about the Pod yet", node)
}

// nodeDown tells of a node that does nothing, whatever waits for it.
func (f facts) nodeDown(name string) (Link, bool) {
	subject, n := "node/"+name, f.node(name)
	if n == nil {
		return link(subject, Problem, volume.ReasonNodeGone, "there is no node "+name, "user"), true
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return link(subject, Problem, volume.ReasonNodeGone,
				fmt.Sprintf("node %s is not ready: %s", name, orText(c.Message, c.Reason)), "node "+name), true
		}
	}
	return Link{}, false
}

// resize tells of a claim that asks for more than it has.
func (f facts) resize() []Link {
	c := f.Claim
	want, have := c.Spec.Resources.Requests[corev1.ResourceStorage], c.Status.Capacity[corev1.ResourceStorage]
	if want.Cmp(have) <= 0 {
		return nil
	}
	subject, driver := "resize/"+f.ClaimName, f.driverName()
	growth := fmt.Sprintf("from %s to %s", have.String(), want.String())
	if f.Class != nil && (f.Class.AllowVolumeExpansion == nil || !*f.Class.AllowVolumeExpansion) {
		return []Link{link(subject, Problem, volume.ReasonFailedResize, "class "+f.Class.Name+" does not allow to grow "+growth, "user")}
	}
	switch status := c.Status.AllocatedResourceStatuses[corev1.ResourceStorage]; {
	case status == corev1.PersistentVolumeClaimControllerResizeInfeasible:
		return []Link{link(subject, Problem, volume.ReasonFailedResize, f.resizeMessage("driver "+driver+" cannot grow the volume "+growth), "user")}
	case status == corev1.PersistentVolumeClaimNodeResizeInfeasible:
		return []Link{link(subject, Problem, volume.ReasonFailedNodeResize, f.resizeMessage("the file system cannot grow "+growth), "user")}
	case status == corev1.PersistentVolumeClaimNodeResizePending, status == corev1.PersistentVolumeClaimNodeResizeInProgress,
		f.hasCondition(corev1.PersistentVolumeClaimFileSystemResizePending):
		return []Link{f.nodeResize(subject, growth)}
	}
	if l, ok := f.failed(subject, f.Claim, volume.ReasonFailedResize, driver); ok {
		return []Link{l}
	}
	return []Link{link(subject, Waiting, volume.ReasonResizing, "driver "+driver+" grows the volume "+growth, driver)}
}

func (f facts) nodeResize(subject, growth string) Link {
	for _, p := range f.users() {
		if p.Spec.NodeName != "" {
			return link(subject, Waiting, volume.ReasonNodeResizePending,
				"the file system grows "+growth+" on node "+p.Spec.NodeName, "node "+p.Spec.NodeName)
		}
	}
	return link(subject, Waiting, volume.ReasonNodeResizePending, "the file system grows "+growth+" when a Pod mounts it", "user")
}

func (f facts) hasCondition(t corev1.PersistentVolumeClaimConditionType) bool {
	for _, c := range f.Claim.Status.Conditions {
		if c.Type == t && c.Status == corev1.ConditionTrue {
			return true
		}
	}
	return false
}

// resizeMessage returns the cause that the claim's conditions give.
func (f facts) resizeMessage(otherwise string) string {
	for _, c := range f.Claim.Status.Conditions {
		if (c.Type == corev1.PersistentVolumeClaimControllerResizeError || c.Type == corev1.PersistentVolumeClaimNodeResizeError) && c.Message != "" {
			return c.Message
		}
	}
	return otherwise
}
