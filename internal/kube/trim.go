package kube

import (
	"slices"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/volume"
)

// Trimmer prepares objects for caches that hold very many of them: it drops what no component
// reads, and shares equal parts of different objects. Pods and Nodes lose more than their
// managedFields, so they must be patched: an update would delete what was dropped. An update of an
// object without managedFields changes nothing but what the component has changed.
//
// The zero value is ready for use.
type Trimmer struct {
	// show adds to each object what clients translate; nil for nothing.
	show   func(any)
	shared interner
	// same finds objects that other caches hold; nil if no others have the Trimmer.
	same *sameObjects
}

// NewTrimmer returns a Trimmer for several caches of one API server, whose clients all translate so. They share equal
// objects, too.
func NewTrimmer(t Translation) *Trimmer { return &Trimmer{show: t.Show, same: &sameObjects{}} }

// Whole returns the object to cache instead of o, with all fields except managedFields. It changes o unless it has
// returned it before.
func (t *Trimmer) Whole(o any) (any, error) {
	return t.once(o, t.same.whole(o), func() {}), nil
}

// trim returns the object to cache instead of o. It changes o before any reader sees it, and may be repeated.
func (t *Trimmer) trim(o any) (any, error) {
	return t.once(o, t.same.trimmed(o), func() {
		if t.show != nil {
			t.show(o)
		}
		switch o := o.(type) {
		case *corev1.Pod:
			t.pod(o)
		case *corev1.Node:
			o.Status.Images = nil
		}
	}), nil
}

// once returns the object of a pool that equals o, otherwise o after a change. Readers of other caches may see the
// objects of a pool, which are not changed again.
func (t *Trimmer) once(o any, in pool, change func()) any {
	m, ok := o.(metav1.Object)
	if !ok {
		return o
	}
	if in != nil {
		if known := in.find(o); known != nil {
			return known
		}
	}
	m.SetManagedFields(nil)
	change()
	t.intern(o, m)
	if in != nil {
		return in.hold(o)
	}
	return o
}

// intern shares parts of an object with others.
func (t *Trimmer) intern(o any, m metav1.Object) {
	switch o := o.(type) {
	case *corev1.PersistentVolumeClaim:
		t.shared.claim(o)
	case *corev1.PersistentVolume:
		t.shared.volume(o)
	case *storagev1.VolumeAttachment:
		o.Spec.Attacher, o.Spec.NodeName = t.shared.text(o.Spec.Attacher), t.shared.text(o.Spec.NodeName)
	case *snapshotv1.VolumeSnapshot:
		t.shared.snapshot(o)
	case *cluster.VolumeSnapshotContent:
		t.shared.content(o)
	}
	t.shared.meta(m)
}

// pod keeps what mounting needs and, for a Pod without a node, also what placement needs.
func (t *Trimmer) pod(p *corev1.Pod) {
	p.Labels, p.OwnerReferences, p.Finalizers, p.GenerateName = nil, nil, nil, ""
	p.Annotations = only(p.Annotations, volume.AnnMountAt, volume.AnnMountFor, volume.AnnMountOptions,
		volume.AnnUnmountEnds, volume.AnnNextMounted, volume.AnnNextHealthy, volume.AnnCauseMounted, volume.AnnCauseHealthy,
		volume.AnnPaths, volume.AnnNextScheduled, volume.AnnCauseScheduled)
	spec := p.Spec
	p.Spec = corev1.PodSpec{
		Volumes: driverVolumes(spec.Volumes), NodeName: t.shared.text(spec.NodeName),
		SecurityContext:    filesOf(spec.SecurityContext),
		ServiceAccountName: t.shared.text(spec.ServiceAccountName),
	}
	keepLabels(&p.Spec, &spec)
	if spec.NodeName == "" {
		p.Spec.NodeSelector, p.Spec.Affinity, p.Spec.Tolerations = spec.NodeSelector, spec.Affinity, spec.Tolerations
		p.Spec.SchedulerName, p.Spec.SchedulingGates = t.shared.text(spec.SchedulerName), spec.SchedulingGates
	}
	p.Status = corev1.PodStatus{
		Phase: corev1.PodPhase(t.shared.text(string(p.Status.Phase))), Conditions: ownConditions(p.Status.Conditions),
		VolumeHealth: p.Status.VolumeHealth,
	}
}

// only returns the entries with one of the keys.
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

// driverVolumes returns the volumes that a driver may serve.
func driverVolumes(all []corev1.Volume) []corev1.Volume {
	n := 0
	for i := range all {
		if usesDriver(&all[i]) {
			n++
		}
	}
	if n == len(all) {
		return all
	}
	out := make([]corev1.Volume, 0, n)
	for i := range all {
		if usesDriver(&all[i]) {
			out = append(out, all[i])
		}
	}
	return out
}

func usesDriver(v *corev1.Volume) bool {
	return v.PersistentVolumeClaim != nil || v.Ephemeral != nil || v.CSI != nil
}

// filesOf returns the part of the security context that sets the ownership and the labels of a volume's files.
func filesOf(c *corev1.PodSecurityContext) *corev1.PodSecurityContext {
	if c == nil || c.FSGroup == nil && c.SELinuxOptions == nil && c.SELinuxChangePolicy == nil {
		return nil
	}
	return &corev1.PodSecurityContext{
		FSGroup: c.FSGroup, FSGroupChangePolicy: c.FSGroupChangePolicy,
		SELinuxOptions: c.SELinuxOptions, SELinuxChangePolicy: c.SELinuxChangePolicy,
	}
}

// keepLabels keeps the SELinux options with which containers of all kinds mount their volumes, if any container has its
// own. Otherwise all mount with the Pod's.
func keepLabels(to, from *corev1.PodSpec) {
	all := slices.Concat(from.InitContainers, from.Containers)
	for i := range from.EphemeralContainers {
		all = append(all, corev1.Container(from.EphemeralContainers[i].EphemeralContainerCommon))
	}
	labelled := func(c corev1.Container) bool {
		return c.SecurityContext != nil && c.SecurityContext.SELinuxOptions != nil
	}
	if slices.ContainsFunc(all, labelled) {
		to.Containers = labelsOf(all)
	}
}

func labelsOf(all []corev1.Container) []corev1.Container {
	var out []corev1.Container
	for i := range all {
		out = append(out, labelOf(&all[i]))
	}
	return out
}

// labelOf returns what a container mounts, and with which SELinux options.
func labelOf(c *corev1.Container) corev1.Container {
	out := corev1.Container{}
	for _, m := range c.VolumeMounts {
		out.VolumeMounts = append(out.VolumeMounts, corev1.VolumeMount{Name: m.Name})
	}
	if s := c.SecurityContext; s != nil && s.SELinuxOptions != nil {
		out.SecurityContext = &corev1.SecurityContext{SELinuxOptions: s.SELinuxOptions}
	}
	return out
}

// ownConditions returns the conditions that volplane's components have written themselves.
func ownConditions(all []corev1.PodCondition) []corev1.PodCondition {
	var out []corev1.PodCondition
	for _, c := range all {
		if c.Type == volume.ConditionVolumesMounted || c.Type == volume.ConditionVolumesHealthy ||
			c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			out = append(out, c)
		}
	}
	return out
}
