package provisioner

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/kube/kubetest"
)

const driverName = "d.example"

// run has a provisioner work by itself in a bubble, over the objects and for a driver.
func run(t *testing.T, d *csitest.Driver, objects ...runtime.Object) (*kubetest.API, *csi.Set) {
	t.Helper()
	api, drivers := kubetest.NewAPI(t, append(objects, class())...), csi.NewSet()
	drivers.Put(d.Dial())
	api.Begin(func(env controller.Env) *controller.Controller {
		return New(env, Options{Drivers: drivers, Requests: controller.NewRequests(), Intents: oneLog()})
	}).Work()
	return api, drivers
}

// oneLog returns the logs of a process that has one.
func oneLog() Logs { return Logs{Own: Standalone().Own} }
