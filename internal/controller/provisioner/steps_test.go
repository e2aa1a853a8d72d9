package provisioner

import (
	"testing"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/controller/story"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/volume"
)

// TestSteps: what the provisioner does by itself.
func TestSteps(t *testing.T) {
	config := driverConfig()
	story.Run(t, "testdata/steps", func(s *story.Scene) story.Cast {
		return story.Cast{
			Controller: func(env controller.Env) *controller.Controller {
				return New(env, Options{Drivers: s.Drivers, Requests: controller.NewRequests(), Intents: oneLog()})
			},
			Driver: &config,
			Usual:  []proto.Message{asksFor("c"), deletes("c", nil)},
			Given:  []string{"class"}, Names: []string{"pv"}, Lazy: "configmaps",
		}
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
