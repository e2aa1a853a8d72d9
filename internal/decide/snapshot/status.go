package snapshot

import (
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func timeOf(nanoseconds int64) *metav1.Time { return &metav1.Time{Time: time.Unix(0, nanoseconds)} }

func sizeOf(bytes int64) *resource.Quantity { return resource.NewQuantity(bytes, resource.BinarySI) }

func same(a, b *snapshotv1.VolumeSnapshotStatus) bool { return equality.Semantic.DeepEqual(a, b) }
