package health

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/controller/story"
	"volplane.dev/volplane/internal/csi/csitest"
)

const driverName = "d.example"

// TestSteps: what the controller does step by step, on its own, and when it is killed.
func TestSteps(t *testing.T) {
	config := driverConfig()
	story.Run(t, "testdata/steps", func(s *story.Scene) story.Cast {
		return story.Cast{
			Controller: func(env controller.Env) *controller.Controller { return New(env, s.Drivers, Options{}) },
			Driver:     &config,
			Given:      []string{"claim", "pv"},
		}
	})
}

func driverConfig() csitest.Config {
	config := csitest.Full()
	config.Name, config.Controller.ListVolumeHealth, config.Controller.GetVolumeHealth = driverName, true, true
	return config
}

func claim(t testing.TB, text string) *corev1.PersistentVolumeClaim {
	t.Helper()
	return story.Object[*corev1.PersistentVolumeClaim](t, text)
}

func pv(t testing.TB, text string) *corev1.PersistentVolume {
	t.Helper()
	return story.Object[*corev1.PersistentVolume](t, text)
}
