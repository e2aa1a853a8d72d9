package kubelets

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/test/internal/differential"
)

// These are the drivers of the Pods: plain and grouping have no CSIDriver, and grouping applies the fsGroup itself;
// informed receives the information about Pods and their groups; and loose needs no attach, ignores fsGroup and has
// tokens among its secrets.
const (
	plain    = "plain.csi.example.com"
	informed = "informed.csi.example.com"
	grouping = "grouping.csi.example.com"
	loose    = "loose.csi.example.com"
)

// group is the fsGroup of the Pods.
const group = 4321

func describedDrivers() []*storagev1.CSIDriver {
	tokens := []storagev1.TokenRequest{{Audience: "first"}, {Audience: "second", ExpirationSeconds: ptr.To[int64](3600)}}
	return []*storagev1.CSIDriver{
		{ObjectMeta: metav1.ObjectMeta{Name: informed}, Spec: storagev1.CSIDriverSpec{
			AttachRequired: ptr.To(true), PodInfoOnMount: ptr.To(true), FSGroupPolicy: ptr.To(storagev1.FileFSGroupPolicy),
			TokenRequests: tokens,
			VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{
				storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral,
			},
		}},
		{ObjectMeta: metav1.ObjectMeta{Name: loose}, Spec: storagev1.CSIDriverSpec{
			AttachRequired: ptr.To(false), FSGroupPolicy: ptr.To(storagev1.NoneFSGroupPolicy), TokenRequests: tokens,
			ServiceAccountTokenInSecrets: ptr.To(true),
		}},
	}
}

// guest is a Pod with one volume.
type guest struct {
	name string
	// volume is the guest's name unless it says otherwise; guests of one volume share it, and the first of them creates
	// it.
	volume, driver string
	modes          []corev1.PersistentVolumeAccessMode
	// inline says that the volume is the Pod's own.
	inline bool
	pv     func(*corev1.PersistentVolumeSpec)
	pod    func(*corev1.PodSpec)
}

func grouped(p *corev1.PodSpec) {
	p.SecurityContext = &corev1.PodSecurityContext{FSGroup: ptr.To[int64](group)}
}

func ext4(v *corev1.PersistentVolumeSpec) { v.CSI.FSType = "ext4" }

// guests are the Pods that both sides get.
func guests() []guest {
	once, many, readers := corev1.ReadWriteOnce, corev1.ReadWriteMany, corev1.ReadOnlyMany
	one := []corev1.PersistentVolumeAccessMode{once}
	return []guest{
		{name: "usual", driver: plain, modes: one, pv: func(v *corev1.PersistentVolumeSpec) {
			ext4(v)
			v.MountOptions = []string{"noatime", "discard"}
			v.CSI.VolumeAttributes = map[string]string{"tier": "gold"}
			v.CSI.NodeStageSecretRef = &corev1.SecretReference{Namespace: "default", Name: "staging"}
			v.CSI.NodePublishSecretRef = &corev1.SecretReference{Namespace: "default", Name: "publishing"}
		}},
		{name: "bare", driver: plain, modes: one},
		{name: "block", driver: plain, modes: one, pv: func(v *corev1.PersistentVolumeSpec) {
			v.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
		}},
		{name: "reader", driver: plain, modes: one, pod: func(p *corev1.PodSpec) {
			p.Volumes[0].PersistentVolumeClaim.ReadOnly = true
		}},
		{name: "printed", driver: plain, modes: one, pv: func(v *corev1.PersistentVolumeSpec) { v.CSI.ReadOnly = true }},
		{name: "readers", driver: plain, modes: []corev1.PersistentVolumeAccessMode{readers}},
		{name: "both", driver: plain, modes: []corev1.PersistentVolumeAccessMode{readers, many}},
		{name: "alone", driver: plain, modes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}},
		{name: "first", volume: "shared", driver: plain, modes: []corev1.PersistentVolumeAccessMode{many}},
		{name: "second", volume: "shared", driver: plain},
		{name: "group", driver: plain, modes: one, pv: ext4, pod: grouped},
		{name: "group-untyped", driver: plain, modes: one, pod: grouped},
		{name: "group-many", driver: plain, modes: []corev1.PersistentVolumeAccessMode{many}, pv: ext4, pod: grouped},
		{name: "group-reader", driver: plain, modes: one, pv: ext4, pod: func(p *corev1.PodSpec) {
			grouped(p)
			p.Volumes[0].PersistentVolumeClaim.ReadOnly = true
		}},
		{name: "group-given", driver: grouping, modes: one, pod: grouped},
		{name: "told", driver: informed, modes: []corev1.PersistentVolumeAccessMode{many}, pod: grouped},
		{name: "inline", driver: informed, inline: true, pod: func(p *corev1.PodSpec) {
			v := p.Volumes[0].CSI
			v.FSType, v.VolumeAttributes = ptr.To("ext4"), map[string]string{"size": "small"}
			v.NodePublishSecretRef = &corev1.LocalObjectReference{Name: "publishing"}
		}},
		{name: "inline-reader", driver: informed, inline: true, pod: func(p *corev1.PodSpec) {
			p.Volumes[0].CSI.ReadOnly = ptr.To(true)
		}},
		{name: "loose", driver: loose, modes: one, pv: ext4, pod: grouped},
		{name: "unmounted", driver: plain, modes: one, pod: func(p *corev1.PodSpec) { p.Containers[0].VolumeMounts = nil }},
	}
}

// volumeName returns the name of a guest's volume.
func (g guest) volumeName() string {
	if g.volume != "" {
		return g.volume
	}
	return g.name
}

// podOn returns the guest's Pod for a node, whose name is part of all other names.
func (g guest) podOn(node string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: g.name + "-" + node}, Spec: corev1.PodSpec{
		NodeName: node, AutomountServiceAccountToken: ptr.To(false), TerminationGracePeriodSeconds: ptr.To[int64](1),
		Containers: []corev1.Container{
			{Name: "c", Image: "none", VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}},
		},
	}}
	source := corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: g.volumeName() + "-" + node},
	}
	if g.inline {
		source = corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: g.driver}}
	}
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: source}}
	if v := g.volumeOn(node); v != nil && v.Spec.VolumeMode != nil {
		pod.Spec.Containers[0].VolumeMounts, pod.Spec.Containers[0].VolumeDevices = nil,
			[]corev1.VolumeDevice{{Name: "v", DevicePath: "/v"}}
	}
	if g.pod != nil {
		g.pod(&pod.Spec)
	}
	return pod
}

// volumeOn returns the volume that a guest brings to a node, nil if it has none or one of another node.
func (g guest) volumeOn(node string) *corev1.PersistentVolume {
	if g.inline || len(g.modes) == 0 {
		return nil
	}
	v := differential.CSIVolume(g.volumeName()+"-"+node, g.driver, g.modes...)
	if g.pv != nil {
		g.pv(&v.Spec)
	}
	return v
}
