package kube

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/testkit/clientset"
)

// byDriver stands for volumes of FlexVolume drivers.
func byDriver() Translation {
	return Translation{
		Volume: func(v *corev1.PersistentVolume) *corev1.CSIPersistentVolumeSource {
			if v.Spec.FlexVolume == nil {
				return nil
			}
			return &corev1.CSIPersistentVolumeSource{Driver: v.Spec.FlexVolume.Driver, VolumeHandle: v.Name}
		},
		Inline: func(v *corev1.Volume) *corev1.CSIVolumeSource {
			if v.FlexVolume == nil {
				return nil
			}
			return &corev1.CSIVolumeSource{Driver: v.FlexVolume.Driver}
		},
	}
}

// flexServer is an API server with a volume of either kind, and a Pod.
func flexServer() *fake.Clientset {
	return clientset.New(
		&corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "flex"},
			Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
				FlexVolume: &corev1.FlexPersistentVolumeSource{Driver: "d"},
			}},
		},
		&corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "csi"},
			Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: "own", VolumeHandle: "h"},
			}},
		},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n"}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{
			{Name: "v", VolumeSource: corev1.VolumeSource{FlexVolume: &corev1.FlexVolumeSource{Driver: "d"}}}, {Name: "none"},
		}}},
	)
}

// TestTranslatedCaches: who looks into a cache sees what stands for the source.
func TestTranslatedCaches(t *testing.T) {
	client := Translated(flexServer(), byDriver())
	caches := NewCaches(client)
	volumes, pods := caches.Volumes(), caches.Pods()
	if err := caches.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if v, _ := volumes.Get("flex"); len(volumes.By(cluster.VolumesByHandle, "d^flex")) != 1 || v.Spec.CSI == nil {
		t.Fatalf("the cache has %+v", v)
	}
	if pod, _ := pods.Get("n/p"); len(pod.Spec.Volumes) != 1 || pod.Spec.Volumes[0].CSI == nil {
		t.Errorf("the cache has volumes %+v", pod.Spec.Volumes)
	}
	list, err := client.CoreV1().Pods("n").List(t.Context(), metav1.ListOptions{})
	if err != nil || list.Items[0].Spec.Volumes[0].CSI == nil {
		t.Errorf("the list has %+v, %v", list, err)
	}
}

// TestTranslated: readers see the translated source, and no write contains it.
func TestTranslated(t *testing.T) {
	ctx, server := t.Context(), flexServer()
	writes := Translated(server, byDriver()).CoreV1().PersistentVolumes()
	shown, err := writes.Get(ctx, "flex", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	change := shown.DeepCopy()
	change.Labels = map[string]string{"a": "b"}
	merge := func(sub ...string) func() (*corev1.PersistentVolume, error) {
		return func() (*corev1.PersistentVolume, error) {
			return writes.Patch(ctx, "flex", types.MergePatchType, []byte(`{"metadata":{"labels":{"c":"d"}}}`),
				metav1.PatchOptions{}, sub...)
		}
	}
	for what, write := range map[string]func() (*corev1.PersistentVolume, error){
		"update": func() (*corev1.PersistentVolume, error) { return writes.Update(ctx, change, metav1.UpdateOptions{}) },
		"update status": func() (*corev1.PersistentVolume, error) {
			return writes.UpdateStatus(ctx, change, metav1.UpdateOptions{})
		},
		"patch": merge(), "patch status": merge("status"),
		"get": func() (*corev1.PersistentVolume, error) { return writes.Get(ctx, "flex", metav1.GetOptions{}) },
		"create": func() (*corev1.PersistentVolume, error) {
			other := change.DeepCopy()
			other.Name, other.ResourceVersion = "other", ""
			return writes.Create(ctx, other, metav1.CreateOptions{})
		},
	} {
		got, err := write()
		if err != nil || got.Spec.CSI == nil || got.Spec.FlexVolume == nil {
			t.Errorf("%s answers %+v, %v", what, got, err)
			continue
		}
		has, err := server.CoreV1().PersistentVolumes().Get(ctx, got.Name, metav1.GetOptions{})
		if err != nil || has.Spec.CSI != nil || has.Spec.FlexVolume == nil {
			t.Errorf("%s leaves %+v, %v", what, has.Spec, err)
		}
	}
	if change.Spec.CSI == nil {
		t.Error("a write changed the object that was written")
	}
	if got, err := writes.Get(ctx, "csi", metav1.GetOptions{}); err != nil || got.Spec.CSI.Driver != "own" {
		t.Errorf("a CSI volume became %+v, %v", got, err)
	}
}
