package door

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/volume"
)

// TestOptions: a mount that is there is the one that is asked for if its options mean the same; one that may be written
// is never taken for one that can only be read.
func TestOptions(t *testing.T) {
	for _, c := range []struct {
		has, asked string
		same       bool
	}{
		{"", "", true},
		{"suid,dev", "dev,suid", true},
		{"nosuid,dev", "dev", true},
		{"rw", "", true},
		{"ro", "noexec,ro,exec", true},
		{"", "ro", false},
		{"ro", "", false},
		{"dev", "suid", false},
		{"unknown", "unknown", false},
	} {
		options, err := decide.HostOptions(c.asked)
		if err != nil && c.same {
			t.Fatal(err)
		}
		asked := PodAtPath("default", "data", "/srv", "n1", options)
		if err != nil {
			asked.Annotations[volume.AnnMountOptions] = c.asked
		}
		there := asked.DeepCopy()
		there.Annotations[volume.AnnMountOptions] = c.has
		there.Status.Conditions = []corev1.PodCondition{{Type: volume.ConditionVolumesMounted, Status: corev1.ConditionTrue}}
		err = Mount(t.Context(), kubetest.NewAPI(t, there), asked)
		if c.same != (err == nil) || err != nil && !strings.Contains(err.Error(), "already mounted there with the options") {
			t.Errorf("%q is there, %q is asked for: %v", c.has, c.asked, err)
		}
	}
}

// TestReadOnly: what the mount may not write, the driver is told of.
func TestReadOnly(t *testing.T) {
	for _, readOnly := range []bool{true, false} {
		pod := PodAtPath("default", "data", "/srv", "n1", decide.BindOptions{ReadOnly: readOnly})
		if got := pod.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly; got != readOnly {
			t.Errorf("the claim is read-only: %v", got)
		}
		if got := pod.Annotations[volume.AnnMountOptions] == "ro"; got != readOnly {
			t.Errorf("the mount is read-only: %v", got)
		}
	}
}
