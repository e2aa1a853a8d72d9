package provisioner

import (
	"testing"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/controller/drivertest"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/volume"
)

// TestSteps: what the provisioner does by itself.
func TestSteps(t *testing.T) {
	drivertest.Run(t, drivertest.Setting{
		Driver: driverConfig(),
		Build: func(env controller.Env, drivers *csi.Set, _ func(string) string) *controller.Controller {
			return New(env, Options{Drivers: drivers, Requests: controller.NewRequests(), Intents: oneLog()})
		},
		Usual: []proto.Message{asksFor("c"), deletes("c", nil)},
		Given: []string{"class"}, Lazy: "configmaps",
		Kinds: map[string]drivertest.Kind{
			"claim": drivertest.Object(func() *corev1.PersistentVolumeClaim { return claim("c") }, claimStates(), claimFields()),
			"pv": drivertest.Object(func() *corev1.PersistentVolume { return plainVolume("c") },
				map[string]func(*corev1.PersistentVolume){
					"released": func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeReleased },
					"stranger": func(v *corev1.PersistentVolume) {
						*v = corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-u-c"}}
					},
				}, nil),
			"class": drivertest.Object(class, nil, nil),
			"intents": drivertest.Object(func() *corev1.ConfigMap { return begun("u-c", "pvc-u-c") },
				map[string]func(*corev1.ConfigMap){
					"victim": func(m *corev1.ConfigMap) { *m = *begun("u-x", "pvc-victim") },
				}, nil),
		},
	})
}

// driverConfig is that of a driver that can create, clone and restore volumes and has no topology.
func driverConfig() csitest.Config {
	config := csitest.Full()
	config.Name, config.Controller.Snapshot, config.Snapshots = driverName, true, []string{"shot"}
	config.Plugin.AccessibilityConstraints = false
	return config
}

func class() *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: driverName}
}

func claim(name string) *corev1.PersistentVolumeClaim {
	fast := "fast"
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("u-" + name)},
	}
	c.Annotations = map[string]string{volume.AnnStorageProvisioner: driverName}
	c.Spec.StorageClassName = &fast
	c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	c.Spec.Resources.Requests = storage("1Gi")
	return c
}

func claimStates() map[string]func(*corev1.PersistentVolumeClaim) {
	return map[string]func(*corev1.PersistentVolumeClaim){
		"beta": func(c *corev1.PersistentVolumeClaim) {
			c.Annotations = map[string]string{volume.AnnBetaStorageProvisioner: driverName}
		},
		"both": func(c *corev1.PersistentVolumeClaim) {
			c.Spec.AccessModes = append(c.Spec.AccessModes, corev1.ReadOnlyMany)
		},
		"bound": func(c *corev1.PersistentVolumeClaim) {
			c.Spec.VolumeName, c.Status.Phase = "pvc-u-c", corev1.ClaimBound
		},
	}
}

func claimFields() map[string]func(*corev1.PersistentVolumeClaim, string) {
	return map[string]func(*corev1.PersistentVolumeClaim, string){
		"name":   func(c *corev1.PersistentVolumeClaim, name string) { *c = *claim(name) },
		"uid":    func(c *corev1.PersistentVolumeClaim, uid string) { c.UID = types.UID(uid) },
		"volume": func(c *corev1.PersistentVolumeClaim, name string) { c.Spec.VolumeName = name },
		"source": func(c *corev1.PersistentVolumeClaim, name string) {
			c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: name}
		},
	}
}

// begun is the log of a provisioner that stopped during its call.
func begun(uid types.UID, name string) *corev1.ConfigMap {
	in := &provision.Intent{
		Driver: driverName, Name: name, Bytes: 1 << 30, Modes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Claim: corev1.ObjectReference{Namespace: "ns", Name: "c", UID: uid}, Reclaim: corev1.PersistentVolumeReclaimDelete,
		Class: "fast",
	}
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: volume.NamespaceSystem, Name: oneLog().Own.Name + "-7",
			Labels: map[string]string{volume.LabelIntents: oneLog().Own.Name},
		},
		Data: map[string]string{string(uid): in.String()},
	}
}
