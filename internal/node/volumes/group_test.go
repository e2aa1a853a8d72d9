package volumes

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/csi"
)

// TestWhoseGroup says when the agent gives a volume's files to the Pod's group.
func TestWhoseGroup(t *testing.T) {
	modes := func(all ...corev1.PersistentVolumeAccessMode) []corev1.PersistentVolumeAccessMode { return all }
	file, none := storagev1.FileFSGroupPolicy, storagev1.NoneFSGroupPolicy
	for name, c := range map[string]struct {
		policy               *storagev1.FSGroupPolicy
		modes                []corev1.PersistentVolumeAccessMode
		fsType               string
		readOnly, block, own bool
		want                 bool
	}{
		"a filesystem of one node": {modes: modes(corev1.ReadWriteOnce), fsType: "ext4", want: true},
		"a filesystem of one Pod":  {modes: modes(corev1.ReadWriteOncePod), fsType: "ext4", want: true},
		"of many nodes":            {modes: modes(corev1.ReadWriteMany), fsType: "ext4"},
		"of many nodes, and of one": {
			modes: modes(corev1.ReadOnlyMany, corev1.ReadWriteMany, corev1.ReadWriteOnce), fsType: "ext4", want: true,
		},
		"of no mode":                 {fsType: "ext4"},
		"of no known type":           {modes: modes(corev1.ReadWriteOnce)},
		"of many nodes, told to":     {policy: &file, modes: modes(corev1.ReadWriteMany), want: true},
		"told not to":                {policy: &none, modes: modes(corev1.ReadWriteOnce), fsType: "ext4"},
		"read-only":                  {policy: &file, modes: modes(corev1.ReadWriteOnce), fsType: "ext4", readOnly: true},
		"a block device":             {policy: &file, modes: modes(corev1.ReadWriteOnce), block: true},
		"the driver does it by name": {policy: &file, modes: modes(corev1.ReadWriteOnce), fsType: "ext4", own: true},
	} {
		f := &facts{driver: &csi.Driver{}}
		f.Block, f.driver.Node.MountGroup = c.block, c.own
		pv := &corev1.PersistentVolume{}
		pv.Spec.AccessModes, pv.Spec.CSI = c.modes, &corev1.CSIPersistentVolumeSource{FSType: c.fsType}
		pod := &corev1.Pod{Spec: corev1.PodSpec{SecurityContext: &corev1.PodSecurityContext{FSGroup: ptr.To[int64](7)}}}
		group, always, ok := f.fsGroup(c.policy, consumer{pod: pod, pv: pv}, c.readOnly)
		if ok != c.want || ok && (group != 7 || !always) {
			t.Errorf("%s: %d %v %v", name, group, always, ok)
		}
	}
}
