package node

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/volume"
)

// idOf makes the id by which a volume was attached to the node that of an attachment.
func (w *world) idOf(name, id string) {
	w.t.Helper()
	body := `{"metadata":{"annotations":{"` + volume.AnnNodeID + `":"` + id + `"}}}`
	w.must(w.client.StorageV1().VolumeAttachments().Patch(w.t.Context(), attach.NameOf(driverName, "h-"+name, "n1"),
		types.MergePatchType, []byte(body), metav1.PatchOptions{}))
}

// TestAttachedUnderOtherID: the agent does not begin to use a volume that is attached under another id of the node than
// the driver's, and says so: only then is it detached by force. What the node has stays as it is.
func TestAttachedUnderOtherID(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.runWithDriver()
	w.addVolume(driverName, "a", func(*corev1.PersistentVolume) {})
	w.attach(driverName, "a")
	w.idOf("a", "id-"+driverName)
	w.pod("had", "a")
	w.awaitCondition("had", corev1.ConditionTrue, "v-a=")
	w.idOf("a", "id-before")
	w.pod("too", "a")
	w.awaitCondition("too", corev1.ConditionTrue, "v-a=")

	w.addVolume(driverName, "b", func(*corev1.PersistentVolume) {})
	w.attach(driverName, "b")
	w.idOf("b", "id-before")
	w.pod("new", "b")
	w.awaitCondition("new", corev1.ConditionFalse, "it was attached to \"id-before\", and driver")
	p, err := w.client.CoreV1().Pods("ns").Get(t.Context(), "new", metav1.GetOptions{})
	if err != nil || !attach.IsKeptOff(p) {
		t.Errorf("the Pod does not say that it is kept off: %+v (%v)", p.Status.Conditions, err)
	}
	if got := d.history(); strings.Contains(got, "h-b") {
		t.Errorf("the driver was called for the volume: %s", got)
	}
	w.idOf("b", "id-"+driverName)
	w.awaitCondition("new", corev1.ConditionTrue, "v-b=")
}
