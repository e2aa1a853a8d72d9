package provisioner

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/kube/kubetest"
)

// TestNodesAreCached: the topology of each claim follows from all Nodes, and the
// API is asked for them once, when the provisioner starts (S1-031).
func TestNodesAreCached(t *testing.T) {
	var objects []runtime.Object
	for _, z := range []string{"a", "b", "c"} {
		objects = append(objects,
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n-" + z, Labels: map[string]string{"zone": z}}},
			&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n-" + z}, Spec: storagev1.CSINodeSpec{
				Drivers: []storagev1.CSINodeDriver{{Name: driverName, NodeID: z, TopologyKeys: []string{"zone"}}},
			}})
	}
	const n = 10
	for i := range n {
		objects = append(objects, claim(fmt.Sprint("c", i)))
	}
	synctest.Test(t, func(t *testing.T) {
		config := driverConfig()
		config.Plugin.AccessibilityConstraints, config.Segments = true, map[string]string{"zone": "a"}
		d := csitest.InMemory(t, config)
		api, _ := run(t, d, objects...)
		kubetest.Pass(time.Minute)
		if got := len(d.Volumes()); got != n {
			t.Errorf("%d volumes are made", got)
		}
		for _, c := range d.Calls() {
			zones := ""
			for _, s := range c.Request.(*csipb.CreateVolumeRequest).GetAccessibilityRequirements().GetRequisite() {
				zones += s.GetSegments()["zone"]
			}
			if zones != "abc" {
				t.Errorf("a volume was asked for in the zones %q", zones)
			}
		}
		count := map[string]int{}
		for _, a := range api.Actions() {
			if a.GetResource().Resource == "nodes" {
				count[a.GetVerb()]++
			}
		}
		if count["list"] != 1 || count["get"] > 0 {
			t.Errorf("for %d claims the API was asked for Nodes: %v", n, count)
		}
	})
}
