package node

import (
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/volume"
)

// TestRestoredAPI: the API was restored from an old backup that lacks a Pod. Its volume stays mounted,
// and the driver deletes nothing, until an administrator accepts the restore.
func TestRestoredAPI(t *testing.T) {
	t.Parallel()
	w, d := newRunningWorld(t, noAttach(driverName))
	w.mountVolume()
	w.stop()
	said := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: volume.NamespaceSystem, Name: volume.ConfigRestored},
		Data:       map[string]string{volume.RestoredMade: "yesterday"},
	}
	w.must(w.client.CoreV1().ConfigMaps(said.Namespace).Create(t.Context(), said, metav1.CreateOptions{}))
	w.must(nil, w.client.CoreV1().Pods("ns").Delete(t.Context(), "p", metav1.DeleteOptions{}))
	w.run()
	w.registered(driverName)
	w.event(func(e *corev1.Event) bool {
		return e.Reason == "FailedUnmount" &&
			strings.Contains(e.Message, `nothing is unmounted, detached or deleted: the API was restored from a backup of "yesterday"`) &&
			e.Annotations[volume.AnnNext] == "user"
	}, "that the volume is held")
	driver, there := w.agent.Drivers.Get(driverName)
	if !there {
		t.Fatal("the driver is gone")
	}
	if _, err := driver.ControllerClient().DeleteVolume(t.Context(),
		&csipb.DeleteVolumeRequest{VolumeId: "h-a"}); err == nil ||
		!strings.Contains(err.Error(), "the driver was not called: nothing is unmounted, detached or deleted") {
		t.Errorf("a volume is deleted: %v", err)
	}
	if got := d.callsFor("h-a"); got != "stage publish" {
		t.Errorf("calls: %s", got)
	}
	w.must(nil, w.client.CoreV1().ConfigMaps(said.Namespace).Delete(t.Context(), said.Name, metav1.DeleteOptions{}))
	eventually(t, func() string {
		if got := d.callsFor("h-a"); got != "stage publish unpublish unstage" {
			return "calls: " + got
		}
		return ""
	})
}
