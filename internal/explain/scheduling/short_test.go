package scheduling

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/decide/capacity"
)

// TestShort knows the words of placement again, and a scheduler's.
func TestShort(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"zone": "a"}}}
	need := capacity.Need{Claim: &corev1.PersistentVolumeClaim{}, Class: &storagev1.StorageClass{}}
	need.Driver = &storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{StorageCapacity: ptr.To(true)}}
	need.Claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("11Gi")}
	known := need
	known.Known = []*storagev1.CSIStorageCapacity{{
		NodeTopology: &metav1.LabelSelector{MatchLabels: node.Labels}, Capacity: ptr.To(resource.MustParse("10Gi")),
	}}
	for message, want := range map[string][2]bool{
		"0/1 nodes are available: n1: " + need.Refuses(node):                   {true, true},
		"0/1 nodes are available: n1: " + known.Refuses(node):                  {true, false},
		"0/2 nodes are available: 2 node(s) did not have enough free storage.": {true, false},
		"0/1 nodes are available: n1: it is not ready":                         {false, false},
		"driver d has not reported how much of class fast there is":            {false, false},
	} {
		if short, unknown := isShort(message); short != want[0] || unknown != want[1] {
			t.Errorf("%s: short %v, unknown %v", message, short, unknown)
		}
	}
}
