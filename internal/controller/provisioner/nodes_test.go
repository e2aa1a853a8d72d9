package provisioner

import (
	"context"
	"fmt"
	"sync"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
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
	var mu sync.Mutex
	asked := map[string]string{}
	w := newWorld(t, func(d *driver) {
		d.zonal = true
		d.answer = func(_ context.Context, r *csipb.CreateVolumeRequest) (*csipb.CreateVolumeResponse, error) {
			mu.Lock()
			defer mu.Unlock()
			zones := ""
			for _, s := range r.GetAccessibilityRequirements().GetRequisite() {
				zones += s.GetSegments()["zone"]
			}
			asked[r.GetName()] = zones
			return nil, nil
		}
	}, objects...)
	for i := range n {
		name := fmt.Sprint("pvc-u-c", i)
		w.saved(name)
		mu.Lock()
		if asked[name] != "abc" {
			t.Errorf("volume %s was asked for in the zones %q", name, asked[name])
		}
		mu.Unlock()
	}
	count := map[string]int{}
	for _, a := range w.client.Actions() {
		if a.GetResource().Resource == "nodes" {
			count[a.GetVerb()]++
		}
	}
	if count["list"] != 1 || count["get"] > 0 {
		t.Errorf("for %d claims the API was asked for Nodes: %v", n, count)
	}
}
