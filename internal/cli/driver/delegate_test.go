package driver

import (
	"bytes"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/testkit/clientset"
	"volplane.dev/volplane/internal/volume"
)

// TestDriverDelegate: the nodes that are named last may call the driver, and a node-local driver cannot be delegated.
func TestDriverDelegate(t *testing.T) {
	node := func(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	driver := func(name, controllers string) *storagev1.CSIDriver {
		return &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{
			Name: name, Annotations: map[string]string{volume.AnnControllers: controllers, "theirs": "x"},
		}}
	}
	client := clientset.New(node("two"), node("three"), driver("old", volume.Delegation([]string{"four"})),
		driver("local", volume.ControllersOnNodes))
	for _, row := range []struct {
		driver string
		nodes  []string
		says   string
		value  string
	}{
		{"new", []string{"two"}, "csidriver/new delegated to two\n", "node/two"},
		{"old", []string{"two", "three", "two"}, "csidriver/old delegated to three, two\n", "node/three,node/two"},
		{"old", nil, "csidriver/old called by the control plane only\n", ""},
		{"old", []string{"five"}, `get node five: nodes "five" not found`, ""},
		{"local", []string{"two"}, "delegate driver local: it is node-local", volume.ControllersOnNodes},
		{"absent", nil, `"absent" not found`, ""},
	} {
		var out bytes.Buffer
		s := &shell.Shell{Streams: shell.Streams{Out: &out}}
		if err := delegate(t.Context(), s, client, row.driver, row.nodes); err != nil {
			out.WriteString(err.Error())
		}
		if !strings.Contains(out.String(), row.says) {
			t.Errorf("%s %v: it says %q, want %q", row.driver, row.nodes, out.String(), row.says)
		}
		d, err := client.StorageV1().CSIDrivers().Get(t.Context(), row.driver, metav1.GetOptions{})
		if row.driver == "absent" {
			continue
		}
		if err != nil || d.Annotations[volume.AnnControllers] != row.value {
			t.Errorf("%s %v: %v %v, want %q", row.driver, row.nodes, err, d.Annotations, row.value)
		}
		if row.driver == "old" && d.Annotations["theirs"] != "x" {
			t.Errorf("other annotations: %v", d.Annotations)
		}
		if row.driver == "new" && (d.Spec.AttachRequired == nil || !*d.Spec.AttachRequired) {
			t.Errorf("it need not be attached: %+v", d.Spec)
		}
	}
}
