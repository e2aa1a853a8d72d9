package provisioner

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/volume"
)

const hanging = 600

// TestHangingCreationsHoldUpNobodyElse: a driver never answers to 600 calls of
// one namespace. Another driver makes that namespace its volumes, and this one
// makes them for another namespace, later for the same one, and deletes what is to be deleted.
func TestHangingCreationsHoldUpNobodyElse(t *testing.T) {
	var objects []runtime.Object
	for i := range hanging {
		objects = append(objects, claim(fmt.Sprint("hangs-", i)))
	}
	synctest.Test(t, func(t *testing.T) {
		d := csitest.InMemory(t, driverConfig())
		var hang atomic.Int64
		d.OnCall("CreateVolume", func(_ int, r any) csitest.Action {
			if !strings.HasPrefix(r.(*csipb.CreateVolumeRequest).GetName(), "pvc-u-hangs-") {
				return csitest.Action{}
			}
			hang.Add(1)
			return csitest.Action{Hang: true}
		})
		api, drivers := run(t, d, objects...)
		kubetest.Pass(20 * time.Second)
		if n := hang.Load(); n != places/2 {
			t.Fatalf("%d calls of one namespace, want %d", n, places/2)
		}
		config := driverConfig()
		config.Name = "other.example"
		drivers.Put(csitest.InMemory(t, config).Dial())
		slow, elsewhere, released := claim("second-driver"), claim("second-namespace"), plainVolume("old")
		other := class()
		other.Name, other.Provisioner = "other", config.Name
		slow.Spec.StorageClassName, slow.Annotations[volume.AnnStorageProvisioner] = &other.Name, config.Name
		elsewhere.Namespace, released.Status.Phase = "second", corev1.VolumeReleased
		api.Put(other, slow, elsewhere, released, claim("same"))
		kubetest.Pass(time.Minute)
		if !slices.Contains(d.Methods(), "DeleteVolume") {
			t.Error("what the driver made before is not deleted")
		}
		for _, name := range []string{"pvc-u-second-driver", "pvc-u-second-namespace", "pvc-u-same"} {
			if _, err := api.CoreV1().PersistentVolumes().Get(t.Context(), name, metav1.GetOptions{}); err != nil {
				t.Error(err)
			}
		}
	})
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

// TestAStepThatIsNotKnown: it fails with an error that names it, without a call and without a panic.
func TestAStepThatIsNotKnown(t *testing.T) {
	t.Parallel()
	p := &provisioner{}
	plan := provision.Plan{Step: 99}
	if result, waits := p.waits(claim("c"), plan); waits {
		t.Errorf("it waits: %+v", result)
	}
	err := p.apply(t.Context(), claim("c"), plan)
	if !errors.Is(err, errStep) || !strings.Contains(err.Error(), "99") {
		t.Errorf("%v, want an error that names the step", err)
	}
}
