package provisioner

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/controller/story"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/kube/kubetest"
)

// claim is that of the scripts, changed by these words.
func claim(t *testing.T, words string, args ...any) *corev1.PersistentVolumeClaim {
	t.Helper()
	return story.Object[*corev1.PersistentVolumeClaim](t, "claim "+fmt.Sprintf(words, args...))
}

func class(t *testing.T, words string) *storagev1.StorageClass {
	t.Helper()
	return story.Object[*storagev1.StorageClass](t, "class "+words)
}

const hanging = 600

// TestHangingCreationsHoldUpNothingElse: a driver never answers to 600 calls of
// one namespace. Another driver makes that namespace its volumes, and this one
// makes them for another namespace, later for the same one, and deletes what is to be deleted.
func TestHangingCreationsHoldUpNothingElse(t *testing.T) {
	objects := []runtime.Object{class(t, "")}
	for i := range hanging {
		objects = append(objects, claim(t, "id=hangs-%d", i))
	}
	synctest.Test(t, func(t *testing.T) {
		d := csitest.InMemory(t, driverConfig())
		var hang atomic.Int64
		d.OnCall("CreateVolume", func(_ int, r any) csitest.Action {
			if !strings.HasPrefix(r.(*csipb.CreateVolumeRequest).GetName(), "pvc-hangs-") {
				return csitest.Action{}
			}
			hang.Add(1)
			return csitest.Action{Hang: true}
		})
		api, drivers := kubetest.NewAPI(t, objects...), csi.NewSet()
		drivers.Put(d.Dial())
		api.Begin(func(env controller.Env) *controller.Controller {
			return New(env, Options{Drivers: drivers, Requests: controller.NewRequests(), Intents: oneLog()})
		}).Work()
		kubetest.Pass(20 * time.Second)
		if n := hang.Load(); n != places/2 {
			t.Fatalf("%d calls of one namespace, want %d", n, places/2)
		}
		config := driverConfig()
		config.Name = "other.example"
		drivers.Put(csitest.InMemory(t, config).Dial())
		elsewhere := claim(t, "id=second-namespace")
		elsewhere.Namespace = "second"
		api.Put(class(t, "name=other {provisioner: other.example}"), elsewhere,
			claim(t, "id=second-driver class=other asked=other.example"), claim(t, "id=same"),
			story.Object[*corev1.PersistentVolume](t, "pv released"))
		kubetest.Pass(time.Minute)
		if !slices.Contains(d.Methods(), "DeleteVolume") {
			t.Error("what the driver made before is not deleted")
		}
		for _, name := range []string{"pvc-second-driver", "pvc-second-namespace", "pvc-same"} {
			if _, err := api.CoreV1().PersistentVolumes().Get(t.Context(), name, metav1.GetOptions{}); err != nil {
				t.Error(err)
			}
		}
	})
}
