package kube

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/volume"
)

// trimmer prepares objects for a cache, which holds very many of them: it drops
// what no component reads, and has equal parts of different objects be one.
// An object that lost more than its managedFields (without which the API server
// takes an update as one of all else) is patched, never updated whole: Pods and
// Nodes.
type trimmer struct{ equal shares }

// trim is called for each object before anybody sees it; it may be called again.
func (t *trimmer) trim(o any) (any, error) {
	m, ok := o.(metav1.Object)
	if !ok {
		return o, nil
	}
	m.SetManagedFields(nil)
	switch o := o.(type) {
	case *corev1.Pod:
		t.pod(o)
	case *corev1.Node:
		o.Status.Images = nil
	case *corev1.PersistentVolumeClaim:
		t.equal.claim(o)
	case *corev1.PersistentVolume:
		t.equal.volume(o)
	case *storagev1.VolumeAttachment:
		o.Spec.Attacher, o.Spec.NodeName = t.equal.text(o.Spec.Attacher), t.equal.text(o.Spec.NodeName)
	}
	t.equal.meta(m)
	return o, nil
}

// pod keeps what mounting needs and, of a Pod that has no node yet, what
// choosing one does.
func (t *trimmer) pod(p *corev1.Pod) {
	p.Labels, p.OwnerReferences, p.Finalizers, p.GenerateName = nil, nil, nil, ""
	p.Annotations = only(p.Annotations, volume.AnnMountAt, volume.AnnMountOptions, volume.AnnNextMounted,
		volume.AnnNextHealthy)
	was := p.Spec
	p.Spec = corev1.PodSpec{
		Volumes: storage(was.Volumes), NodeName: t.equal.text(was.NodeName), SecurityContext: ownership(was.SecurityContext),
		ServiceAccountName: t.equal.text(was.ServiceAccountName),
	}
	if was.NodeName == "" {
		p.Spec.NodeSelector, p.Spec.Affinity, p.Spec.Tolerations = was.NodeSelector, was.Affinity, was.Tolerations
		p.Spec.SchedulerName, p.Spec.SchedulingGates = t.equal.text(was.SchedulerName), was.SchedulingGates
	}
	p.Status = corev1.PodStatus{
		Phase: corev1.PodPhase(t.equal.text(string(p.Status.Phase))), Conditions: told(p.Status.Conditions),
	}
}

// only returns the entries of some keys.
func only(m map[string]string, keys ...string) map[string]string {
	var out map[string]string
	for _, key := range keys {
		v, ok := m[key]
		switch {
		case ok && out == nil:
			out = map[string]string{key: v}
		case ok:
			out[key] = v
		}
	}
	if len(out) == len(m) {
		return m
	}
	return out
}

// storage returns the volumes that may be storage of drivers.
func storage(all []corev1.Volume) []corev1.Volume {
	n := 0
	for i := range all {
		if ofDrivers(&all[i]) {
			n++
		}
	}
	if n == len(all) {
		return all
	}
	out := make([]corev1.Volume, 0, n)
	for i := range all {
		if ofDrivers(&all[i]) {
			out = append(out, all[i])
		}
	}
	return out
}

func ofDrivers(v *corev1.Volume) bool {
	return v.PersistentVolumeClaim != nil || v.Ephemeral != nil || v.CSI != nil
}

// ownership keeps what says who a volume's files belong to.
func ownership(c *corev1.PodSecurityContext) *corev1.PodSecurityContext {
	if c == nil || c.FSGroup == nil {
		return nil
	}
	return &corev1.PodSecurityContext{FSGroup: c.FSGroup, FSGroupChangePolicy: c.FSGroupChangePolicy}
}

// told keeps the conditions by which components know what they have said.
func told(all []corev1.PodCondition) []corev1.PodCondition {
	var out []corev1.PodCondition
	for _, c := range all {
		if c.Type == volume.ConditionVolumesMounted || c.Type == volume.ConditionVolumesHealthy ||
			c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			out = append(out, c)
		}
	}
	return out
}
