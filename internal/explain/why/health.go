package why

import (
	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/health"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/drivers"
	"volplane.dev/volplane/internal/volume"
)

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
		b, bad := health.TellVolume(source.CSI, f.Volume.Name, "", h.HealthConditions)
		add("pv/"+f.Volume.Name, b, bad)
	}
	for _, node := range f.wanted() {
		if c := cluster.Find(f.View.CSINodes, node); c != nil && f.isUp(node) {
			b, bad := health.TellStorage(c, source.CSI, f.Volume)
			add("csinode/"+node, b, bad)
		}
	}
	for _, p := range f.told() {
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
	if unhealthy && isMounted(p) {
		return volume.Because{}, false
	}
	if b, bad := health.TellVolume(driver, f.Volume.Name, p.Spec.NodeName, f.healthIn(p)); bad {
		return b, true
	}
	return l.Because, unhealthy && l.Because.Object == "pv/"+f.Volume.Name
}

// isUp says whether a node is working; the last report of a node that is down is outdated.
func (f facts) isUp(node string) bool {
	_, down := f.NodeDown(node)
	return !down
}

// isMounted says whether the node agent has all volumes of a Pod mounted.
func isMounted(p *corev1.Pod) bool {
	return cluster.IsTrue(cluster.PodCondition(p, volume.ConditionVolumesMounted))
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
