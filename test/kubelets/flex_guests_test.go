package kubelets

import (
	"encoding/base64"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	decideflex "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/test/internal/upstream"
)

// theirs and ours are the sides: Kubernetes' in-tree plugin, and the bridge.
const (
	theirs = "theirs"
	ours   = "ours"
)

// flexPassword is the value of a Secret.
const flexPassword = "a $(b) \"c\""

// flexPodCase is a Pod with one FlexVolume, which both sides get.
type flexPodCase struct {
	name, driver, fsType string
	// inline says that the volume is the Pod's own.
	inline bool
	// far says that its node is only an object.
	far bool
	// keeps means that the sides share their data, and made that data existed before.
	keeps, made bool
	// secret means that the driver receives one, and group that the Pod has an fsGroup.
	secret, group bool
	// reader means that the Pod only reads, and printed that the volume's object makes it read-only.
	reader, printed bool
}

func flexPodCases() []flexPodCase {
	return []flexPodCase{
		{name: "disk", driver: "lofs", fsType: "ext4", keeps: true, group: true},
		{name: "grown", driver: "lofs", fsType: "xfs"},
		{name: "reader", driver: "lofs", keeps: true, made: true, reader: true},
		{name: "printed", driver: "lofs", keeps: true, made: true, printed: true},
		{name: "inline", driver: "lofs", inline: true, keeps: true},
		{name: "far", driver: "lofs", far: true},
		{name: "share", driver: "scratch", keeps: true, secret: true, group: true},
		{name: "shown", driver: "scratch", inline: true, keeps: true, made: true, reader: true},
		{name: "room", driver: "scratch", inline: true, secret: true, group: true},
	}
}

// on is a guest's name on a side; everything specific to a side has it.
func (g flexPodCase) on(side string) string { return g.name + "-" + side }

// file is what the driver calls the volume.
func (g flexPodCase) file(side string) string {
	if g.keeps {
		return "file-of-" + g.name
	}
	return "file-of-" + g.on(side)
}

// owns returns the words that only calls about the guest's volume on a side have
// in them.
func (g flexPodCase) owns(side, uid string) []string {
	return []string{g.on(side), g.file(side), ownID(uid, g.on(side))}
}

// ownID is the name that a kubelet gives a Pod's inline volume.
func ownID(uid, name string) string { return "csi-" + hash(uid+name) }

// source is the volume in the words of a side's Pod.
func (g flexPodCase) source(side string) corev1.FlexVolumeSource {
	file := g.file(side)
	s := corev1.FlexVolumeSource{
		Driver: "example.com/" + g.driver, FSType: g.fsType, ReadOnly: g.inline && g.reader || g.printed,
	}
	switch {
	case g.driver == "lofs":
		s.Options = map[string]string{"file": file, "size": "64Mi"}
		if g.fsType == "xfs" {
			// It makes nothing smaller.
			s.Options["size"] = "320Mi"
		}
	case g.keeps:
		s.Options = map[string]string{"share": file}
	default:
		s.Options = map[string]string{"size": "8Mi"}
	}
	if g.secret {
		s.SecretRef = &corev1.LocalObjectReference{Name: "s"}
	}
	return s
}

// volumeOn returns the volume's object for a side, and its claim; nil for a
// volume that is the Pod's own.
func (g flexPodCase) volumeOn(side string) (*corev1.PersistentVolume, *corev1.PersistentVolumeClaim) {
	if g.inline {
		return nil, nil
	}
	s := g.source(side)
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("320Mi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: g.on(side)}, Spec: corev1.PersistentVolumeSpec{
		Capacity: size, AccessModes: modes, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		StorageClassName: "grows",
		ClaimRef: &corev1.ObjectReference{
			Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: "default", Name: g.on(side),
		},
	}}
	flex := &corev1.FlexPersistentVolumeSource{
		Driver: s.Driver, FSType: s.FSType, ReadOnly: s.ReadOnly, Options: s.Options,
	}
	if g.secret {
		flex.SecretRef = &corev1.SecretReference{Name: "s", Namespace: "default"}
	}
	v.Spec.FlexVolume = flex
	if side == ours {
		v.Spec.CSI, v.Spec.FlexVolume = decideflex.SourceOf(v), nil
	}
	c := upstream.ClaimOf(g.on(side), "grows")
	c.Spec.AccessModes, c.Spec.VolumeName, c.Spec.Resources.Requests = modes, v.Name, size
	return v, c
}

// podOn returns the guest's Pod for a side.
func (g flexPodCase) podOn(side string) *corev1.Pod {
	v := corev1.Volume{Name: g.on(side)}
	switch {
	case !g.inline:
		v.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: g.on(side), ReadOnly: g.reader}
	default:
		v.FlexVolume = ptr.To(g.source(side))
		if side == ours {
			v.CSI, v.FlexVolume = decideflex.InlineOf(&v), nil
		}
	}
	pod := flexPodWith(g.on(side), v)
	if g.far {
		pod.Spec.NodeName = "far"
	}
	if g.group {
		grouped(&pod.Spec)
	}
	return pod
}

// flexPodWith returns a Pod with a volume.
func flexPodWith(name string, v corev1.Volume) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		NodeName: "n1", AutomountServiceAccountToken: ptr.To(false), TerminationGracePeriodSeconds: ptr.To[int64](1),
		Volumes: []corev1.Volume{v},
		Containers: []corev1.Container{
			{Name: "c", Image: "none", VolumeMounts: []corev1.VolumeMount{{Name: v.Name, MountPath: "/v"}}},
		},
	}}
}

// flexSecret is for the driver scratch alone.
func flexSecret() *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "s"}, Type: "example.com/scratch",
		StringData: map[string]string{"password": flexPassword},
	}
}

// flexWords returns replacements for words that are specific to a side, and for secrets.
func flexWords(side string, uids map[string]string) []string {
	words := []string{base64.StdEncoding.EncodeToString([]byte(flexPassword)), "BASE64-OF-PASSWORD"}
	for name, uid := range uids {
		words = append(words, uid, "UID-OF-"+name, ownID(uid, name+"-"+side), "OWN-ID-OF-"+name)
	}
	return append(words, "-"+side, "")
}
