package topology

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestPlaces: each segment once, of nodes that exist, have the driver and tell
// all its keys.
func TestPlaces(t *testing.T) {
	var nodes []*corev1.Node
	var csiNodes []*storagev1.CSINode
	for name, n := range map[string]struct {
		labels map[string]string
		driver string
		keys   []string
	}{
		"n1":      {map[string]string{"zone": "b", "rack": "1"}, "d", []string{"zone"}},
		"n2":      {map[string]string{"zone": "b", "rack": "2"}, "d", []string{"zone"}},
		"n3":      {map[string]string{"zone": "a", "rack": "1"}, "d", []string{"zone", "rack"}},
		"n4":      {map[string]string{"zone": "c"}, "d", []string{"zone", "rack"}},
		"n5":      {map[string]string{"zone": "d"}, "other", []string{"zone"}},
		"n6":      {map[string]string{"zone": "e"}, "d", nil},
		"no node": {nil, "d", []string{"zone"}},
	} {
		csiNodes = append(csiNodes, &storagev1.CSINode{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: n.driver, TopologyKeys: n.keys}}},
		})
		if n.labels != nil {
			nodes = append(nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: n.labels}})
		}
	}
	for driver, want := range map[string]string{
		"d":      "[map[] map[zone:b] map[rack:1 zone:a]]",
		"other":  "[map[zone:d]]",
		"absent": "[]",
	} {
		if got := fmt.Sprint(Places(driver, nodes, csiNodes)); got != want {
			t.Errorf("driver %s: %s, want %s", driver, got, want)
		}
	}
}
