package health

import (
	"bytes"
	"testing"
	"testing/synctest"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/kube/kubetest"
)

// TestClaimsCannotHoldIt: where the API server does not keep the field, or where the right to write it is missing, as
// in upstream's manifests, one claim is tried in a cycle, and events report each change once.
func TestClaimsCannotHoldIt(t *testing.T) {
	for name, refuse := range map[string]clienttesting.ReactionFunc{
		"dropped": func(a clienttesting.Action) (bool, runtime.Object, error) {
			// This is a field under a name that the server does not know.
			patch := a.(clienttesting.PatchAction).GetPatch()
			copy(patch[bytes.Index(patch, []byte("healthStatus")):], "newerField__")
			return false, nil, nil
		},
		"forbidden": func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "persistentvolumeclaims"}, "claim", nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testEventsOnly(t, refuse) })
		})
	}
}

func testEventsOnly(t *testing.T, refuse clienttesting.ReactionFunc) {
	d := csitest.InMemory(t, driverConfig())
	sick := []*csipb.VolumeHealth_VolumeHealthEntry{{Status: csipb.VolumeHealthErrorType_DEGRADED, Reason: "Slow"}}
	ill := []*csipb.VolumeHealth{{VolumeId: "h", HealthStatuses: sick}, {VolumeId: "h2", HealthStatuses: sick}}
	d.OnCall("ControllerListVolumeHealth", func(int, any) csitest.Action {
		return csitest.Action{Answer: &csipb.ControllerListVolumeHealthResponse{Entries: ill}}
	})
	api := kubetest.NewAPI(t, claim(t, "claim"), pv(t, "pv"), claim(t, "claim2"), pv(t, "pv2"))
	tried := 0
	api.PrependReactor("patch", "persistentvolumeclaims", func(a clienttesting.Action) (bool, runtime.Object, error) {
		tried++
		return refuse(a)
	})
	drivers := csi.NewSet()
	drivers.Put(d.Dial())
	life := api.Begin(func(env controller.Env) *controller.Controller { return New(env, drivers, Options{}) })
	defer life.Kill()
	cycle := func(tries int, events ...string) {
		t.Helper()
		api.Forget()
		tried = 0
		if _, err := life.Reconcile(t.Context(), kubetest.KeyOf("driver/"+driverName)); err != nil {
			t.Fatal(err)
		}
		api.ExpectEvents(events...)
		if tried != tries {
			t.Errorf("%d claims were tried", tried)
		}
	}
	cycle(1, "Warning ns/claim VolumeConditionAbnormal: driver d.example says of volume pv: Degraded (Slow) (d.example)",
		"Warning ns/claim2 VolumeConditionAbnormal: driver d.example says of volume pv2: Degraded (Slow) (d.example)")
	cycle(0)
	ill = ill[1:]
	d.OnCall("ControllerGetVolumeHealth", func(int, any) csitest.Action {
		return csitest.Action{Answer: &csipb.ControllerGetVolumeHealthResponse{VolumeHealth: &csipb.VolumeHealth{}}}
	})
	cycle(1, "Normal ns/claim VolumeConditionNormal: driver d.example says that volume pv is healthy again")
	cycle(0)
}
