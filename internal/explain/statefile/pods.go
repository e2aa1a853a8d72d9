package statefile

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/decide/note"
)

func (c cleaner) claim(p *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	out := &corev1.PersistentVolumeClaim{ObjectMeta: c.meta(&p.ObjectMeta), Spec: p.Spec, Status: p.Status}
	out.Labels, out.Status.Conditions = c.chosen(&p.ObjectMeta), nil
	for _, cond := range p.Status.Conditions {
		cond.Message = c.text(cond.Message)
		out.Status.Conditions = append(out.Status.Conditions, cond)
	}
	if h := p.Status.HealthStatus; h != nil {
		out.Status.HealthStatus = &corev1.VolumeHealthStatus{
			HealthConditions: c.health(h.HealthConditions), LastTransitionTime: h.LastTransitionTime,
		}
	}
	return out
}

// health keeps what drivers have said of a volume.
func (c cleaner) health(all []corev1.VolumeHealthCondition) []corev1.VolumeHealthCondition {
	var out []corev1.VolumeHealthCondition
	for _, h := range all {
		h.Reason, h.Message = c.text(h.Reason), c.text(h.Message)
		out = append(out, h)
	}
	return out
}

func (c cleaner) volume(v *corev1.PersistentVolume) *corev1.PersistentVolume {
	meta := c.meta(&v.ObjectMeta)
	meta.Labels = c.attributes(v.Labels) // claims select by them
	return &corev1.PersistentVolume{
		ObjectMeta: meta, Spec: c.volumeSpec(&v.Spec),
		Status: corev1.PersistentVolumeStatus{
			Phase: v.Status.Phase, Message: c.text(v.Status.Message), Reason: c.text(v.Status.Reason),
			LastPhaseTransitionTime: v.Status.LastPhaseTransitionTime,
		},
	}
}

// volumeSpec leaves out the sources of a volume that nobody here asks for, and the
// references to Secrets.
func (c cleaner) volumeSpec(s *corev1.PersistentVolumeSpec) corev1.PersistentVolumeSpec {
	out := corev1.PersistentVolumeSpec{
		Capacity: s.Capacity, AccessModes: s.AccessModes, ClaimRef: s.ClaimRef,
		PersistentVolumeReclaimPolicy: s.PersistentVolumeReclaimPolicy,
		StorageClassName:              s.StorageClassName, MountOptions: c.texts(s.MountOptions), VolumeMode: s.VolumeMode,
		NodeAffinity:              s.NodeAffinity,
		VolumeAttributesClassName: s.VolumeAttributesClassName,
	}
	if d := s.CSI; d != nil {
		out.CSI = &corev1.CSIPersistentVolumeSource{
			Driver: d.Driver, VolumeHandle: c.text(d.VolumeHandle), ReadOnly: d.ReadOnly, FSType: d.FSType,
			VolumeAttributes: c.attributes(d.VolumeAttributes),
		}
	}
	note.Copy(&out, s, c.attributes(note.Options(s)))
	return out
}

func (c cleaner) attachment(a *storagev1.VolumeAttachment) *storagev1.VolumeAttachment {
	out := &storagev1.VolumeAttachment{
		ObjectMeta: c.meta(&a.ObjectMeta), Spec: a.Spec,
		Status: storagev1.VolumeAttachmentStatus{
			Attached: a.Status.Attached, AttachmentMetadata: c.attributes(a.Status.AttachmentMetadata),
			AttachError: c.failure(a.Status.AttachError), DetachError: c.failure(a.Status.DetachError),
		},
	}
	if inline := a.Spec.Source.InlineVolumeSpec; inline != nil {
		clean := c.volumeSpec(inline)
		out.Spec.Source.InlineVolumeSpec = &clean
	}
	return out
}

func (c cleaner) failure(e *storagev1.VolumeError) *storagev1.VolumeError {
	if e == nil {
		return nil
	}
	return &storagev1.VolumeError{Time: e.Time, Message: c.text(e.Message), ErrorCode: e.ErrorCode}
}

// pod keeps the volumes of a Pod that volumes are made for, the directories of the host by
// which a driver's Pod is known, its node, when it is evicted from there, and its state, and
// nothing of its containers but how they are.
func (c cleaner) pod(p *corev1.Pod) *corev1.Pod {
	out := &corev1.Pod{ObjectMeta: c.meta(&p.ObjectMeta), Spec: corev1.PodSpec{
		NodeName: p.Spec.NodeName, Tolerations: p.Spec.Tolerations,
	}}
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		kept := corev1.Volume{Name: v.Name}
		switch {
		case v.PersistentVolumeClaim != nil:
			kept.PersistentVolumeClaim = v.PersistentVolumeClaim
		case v.Ephemeral != nil:
			kept.Ephemeral = ephemeral(v.Ephemeral)
		case v.HostPath != nil:
			kept.HostPath = &corev1.HostPathVolumeSource{Path: c.text(v.HostPath.Path)}
		case v.CSI == nil && !note.HostedInline(v):
			continue
		}
		if d := v.CSI; d != nil {
			kept.CSI = &corev1.CSIVolumeSource{
				Driver: d.Driver, ReadOnly: d.ReadOnly, FSType: d.FSType,
				VolumeAttributes: c.attributes(d.VolumeAttributes),
			}
		}
		note.CopyInline(&kept, v, c.attributes(note.OptionsInline(v)))
		out.Spec.Volumes = append(out.Spec.Volumes, kept)
	}
	out.Status = c.podStatus(&p.Status)
	return out
}

// ephemeral keeps what a claim is to be made of, without what a user has written about it.
func ephemeral(e *corev1.EphemeralVolumeSource) *corev1.EphemeralVolumeSource {
	if e.VolumeClaimTemplate == nil {
		return &corev1.EphemeralVolumeSource{}
	}
	return &corev1.EphemeralVolumeSource{
		VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: e.VolumeClaimTemplate.Spec},
	}
}

func (c cleaner) podStatus(s *corev1.PodStatus) corev1.PodStatus {
	out := corev1.PodStatus{Phase: s.Phase, Reason: s.Reason, Message: c.text(s.Message), StartTime: s.StartTime}
	for _, cond := range s.Conditions {
		cond.Message = c.text(cond.Message)
		out.Conditions = append(out.Conditions, cond)
	}
	for _, h := range s.VolumeHealth {
		h.HealthConditions = c.health(h.HealthConditions)
		out.VolumeHealth = append(out.VolumeHealth, h)
	}
	out.ContainerStatuses, out.InitContainerStatuses = c.containers(s.ContainerStatuses),
		c.containers(s.InitContainerStatuses)
	return out
}

func (c cleaner) containers(all []corev1.ContainerStatus) []corev1.ContainerStatus {
	var out []corev1.ContainerStatus
	for i := range all {
		s := &all[i]
		kept := corev1.ContainerStatus{
			Name: s.Name, Ready: s.Ready, Started: s.Started, RestartCount: s.RestartCount, ContainerID: c.text(s.ContainerID),
		}
		kept.State.Running = s.State.Running
		if w := s.State.Waiting; w != nil {
			kept.State.Waiting = &corev1.ContainerStateWaiting{Reason: w.Reason, Message: c.text(w.Message)}
		}
		if t := s.State.Terminated; t != nil {
			kept.State.Terminated = &corev1.ContainerStateTerminated{
				ExitCode: t.ExitCode, Reason: t.Reason,
				StartedAt: t.StartedAt, FinishedAt: t.FinishedAt,
			}
		}
		out = append(out, kept)
	}
	return out
}

func (c cleaner) node(n *corev1.Node) *corev1.Node {
	out := &corev1.Node{ObjectMeta: c.meta(&n.ObjectMeta), Spec: corev1.NodeSpec{
		Unschedulable: n.Spec.Unschedulable,
		Taints:        n.Spec.Taints,
	}}
	// It tells a kubelet from volplane's agent.
	out.Status.NodeInfo.KubeletVersion = c.text(n.Status.NodeInfo.KubeletVersion)
	for _, cond := range n.Status.Conditions {
		cond.Message = c.text(cond.Message)
		out.Status.Conditions = append(out.Status.Conditions, cond)
	}
	for _, v := range n.Status.VolumesInUse {
		out.Status.VolumesInUse = append(out.Status.VolumesInUse, corev1.UniqueVolumeName(c.text(string(v))))
	}
	for _, v := range n.Status.VolumesAttached {
		name := corev1.UniqueVolumeName(c.text(string(v.Name)))
		out.Status.VolumesAttached = append(out.Status.VolumesAttached,
			corev1.AttachedVolume{Name: name, DevicePath: c.text(v.DevicePath)})
	}
	return out
}
