package why

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/decide/health"
	"volplane.dev/volplane/internal/decide/protect"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/drivers"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/volume"
)

// volumeAlone explains a volume without an existing claim.
func (f facts) volumeAlone() chain.Link {
	v := f.Volume
	if v == nil {
		return chain.New("pv", chain.Problem, volume.ReasonVolumeMissing, "the volume does not exist", volume.User())
	}
	subject := "pv/" + v.Name
	if l, ok := f.moved(subject, v.Name, ""); ok {
		return l
	}
	told := bind.Volume(bind.VolumeFactsOf(f.View, v)).Condition()
	switch {
	case told.Reason == volume.ReasonReleased && bind.IsReleased(v):
		told = f.reclaimed()
	case v.DeletionTimestamp != nil:
		told = f.deletedVolume()
	}
	return chain.FromCondition(subject, told)
}

// reclaimed explains what the provisioner does with a volume whose claim is gone and
// whose policy is Delete. Why a driver did not delete it is in an event.
func (f facts) reclaimed() volume.Condition {
	v, driver := f.Volume, provision.DeleterOf(f.Volume)
	facts := provision.VolumeFactsOf(f.View, v)
	facts.Reachable = f.provides(driver)
	_, b := provision.Volume(facts)
	if c, ok := f.uncalled(driver); ok && b.Reason == volume.ReasonDeleting {
		return c
	}
	if failed, ok := f.Warnings.Condition(v, volume.ReasonFailedDelete, volume.Driver(driver)); ok {
		return failed
	}
	if v.Status.Phase == corev1.VolumeFailed {
		b := provision.DeleteFailed(v, volume.AnswerIn(cmp.Or(v.Status.Message, "reclaiming it failed")))
		b.Next = cmp.Or(b.Next, volume.User())
		return volume.Condition{Because: b, Stuck: true}
	}
	if e := f.Warnings.About(v.UID, volume.ReasonDriverBusy); e != nil && b.Reason == volume.ReasonDeleting {
		b.Reason, b.Message = volume.ReasonDriverBusy, state.Message(e)
	}
	return volume.Condition{Because: b, Stuck: b.Next == volume.User() || b.Reason == volume.ReasonDriverMissing}
}

// deletedVolume explains what keeps a volume object that is being deleted.
func (f facts) deletedVolume() volume.Condition {
	v := f.Volume
	owners := protect.Owners{
		volume.FinalizerVolumeProtection: func() volume.Because { _, b := protect.Volume(v); return b },
		volume.FinalizerProvisioner: func() volume.Because {
			_, b := provision.Volume(provision.VolumeFactsOf(f.View, v))
			return b
		},
	}
	if csi := v.Spec.CSI; csi != nil {
		owners[volume.AttacherFinalizer(csi.Driver)] = func() volume.Because {
			_, b := attach.Volume(v, len(f.attached()) > 0)
			return b
		}
	}
	return protect.Kept("volume "+v.Name, v, owners)
}

// volumeHealth reports what the driver says is wrong with the volume and with the storage behind it. It comes
// before attachments and mounts, which may fail because of it.
func (f facts) volumeHealth() []chain.Link {
	source, ok := drivers.Of(f.Volume)
	if !ok {
		return nil
	}
	var out []chain.Link
	add := func(subject string, b volume.Because, bad bool) {
		if bad {
			out = append(out, chain.Broken(subject, b))
		}
	}
	if h := f.Claim.Status.HealthStatus; h != nil {
		b, bad := health.VolumeProblem(source.CSI, f.Volume.Name, "", h.HealthConditions)
		add("pv/"+f.Volume.Name, b, bad)
	}
	for _, node := range f.wanted() {
		if c := cluster.Find(f.View.CSINodes, node); c != nil && f.isUp(node) {
			b, bad := health.StorageProblem(c, source.CSI, f.Volume)
			add("csinode/"+node, b, bad)
		}
	}
	for _, p := range f.covered() {
		if f.isUp(p.Spec.NodeName) {
			b, bad := f.volumeHealthIn(source.CSI, p)
			add("pod/"+p.Name, b, bad)
		}
	}
	return out
}

// volumeHealthIn returns what is reported about the volume in a Pod, unless the Pod's own link reports it, as for a Pod
// whose volumes are all mounted.
func (f facts) volumeHealthIn(driver string, p *corev1.Pod) (volume.Because, bool) {
	l, unhealthy := f.unhealthyMount("pod/"+p.Name, p)
	if unhealthy && cluster.Mounted(p) {
		return volume.Because{}, false
	}
	if b, bad := health.VolumeProblem(driver, f.Volume.Name, p.Spec.NodeName, f.healthIn(p)); bad {
		return b, true
	}
	return l.Because, unhealthy && l.Because.Object == "pv/"+f.Volume.Name
}

// isUp says whether a node is working; the last report of a node that is down is outdated.
func (f facts) isUp(node string) bool {
	_, down := f.NodeDown(node)
	return !down
}

// healthIn returns what a Pod's status has of the claim's volume.
func (f facts) healthIn(p *corev1.Pod) []corev1.VolumeHealthCondition {
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if cluster.ClaimName(p, v) != f.ClaimName {
			continue
		}
		for _, h := range p.Status.VolumeHealth {
			if h.Name == v.Name && len(h.HealthConditions) > 0 {
				return h.HealthConditions
			}
		}
	}
	return nil
}
