package health

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/controller/drivertest"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/kube/kubetest"
)

const driverName = "d.example"

// TestSteps: what the controller does step by step, and by itself.
func TestSteps(t *testing.T) { drivertest.Run(t, setting()) }

// TestKilledBetweenAnyTwoSteps: whenever the process is killed, before or after a write or a call, the next one ends
// where this one would have ended.
func TestKilledBetweenAnyTwoSteps(t *testing.T) {
	drivertest.Killed(t, setting(), "testdata/killed.txt",
		`always ControllerListVolumeHealth => {"entries":[{"volume_id":"h","health_statuses":[{"status":1,"reason":"Slow"}]}]}
look driver/d.example`, func(testing.TB, *kubetest.API, []string) {})
}

func setting() drivertest.Setting {
	config := csitest.Full()
	config.Name, config.Controller.ListVolumeHealth, config.Controller.GetVolumeHealth = driverName, true, true
	return drivertest.Setting{
		Driver: config,
		Build: func(env controller.Env, drivers *csi.Set, _ func(string) string) *controller.Controller {
			return New(env, drivers, Options{})
		},
		Given: []string{"claim", "pv"},
		Kinds: map[string]drivertest.Kind{
			"claim":  drivertest.Object(claim, claimStates(), nil),
			"pv":     drivertest.Object(pv, pvStates(), nil),
			"claim2": drivertest.Object(func() *corev1.PersistentVolumeClaim { return renamed(claim()) }, claimStates(), nil),
			"pv2": drivertest.Object(func() *corev1.PersistentVolume {
				v := renamed(pv())
				v.Spec.ClaimRef.Name, v.Spec.ClaimRef.UID, v.Spec.CSI.VolumeHandle = "claim2", "c2", "h2"
				return v
			}, pvStates(), nil),
			"secret": drivertest.Object(func() *corev1.Secret {
				return &corev1.Secret{
					ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"},
					Data:       map[string][]byte{"key": []byte("correct-horse-battery")},
				}
			}, nil, nil),
		},
	}
}

// renamed gives an object another name, and a claim another volume.
func renamed[T metav1.Object](o T) T {
	o.SetName(o.GetName() + "2")
	o.SetUID(o.GetUID() + "2")
	if c, ok := any(o).(*corev1.PersistentVolumeClaim); ok {
		c.Spec.VolumeName = "pv2"
	}
	return o
}

func claim() *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "claim", UID: "c", Finalizers: []string{"example.org/foreign"},
	}}
	c.Spec.VolumeName, c.Status.Phase = "pv", corev1.ClaimBound
	c.Status.Conditions = []corev1.PersistentVolumeClaimCondition{{
		Type: "example.org/Foreign", Status: corev1.ConditionTrue, Message: "theirs",
	}}
	return c
}

func claimStates() map[string]func(*corev1.PersistentVolumeClaim) {
	told := func(text string) func(*corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) {
			c.Status.HealthStatus = &corev1.VolumeHealthStatus{LastTransitionTime: metav1.Unix(1, 0)}
			if err := json.Unmarshal([]byte(text), &c.Status.HealthStatus.HealthConditions); err != nil {
				panic(err)
			}
		}
	}
	return map[string]func(*corev1.PersistentVolumeClaim){
		"slow": told(`[{"status":"Degraded","reason":"Slow"}]`),
		"well": told(`[]`),
		"down": told(`[{"status":"Inaccessible","reason":"NoPath","message":"all paths are gone"}]`),
	}
}

func pv() *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv", UID: "v"}}
	v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "claim", UID: "c"}
	v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: "h"}
	return v
}

func pvStates() map[string]func(*corev1.PersistentVolume) {
	return map[string]func(*corev1.PersistentVolume){
		"secret": func(v *corev1.PersistentVolume) {
			v.Spec.CSI.NodeStageSecretRef = &corev1.SecretReference{Namespace: "ns", Name: "s"}
		},
		"flex":    func(v *corev1.PersistentVolume) { v.Spec.CSI = nil },
		"free":    func(v *corev1.PersistentVolume) { v.Spec.ClaimRef = nil },
		"foreign": func(v *corev1.PersistentVolume) { v.Spec.CSI.Driver = "other.example" },
	}
}
