package modifier

import (
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/controller/drivertest"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/decide/modify"
	"volplane.dev/volplane/internal/kube/kubetest"
)

// TestSteps: what the modifier does step by step, and by itself.
func TestSteps(t *testing.T) { drivertest.Run(t, setting()) }

// TestKilledBetweenAnyTwoSteps: whenever a modifier is killed, before or after a write or a call, the next one ends
// where this one would have ended; only a call whose outcome was not recorded is made again, for the same class.
func TestKilledBetweenAnyTwoSteps(t *testing.T) {
	drivertest.Killed(t, setting(), "testdata/killed.txt", "look claim/ns/claim",
		func(testing.TB, *kubetest.API, []string) {})
}

func setting() drivertest.Setting {
	config := csitest.Full()
	config.Name = driverName
	gold := func() *storagev1.VolumeAttributesClass { return class("gold") }
	silver := func() *storagev1.VolumeAttributesClass { return class("silver") }
	return drivertest.Setting{
		Driver: config,
		Build: func(env controller.Env, drivers *csi.Set, option func(string) string) *controller.Controller {
			return New(env, drivers, option("metadata") != "")
		},
		Usual:   []proto.Message{request()},
		Answers: map[string]proto.Message{"ControllerModifyVolume": &csipb.ControllerModifyVolumeResponse{}},
		Given:   []string{"claim", "pv", "gold", "silver", "secret"},
		Kinds: map[string]drivertest.Kind{
			"claim": drivertest.Object(claim, claimStates(), map[string]func(*corev1.PersistentVolumeClaim, string){
				"wants": func(c *corev1.PersistentVolumeClaim, class string) {
					if c.Spec.VolumeAttributesClassName = ptr.To(class); class == "" {
						c.Spec.VolumeAttributesClassName = nil
					}
				},
			}),
			"pv": drivertest.Object(pv, map[string]func(*corev1.PersistentVolume){
				"public": func(v *corev1.PersistentVolume) { v.Annotations, v.Spec.CSI.ControllerExpandSecretRef = nil, nil },
				"usual":  func(v *corev1.PersistentVolume) { v.Annotations = nil },
				"golden": func(v *corev1.PersistentVolume) { v.Spec.VolumeAttributesClassName = ptr.To("gold") },
			}, map[string]func(*corev1.PersistentVolume, string){
				"driver": func(v *corev1.PersistentVolume, name string) { v.Spec.CSI.Driver = name },
			}),
			"gold": drivertest.Object(gold, nil, map[string]func(*storagev1.VolumeAttributesClass, string){
				"driver": func(c *storagev1.VolumeAttributesClass, name string) { c.DriverName = name },
			}),
			"silver": drivertest.Object(silver, nil, nil),
			"secret": drivertest.Object(func() *corev1.Secret { return secret("s") }, nil, nil),
			"other":  drivertest.Object(func() *corev1.Secret { return secret("other") }, nil, nil),
		},
	}
}

func claimStates() map[string]func(*corev1.PersistentVolumeClaim) {
	return map[string]func(*corev1.PersistentVolumeClaim){
		"pending": func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimPending },
		"waiting": func(c *corev1.PersistentVolumeClaim) { *c = *modify.Waiting(c) },
		"begun":   func(c *corev1.PersistentVolumeClaim) { *c = *modify.Begun(c, "gold", metav1.Now()) },
		"changed": func(c *corev1.PersistentVolumeClaim) { c.Status.CurrentVolumeAttributesClassName = ptr.To("gold") },
		"refused": func(c *corev1.PersistentVolumeClaim) {
			*c = *modify.Begun(c, "gold", metav1.Now())
			c.Status.ModifyVolumeStatus.Status = corev1.PersistentVolumeClaimModifyVolumeInfeasible
		},
	}
}
