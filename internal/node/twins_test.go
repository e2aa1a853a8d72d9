package node

import (
	"fmt"
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestTwoVolumesOfOneHandle: a Pod never gets a volume with the attributes, the options or the access of another
// volume with the same handle. What is alike is shared.
func TestTwoVolumesOfOneHandle(t *testing.T) {
	t.Parallel()
	with := func(change func(*corev1.PersistentVolume)) func(*corev1.PersistentVolume) {
		return func(pv *corev1.PersistentVolume) {
			pv.Spec.CSI.VolumeHandle = "h"
			pv.Spec.CSI.VolumeAttributes = map[string]string{"dir": "a"}
			change(pv)
		}
	}
	for name, change := range map[string]func(*corev1.PersistentVolume){
		"attributes": func(pv *corev1.PersistentVolume) { pv.Spec.CSI.VolumeAttributes["dir"] = "b" },
		"Secret": func(pv *corev1.PersistentVolume) {
			pv.Spec.CSI.NodePublishSecretRef = &corev1.SecretReference{Namespace: "ns", Name: "s"}
		},
		"options":   func(pv *corev1.PersistentVolume) { pv.Spec.MountOptions = []string{"ro"} },
		"read-only": func(pv *corev1.PersistentVolume) { pv.Spec.CSI.ReadOnly = true },
		"access": func(pv *corev1.PersistentVolume) {
			pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}
		},
	} {
		for _, noStage := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, stages %v", name, !noStage), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, noAttach(driverName))
				d := newFakeDriver(driverName, w.dir)
				d.noStage = noStage
				d.start(t)
				w.run()
				w.registered(driverName)
				secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}}
				w.must(w.client.CoreV1().Secrets("ns").Create(t.Context(), secret, metav1.CreateOptions{}))
				// The names are against the order in which they are mounted.
				w.addVolume(driverName, "z", with(func(*corev1.PersistentVolume) {}))
				w.addVolume(driverName, "twin", with(func(*corev1.PersistentVolume) {}))
				w.addVolume(driverName, "a", with(change))
				w.pod("first", "z")
				w.awaitCondition("first", corev1.ConditionTrue, "v-z=")
				w.pod("alike", "twin")
				w.awaitCondition("alike", corev1.ConditionTrue, "v-twin=")
				w.pod("other", "a")
				const waits = "volume pv-a: it has the handle of volume pv-z, which is mounted on this node with other"
				w.awaitCondition("other", corev1.ConditionFalse, waits)
				w.stop()
				w.run()
				w.awaitCondition("other", corev1.ConditionFalse, waits)
				w.terminate("first")
				w.awaitDeletion("first")
				w.terminate("alike")
				w.awaitDeletion("alike")
				w.awaitCondition("other", corev1.ConditionTrue, "v-a=")
				all := d.publishRequests()
				last := all[len(all)-1]
				pv := corev1.PersistentVolume{}
				pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{}
				with(change)(&pv)
				if !maps.Equal(last.VolumeContext, pv.Spec.CSI.VolumeAttributes) || last.Readonly != pv.Spec.CSI.ReadOnly {
					t.Errorf("published with %v, read-only %v", last.VolumeContext, last.Readonly)
				}
				w.endPods("other")
			})
		}
	}
}
