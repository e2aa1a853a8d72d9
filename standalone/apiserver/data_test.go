package apiserver_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/standalone/standalonetest"
)

// TestSourcesAreNotPassedOver: the API server would leave out of a claim the source
// that it does not support, and the claim would get an empty volume.
func TestSourcesAreNotPassedOver(t *testing.T) {
	t.Parallel()
	s := standalonetest.Start(t)
	admin := standalonetest.Client(t, s, "")
	local := func(group *string, kind string) func(*corev1.PersistentVolumeClaimSpec) {
		return func(c *corev1.PersistentVolumeClaimSpec) {
			c.DataSource = &corev1.TypedLocalObjectReference{APIGroup: group, Kind: kind, Name: "source"}
		}
	}
	ref := func(kind, namespace string) func(*corev1.PersistentVolumeClaimSpec) {
		return func(c *corev1.PersistentVolumeClaimSpec) {
			c.DataSourceRef = &corev1.TypedObjectReference{Kind: kind, Name: "source", Namespace: &namespace}
		}
	}
	for i, test := range []struct {
		what   string
		change func(*corev1.PersistentVolumeClaimSpec)
		says   string
	}{
		{"no source", func(*corev1.PersistentVolumeClaimSpec) {}, ""},
		{"a claim", local(nil, "PersistentVolumeClaim"), ""},
		{"a snapshot", local(ptr.To(volume.GroupSnapshot), volume.KindSnapshot), ""},
		{"a claim of the same namespace", ref("PersistentVolumeClaim", ""), ""},
		{"a claim of another namespace", ref("PersistentVolumeClaim", "other"), "spec.dataSourceRef.namespace"},
		{"something of another kind", local(ptr.To("populators.example.com"), "Web"), "spec.dataSource"},
		{"a snapshot of another group", local(nil, volume.KindSnapshot), "spec.dataSource"},
		{"something of another kind by reference", func(c *corev1.PersistentVolumeClaimSpec) {
			c.DataSourceRef = &corev1.TypedObjectReference{
				APIGroup: ptr.To("populators.example.com"), Kind: "Web", Name: "source",
			}
		}, ""},
	} {
		claim := claimOf("c"+string(rune('a'+i)), "fast", "1Gi")
		test.change(&claim.Spec)
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: claim.Name}, Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Image: "i"}},
			Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
				VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: claim.Spec},
			}}}},
		}}
		for object, err := range map[string]error{"claim": makeClaim(t, admin, claim), "pod": makePod(t, admin, pod)} {
			if test.says == "" && err != nil {
				t.Errorf("%s, %s: %v", object, test.what, err)
			}
			if test.says != "" && (!apierrors.IsInvalid(err) ||
				!strings.Contains(err.Error(), strings.TrimPrefix(test.says, "spec.")) || !strings.Contains(err.Error(), "empty")) {
				t.Errorf("%s, %s: %v, want it refused for %s", object, test.what, err, test.says)
			}
		}
	}
}

func makeClaim(t *testing.T, admin kubernetes.Interface, c *corev1.PersistentVolumeClaim) error {
	t.Helper()
	made, err := admin.CoreV1().PersistentVolumeClaims("default").Create(t.Context(), c, metav1.CreateOptions{})
	if err == nil && (c.Spec.DataSource != nil || c.Spec.DataSourceRef != nil) && made.Spec.DataSourceRef == nil {
		t.Errorf("claim %s has lost its source", c.Name)
	}
	return err
}

func makePod(t *testing.T, admin kubernetes.Interface, p *corev1.Pod) error {
	t.Helper()
	_, err := admin.CoreV1().Pods("default").Create(t.Context(), p,
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

// TestHandlesByHand: a volume that a user creates must have an id that a driver could have returned.
func TestHandlesByHand(t *testing.T) {
	t.Parallel()
	s := standalonetest.Start(t)
	admin := standalonetest.Client(t, s, "")
	for handle, good := range map[string]bool{
		"v-1": true, "a b/ü": true, "v\n": false, "v\x00": false, "\x1b[2J": false,
	} {
		v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{GenerateName: "v-"}, Spec: corev1.PersistentVolumeSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: "d.example.com", VolumeHandle: handle},
			},
		}}
		_, err := admin.CoreV1().PersistentVolumes().Create(t.Context(), v, metav1.CreateOptions{})
		if good != (err == nil) ||
			err != nil && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.csi.volumeHandle")) {
			t.Errorf("id %q: %v", handle, err)
		}
	}
}
