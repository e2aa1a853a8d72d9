package provisioner

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/volume"
)

// released is the volume of claim c that is to be deleted.
func released(t *testing.T) *corev1.PersistentVolume {
	t.Helper()
	in, err := provision.ParseIntent(begun("u-c", "pvc-u-c").Data["u-c"])
	if err != nil {
		t.Fatal(err)
	}
	v := provision.Object(in, provision.Answer{Handle: "id-pvc-u-c"})
	v.Status.Phase = corev1.VolumeReleased
	return v
}

// names is claim c as somebody made it anew, or as it is when somebody has
// edited its volume's reference: it names the volume.
func names() *corev1.PersistentVolumeClaim {
	c := claim("c")
	c.UID, c.Spec.VolumeName = "u-other", "pvc-u-c"
	return c
}

func has(d *driver) { d.volumes["id-pvc-u-c"] = 1 << 30 }

// gone waits until the driver has deleted the volume.
func (w *world) gone() {
	w.t.Helper()
	kubetest.Eventually(w.t, func() string {
		if w.driver.has() != "" {
			return "DeleteVolume"
		}
		return ""
	})
}

// TestNothingIsDeletedThatAClaimNames, though the volume has another uid for the
// claim; when the claim goes it is.
func TestNothingIsDeletedThatAClaimNames(t *testing.T) {
	w := newWorld(t, has, released(t), names())
	kubetest.Eventually(t, func() string {
		all, err := w.client.CoreV1().Events("").List(context.Background(), metav1.ListOptions{})
		if err != nil || len(all.Items) == 0 || all.Items[0].Reason != string(volume.ReasonClaimUIDMismatch) {
			return "an event ClaimUIDMismatch"
		}
		return ""
	})
	if got := w.driver.has(); got != "id-pvc-u-c" {
		t.Errorf("at the driver: %q", got)
	}
	if err := w.client.CoreV1().PersistentVolumeClaims("ns").Delete(context.Background(), "c",
		metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.gone()
}

// TestAClaimThatIsNotSeenYetKeepsItsVolume: before data are deleted the API
// server itself is asked.
func TestAClaimThatIsNotSeenYetKeepsItsVolume(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 100)
	there := make(chan bool, 1)
	there <- true
	w := newWorld(t, func(d *driver) { has(d); d.late = true }, released(t))
	w.client.PrependReactor("get", "persistentvolumeclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
		now := <-there
		there <- now
		if !now {
			return false, nil, nil
		}
		asked <- struct{}{}
		return true, names(), nil
	})
	w.register()
	for range 3 {
		<-asked
	}
	if got := w.driver.deletions(); len(got) > 0 {
		t.Errorf("deleted: %v", got)
	}
	<-there
	there <- false
	w.gone()
}
