package provisioner

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/volume"
)

const hanging = 600

// TestHangingCreationsHoldUpNobodyElse: a driver never answers to 600 calls of
// one namespace. Another driver makes that namespace its volumes, and this one
// makes them for another namespace, and deletes what is to be deleted.
func TestHangingCreationsHoldUpNobodyElse(t *testing.T) {
	var objects []runtime.Object
	for i := range hanging {
		objects = append(objects, claim(fmt.Sprint("hangs-", i)))
	}
	var hang atomic.Int64
	w := newWorld(t, func(d *driver) {
		d.volumes["old"] = 1 << 30
		d.answer = func(ctx context.Context, r *csipb.CreateVolumeRequest) (*csipb.CreateVolumeResponse, error) {
			if !strings.HasPrefix(r.GetName(), "pvc-u-hangs-") {
				return nil, nil
			}
			hang.Add(1)
			<-ctx.Done()
			return nil, ctx.Err()
		}
	}, objects...)
	kubetest.Eventually(t, func() string {
		if n := hang.Load(); n < places/2 {
			return fmt.Sprintf("half of the places are taken: %d", n)
		}
		return ""
	})
	w.drivers.Put(serve(t.Context(), t, &driver{name: "other.example", volumes: map[string]int64{}}))
	w.createClass("other", "other.example")
	w.create("ns", "second-driver", "other", "other.example")
	w.create("second", "second-namespace", "fast", driverName)
	w.createReleased("old")
	w.saved("pvc-u-second-driver")
	w.saved("pvc-u-second-namespace")
	kubetest.Eventually(t, func() string {
		if !slices.Contains(w.driver.deletions(), "old") {
			return "the deletion of what the driver made before"
		}
		return ""
	})
	if n := hang.Load(); n > places/2 {
		t.Errorf("%d calls of one namespace, want %d at most", n, places/2)
	}
}

func (w *world) createClass(name, provisioner string) {
	w.t.Helper()
	c := class()
	c.Name, c.Provisioner = name, provisioner
	if _, err := w.client.StorageV1().StorageClasses().Create(w.t.Context(), c, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) create(namespace, name, class, driver string) {
	w.t.Helper()
	c := claim(name)
	c.Namespace, c.Spec.StorageClassName = namespace, &class
	c.Annotations[volume.AnnStorageProvisioner] = driver
	if _, err := w.client.CoreV1().PersistentVolumeClaims(namespace).Create(w.t.Context(), c,
		metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// createReleased makes the object of a volume that the driver is to delete.
func (w *world) createReleased(handle string) {
	w.t.Helper()
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{
		Name: handle, UID: types.UID(handle), Annotations: map[string]string{volume.AnnProvisionedBy: driverName},
		Finalizers: []string{volume.FinalizerProvisioner},
	}}
	v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: handle}
	v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "gone", UID: "gone"}
	v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
	v.Status.Phase = corev1.VolumeReleased
	if _, err := w.client.CoreV1().PersistentVolumes().Create(w.t.Context(), v, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// TestASlowDriver: the claim's owner is told that it works.
func TestASlowDriver(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil, claim("c"), class())
	told := false
	b.driver.OnCall("CreateVolume", func(int, any) csitest.Action {
		b.told(notes("Provisioning", "", "driver d.example is making volume pvc-u-c"))
		told = true
		return csitest.Action{}
	})
	b.works(kindClaim, "u-c")
	if !told {
		t.Error("not told during the call")
	}
}
