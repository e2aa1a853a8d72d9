package kubelet

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/decide/driverstatus"
	"volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/drivers"
	"volplane.dev/volplane/internal/explain/foreign"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/volume"
)

// Facts are what the words of a kubelet are read with.
type Facts struct {
	View     cluster.View
	Warnings state.Warnings
}

// Mounted explains the mounts of a Pod whose node is run by a kubelet. A kubelet sets no condition for them, but has an
// order: all volumes of a Pod are mounted before its sandbox is created, its images are pulled and its containers are
// started. So each later step proves the mounts, and before the first of them, events show what fails.
func (f Facts) Mounted(p *corev1.Pod) chain.Link {
	subject, node := "pod/"+p.Name, volume.NodeAgent(p.Spec.NodeName)
	if f.sandboxed(p) {
		return f.started(p)
	}
	if l, ok := f.unregistered(p); ok {
		return l
	}
	if e := f.complaint(p); e != nil {
		return f.complained(p, e)
	}
	if len(containers(p)) == 0 {
		return chain.New(subject, chain.Waiting, volume.ReasonMounting,
			node.String()+" has not reported anything about the Pod yet", node)
	}
	if l, ok := f.notTaken(p); ok {
		return l
	}
	message := node.String() + " mounts the volumes of the Pod" + f.by(p) + " and has not reported a failure"
	if t := p.Status.StartTime; t != nil {
		message += "; it has known the Pod since " + chain.Moment(t.Time)
	}
	return chain.New(subject, chain.Waiting, volume.ReasonMounting, message, node)
}

// Ending explains a Pod that is being deleted and has no known failure: its volumes are
// in use until its containers have ended.
func (f Facts) Ending(p *corev1.Pod) chain.Link {
	subject, node := "pod/"+p.Name, volume.NodeAgent(p.Spec.NodeName)
	runs := func(c corev1.ContainerStatus) bool { return c.State.Running != nil }
	if all := containers(p); slices.ContainsFunc(all, runs) {
		message := fmt.Sprintf("the Pod is being deleted; container %s still runs and is to end by %s, "+
			"before its volumes are unmounted", all[slices.IndexFunc(all, runs)].Name, chain.Moment(p.DeletionTimestamp.Time))
		return chain.New(subject, chain.Waiting, volume.ReasonUnmounting, message, node)
	}
	if l, ok := f.unregistered(p); ok {
		l.Because.Message = "the Pod is being deleted, and its volumes cannot be unmounted: " + l.Because.Message
		return l
	}
	message := "the Pod is being deleted; its volumes are being unmounted" + f.by(p)
	return chain.New(subject, chain.Waiting, volume.ReasonUnmounting, message, node)
}

// by names the drivers of a Pod's volumes.
func (f Facts) by(p *corev1.Pod) string {
	var names []string
	for _, s := range drivers.OfPod(f.View, p) {
		if !slices.Contains(names, s.String()) {
			names = append(names, s.String())
		}
	}
	if len(names) == 0 {
		return ""
	}
	return " by " + chain.Names(names)
}

// containers returns the statuses of all containers of a Pod.
func containers(p *corev1.Pod) []corev1.ContainerStatus {
	return slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses, p.Status.EphemeralContainerStatuses)
}

// sandboxed says whether a kubelet has mounted all volumes of a Pod, by what it does only after that. After a restart
// of the host it mounts the volumes again, and then recreates the sandbox.
func (f Facts) sandboxed(p *corev1.Pod) bool {
	started := cluster.PodCondition(p, corev1.PodReadyToStartContainers)
	if cluster.IsTrue(started) {
		return true
	}
	for _, c := range containers(p) {
		w := c.State.Waiting
		switch {
		case c.State.Running != nil, w != nil && !slices.Contains(beforeSandbox(), w.Reason):
			return true
		case started == nil && c.ContainerID != "": // a kubelet without the condition
			return true
		}
	}
	e := f.Warnings.About(p.UID, reasonNoSandbox)
	return e != nil && !f.warnedAfter(p, e)
}

// beforeSandbox returns the reasons that a kubelet reports for a container that it has
// not started to create, whether or not the volumes are mounted.
func beforeSandbox() []string { return []string{"", "ContainerCreating", "PodInitializing"} }

// Reasons of a kubelet's events that volplane does not use itself.
const (
	reasonNoSandbox volume.Reason = "FailedCreatePodSandBox"
	reasonFailedMap volume.Reason = "FailedMapVolume"
)

// warnedAfter says whether a mount of the Pod has failed after an event.
func (f Facts) warnedAfter(p *corev1.Pod, e *corev1.Event) bool {
	return slices.Index(f.Warnings, f.complaint(p)) > slices.Index(f.Warnings, e)
}

// started explains a Pod whose volumes are mounted. A container that does not run is reported, but it is not a problem
// of volumes unless the container cannot get its mounts.
func (f Facts) started(p *corev1.Pod) chain.Link {
	subject, message := "pod/"+p.Name, "all volumes are mounted"
	for _, c := range containers(p) {
		w := c.State.Waiting
		if w == nil || slices.Contains(beforeSandbox(), w.Reason) {
			continue
		}
		why := fmt.Sprintf("container %s does not run (%s)", c.Name, w.Reason)
		if aboutVolumes(w.Message) {
			return f.unusable(p, why+": "+w.Message)
		}
		message += "; that " + why + " has another reason"
		break
	}
	return chain.New(subject, chain.OK, volume.ReasonMounted, message, volume.Actor{})
}

// unusable explains a container that does not start because of its mounts.
func (f Facts) unusable(p *corev1.Pod, message string) chain.Link {
	b := mount.Failed(mount.Publish, p.Spec.NodeName, message, volume.User())
	if s, ok := f.sourceIn(p, message); ok && strings.Contains(message, "transport endpoint is not connected") {
		b.Reason, b.Next = volume.ReasonMountBroken, s.Next()
	}
	return chain.Broken("pod/"+p.Name, chain.OnNode(p.Spec.NodeName, b))
}

// aboutVolumes says whether a container does not start because of its mounts: a
// path in a volume cannot be used, or the server of what is mounted is gone.
func aboutVolumes(message string) bool {
	return containsAny(message, "subPath", "/volumes/kubernetes.io~", "/volume-subpaths/", "/volumeDevices/")
}

// unregistered reports a driver of the Pod that has not registered on its node.
func (f Facts) unregistered(p *corev1.Pod) (chain.Link, bool) {
	node := p.Spec.NodeName
	for _, s := range drivers.OfPod(f.View, p) {
		if drivers.Registered(f.View, s.CSI, node) {
			continue
		}
		b, more := drivers.Absent(f.View, s, node)
		if !more {
			b = volume.Say(volume.ReasonDriverMissing, s.Next(), s.String()+" has not registered on node "+node)
			if by := Plugin(f.View, s.CSI, node); by != "" {
				b.Message += by
			} else {
				b.Node = node
			}
		}
		return chain.Broken("pod/"+p.Name, b), true
	}
	return chain.Link{}, false
}

// Plugin describes the Pod that runs a driver on a node, if it can be found: it mounts
// the directory of the driver's socket from the host.
func Plugin(view cluster.View, driver, node string) string {
	for _, p := range view.Pods.By(cluster.PodsByNode, node) {
		mounts := func(v corev1.Volume) bool {
			return v.HostPath != nil && strings.Contains(v.HostPath.Path, "/plugins/"+driver)
		}
		if !slices.ContainsFunc(p.Spec.Volumes, mounts) {
			continue
		}
		for _, c := range containers(p) {
			if w := c.State.Waiting; w != nil {
				return fmt.Sprintf("; container %s of its Pod %s/%s does not run (%s)", c.Name, p.Namespace, p.Name, w.Reason)
			}
		}
		return fmt.Sprintf("; its Pod there is %s/%s", p.Namespace, p.Name)
	}
	return ""
}

// complaint returns the newest event about a volume of the Pod that could not be
// attached or mounted; one that names the volume is preferred to one that only says that
// the kubelet has waited. Multi-Attach is reported for the attachment.
func (f Facts) complaint(p *corev1.Pod) *corev1.Event {
	var vague *corev1.Event
	told := []volume.Reason{volume.ReasonFailedMount, reasonFailedMap, volume.ReasonFailedAttach}
	for _, e := range slices.Backward(f.Warnings) {
		switch {
		case e.InvolvedObject.UID != p.UID, foreign.IsMultiAttach(e.Message):
		case e.Reason == string(volume.ReasonFailedAttach) && f.attachedSince(p, e.Message):
		case !slices.Contains(told, volume.Reason(e.Reason)):
		case !strings.HasPrefix(e.Message, "Unable to attach or mount volumes"):
			return e
		case vague == nil:
			vague = e
		}
	}
	return vague
}

// attachedSince says whether the volume that a failure names is attached by now.
func (f Facts) attachedSince(p *corev1.Pod, message string) bool {
	named := f.View.Attachments.By(cluster.AttachmentsByVolume, foreign.VolumeIn(message))
	return slices.ContainsFunc(named, func(a *storagev1.VolumeAttachment) bool {
		return a.Spec.NodeName == p.Spec.NodeName && a.Status.Attached
	})
}

// complained explains an event about a volume of the Pod.
func (f Facts) complained(p *corev1.Pod, e *corev1.Event) chain.Link {
	node := p.Spec.NodeName
	agent := volume.NodeAgent(node)
	ours := volume.ParseActor(e.Annotations[volume.AnnNext])
	b := mount.Failed(mount.Publish, node, state.Message(e), cmp.Or(ours, agent))
	b.Reason, b.Cause = volume.Reason(e.Reason), state.CauseOf(e)
	calls := b.Reason == volume.ReasonFailedAttach || b.Gone || b.Code == "DeadlineExceeded"
	if s, ok := f.sourceIn(p, e.Message); ok && b.Next == agent && calls {
		b.Next = s.Next()
	}
	if absentObject(e.Message) {
		b.Next = volume.User()
	}
	return chain.Broken("pod/"+p.Name, chain.OnNode(node, b))
}

func containsAny(text string, words ...string) bool {
	return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(text, w) })
}

// absentObject says whether what the Pod names as the content of a volume is not there.
func absentObject(message string) bool {
	absent := `(?:secret|configmap)s? "[^"]+" not found|references non-existent|object ".+" not registered`
	return regexp.MustCompile(absent).MatchString(message)
}

// sourceIn returns the driver of the volume that a message names, or else the only one that the Pod has.
func (f Facts) sourceIn(p *corev1.Pod, message string) (driverstatus.Driver, bool) {
	name := foreign.VolumeIn(message)
	if s, ok := drivers.Of(cluster.Find(f.View.Volumes, name)); ok {
		return s, true
	}
	for i := range p.Spec.Volumes {
		if v := &p.Spec.Volumes[i]; v.Name == name {
			if v.CSI == nil {
				return driverstatus.Driver{}, false
			}
			return driverstatus.Driver{CSI: v.CSI.Driver, Hosted: driverstatus.HostedInline(v)}, true
		}
	}
	all := drivers.OfPod(f.View, p)
	if len(all) != 1 {
		return driverstatus.Driver{}, false
	}
	return all[0], true
}

// notTaken explains a volume that a kubelet does not mount yet: it waits until the Node
// says that the volume is in use and that it is attached.
func (f Facts) notTaken(p *corev1.Pod) (chain.Link, bool) {
	n, subject := cluster.Find(f.View.Nodes, p.Spec.NodeName), "pod/"+p.Name
	for _, name := range cluster.ClaimNames(p) {
		claim := cluster.Find(f.View.Claims, p.Namespace+"/"+name)
		if claim == nil {
			continue
		}
		v := cluster.Find(f.View.Volumes, claim.Spec.VolumeName)
		if v == nil || v.Spec.CSI == nil || attach.SkipsAttach(cluster.Find(f.View.Drivers, v.Spec.CSI.Driver)) {
			continue
		}
		csi := v.Spec.CSI
		unique := volume.UniqueName(csi.Driver, csi.VolumeHandle)
		attached := slices.ContainsFunc(n.Status.VolumesAttached, func(v corev1.AttachedVolume) bool {
			return string(v.Name) == unique
		})
		switch {
		case !attached:
			message := fmt.Sprintf("node %s does not list volume %s as attached yet (status.volumesAttached)",
				n.Name, v.Name)
			return chain.New(subject, chain.Waiting, volume.ReasonWaitForAttach, message,
				volume.Controller("attachdetach")), true
		case !attach.InUse(n, unique):
			message := fmt.Sprintf("node %s does not list volume %s as in use yet (status.volumesInUse), "+
				"which it does before mounting it", n.Name, v.Name)
			return chain.New(subject, chain.Waiting, volume.ReasonMounting, message, volume.NodeAgent(n.Name)), true
		}
	}
	return chain.Link{}, false
}
