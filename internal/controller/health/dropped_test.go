package health

import (
	"testing"
	"testing/synctest"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/kube/kubetest"
)

// TestTheFieldIsDropped: where the API server does not keep the field, one claim is written in each cycle, and nothing
// is told as if it had been.
func TestTheFieldIsDropped(t *testing.T) { synctest.Test(t, testDropped) }

func testDropped(t *testing.T) {
	s := setting()
	d := csitest.InMemory(t, s.Driver)
	sick := []*csipb.VolumeHealth_VolumeHealthEntry{{Status: csipb.VolumeHealthErrorType_DEGRADED, Reason: "Slow"}}
	d.OnCall("ControllerListVolumeHealth", func(int, any) csitest.Action {
		return csitest.Action{Answer: &csipb.ControllerListVolumeHealthResponse{Entries: []*csipb.VolumeHealth{
			{VolumeId: "h", HealthStatuses: sick}, {VolumeId: "h2", HealthStatuses: sick},
		}}}
	})
	second := renamed(pv())
	second.Spec.ClaimRef.Name, second.Spec.ClaimRef.UID, second.Spec.CSI.VolumeHandle = "claim2", "c2", "h2"
	api := kubetest.NewAPI(t, claim(), pv(), renamed(claim()), second)
	api.PrependReactor("update", "persistentvolumeclaims", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if c, ok := a.(clienttesting.UpdateAction).GetObject().(*corev1.PersistentVolumeClaim); ok {
			c.Status.HealthStatus = nil
		}
		return false, nil, nil
	})
	drivers := csi.NewSet()
	drivers.Put(d.Dial())
	life := api.Begin(func(env controller.Env) *controller.Controller { return New(env, drivers) })
	defer life.Kill()
	for range 2 {
		api.Forget()
		if _, err := life.Reconcile(t.Context(), kubetest.KeyOf("driver/"+driverName)); err != nil {
			t.Fatal(err)
		}
		api.Wrote("update persistentvolumeclaims/status ns/claim")
		api.Told()
	}
}
