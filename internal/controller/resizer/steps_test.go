package resizer

import (
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/controller/drivertest"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/decide/resize"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/volume"
)

// TestSteps: what the resizer does step by step, and by itself.
func TestSteps(t *testing.T) { drivertest.Run(t, setting()) }

// TestKilledBetweenAnyTwoSteps: whenever a resizer is killed, before or after a write or a call, the next one ends
// where this one would have ended; only a call whose outcome was not recorded is made again, for the same size.
func TestKilledBetweenAnyTwoSteps(t *testing.T) {
	drivertest.Killed(t, setting(), "testdata/killed.txt", "look claim/ns/claim",
		func(testing.TB, *kubetest.API, []string) {})
}

func setting() drivertest.Setting {
	config := csitest.Full()
	config.Name = driverName
	return drivertest.Setting{
		Driver: config,
		Build: func(env controller.Env, drivers *csi.Set, _ func(string) string) *controller.Controller {
			return New(env, drivers)
		},
		Usual: []proto.Message{request()},
		Answers: map[string]proto.Message{
			"ControllerExpandVolume": &csipb.ControllerExpandVolumeResponse{
				CapacityBytes: 2 << 30, NodeExpansionRequired: true,
			},
		},
		Given: []string{"claim", "pv", "secret"},
		Kinds: map[string]drivertest.Kind{
			"claim": drivertest.Object(claim, claimStates(), map[string]func(*corev1.PersistentVolumeClaim, string){
				"wants":  func(c *corev1.PersistentVolumeClaim, size string) { c.Spec.Resources.Requests = storage(size) },
				"has":    func(c *corev1.PersistentVolumeClaim, size string) { c.Status.Capacity = storage(size) },
				"volume": func(c *corev1.PersistentVolumeClaim, name string) { c.Spec.VolumeName = name },
			}),
			"pv": drivertest.Object(pv, volumeStates(), map[string]func(*corev1.PersistentVolume, string){
				"claimant": func(v *corev1.PersistentVolume, uid string) { v.Spec.ClaimRef.UID = types.UID(uid) },
				"driver":   func(v *corev1.PersistentVolume, name string) { v.Spec.CSI.Driver = name },
				"mode": func(v *corev1.PersistentVolume, mode string) {
					v.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeMode(mode))
				},
			}),
			"secret": drivertest.Object(secret, nil, nil),
		},
	}
}

func claimStates() map[string]func(*corev1.PersistentVolumeClaim) {
	size := resource.MustParse("2Gi")
	return map[string]func(*corev1.PersistentVolumeClaim){
		"pending": func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimPending },
		"begun":   func(c *corev1.PersistentVolumeClaim) { *c = *resize.Started(c, size, metav1.Now()) },
		"handed": func(c *corev1.PersistentVolumeClaim) {
			*c = *resize.NodePending(resize.Started(c, size, metav1.Now()), size, metav1.Now())
		},
		"impossible": func(c *corev1.PersistentVolumeClaim) {
			*c = *resize.Infeasible(resize.Started(c, size, metav1.Now()), size, "OutOfRange: never", metav1.Now())
		},
	}
}

func volumeStates() map[string]func(*corev1.PersistentVolume) {
	return map[string]func(*corev1.PersistentVolume){
		"unclaimed": func(v *corev1.PersistentVolume) { v.Spec.ClaimRef = nil },
		"none":      func(v *corev1.PersistentVolume) { v.Spec.CSI = nil },
		"public":    func(v *corev1.PersistentVolume) { v.Spec.CSI.ControllerExpandSecretRef = nil },
		"larger": func(v *corev1.PersistentVolume) {
			v.Spec.Capacity, v.Annotations = storage("2Gi"), map[string]string{volume.AnnPreResizeCapacity: "1Gi"}
		},
		"newer": func(v *corev1.PersistentVolume) { v.Finalizers = append(v.Finalizers, "example.org/newer") },
		"mixed": func(v *corev1.PersistentVolume) {
			v.Spec.AccessModes = append(v.Spec.AccessModes, corev1.ReadOnlyMany)
		},
	}
}
