package health

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

// TestTell: what people are told of volumes and storages that are not well.
func TestTell(t *testing.T) {
	var out strings.Builder
	tell := func(argues string, b volume.Because, bad bool) {
		if bad != (b.Reason != "") {
			t.Errorf("%s: %v", argues, bad)
		}
		fmt.Fprintf(&out, "# %s\n%s: %s -> %s\n\n", argues, b.Reason, b.Message, b.Next)
	}
	two := append(ill("A", "in\nwords"), ill("B", "")...)
	b, bad := VolumeProblem("d", "pv", "n1", two)
	tell("seen from a node", b, bad)
	b, bad = VolumeProblem("d", "pv", "", ill("A", strings.Repeat("a", 2000)))
	tell("seen by the controller", b, bad)
	b, bad = VolumeProblem("d", "pv", "", nil)
	tell("well", b, bad)

	block, filesystem := ptr.To(corev1.PersistentVolumeBlock), ptr.To(corev1.PersistentVolumeFilesystem)
	node := &storagev1.CSINode{Status: storagev1.CSINodeStatus{StorageHealth: []storagev1.StorageHealth{
		{Name: "other", HealthConditions: []storagev1.StorageHealthCondition{{Status: "Other"}}},
		{Name: "d", HealthConditions: []storagev1.StorageHealthCondition{
			{Status: storagev1.StorageUnreachable, Reason: "All"},
			{Status: storagev1.StorageDegraded, Reason: "Shared", AccessMode: ptr.To(corev1.ReadWriteMany)},
			{Status: storagev1.StorageDegraded, Reason: "Device", VolumeMode: block},
			{
				Status: storagev1.StorageDegraded, Reason: "File", VolumeMode: filesystem,
				AccessMode: ptr.To(corev1.ReadWriteOnce),
			},
		}},
	}}}
	node.Name = "n1"
	b, bad = StorageProblem(node, "d", nil)
	tell("a storage, for all volumes", b, bad)
	b, bad = StorageProblem(node, "d", &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{VolumeMode: block}})
	tell("for a device", b, bad)
	v := &corev1.PersistentVolume{}
	v.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	b, bad = StorageProblem(node, "d", v)
	tell("for a filesystem", b, bad)
	b, bad = StorageProblem(node, "none", nil)
	tell("of another driver", b, bad)
	golden.Equal(t, "testdata/words.txt", out.String())
}

// TestCut: no character is broken.
func TestCut(t *testing.T) {
	for text, want := range map[string]string{"abcd": "abcd", "aüü": "aü", "abcü": "abc", "\xff\xff\xff\xff\xff": ""} {
		if got := cut(text, 4); got != want {
			t.Errorf("%q: %q", text, got)
		}
	}
}

// TestWith: the claim that is given stays as it is.
func TestWith(t *testing.T) {
	c, h := &corev1.PersistentVolumeClaim{}, &corev1.VolumeHealthStatus{}
	if got := With(c, h); got.Status.HealthStatus != h || c.Status.HealthStatus != nil {
		t.Errorf("%+v, %+v", got.Status, c.Status)
	}
}
