package flex

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func TestSourceOf(t *testing.T) {
	options := map[string]string{"file": "data"}
	for _, c := range []struct {
		name  string
		flex  *corev1.FlexPersistentVolumeSource
		claim *corev1.ObjectReference
		want  *corev1.CSIPersistentVolumeSource
	}{
		{name: "another kind"},
		{name: "no driver's name", flex: &corev1.FlexPersistentVolumeSource{Driver: "a/b/c"}},
		{name: "too long a name", flex: &corev1.FlexPersistentVolumeSource{
			Driver: "an-example-of-a-rather-long-vendor.example.com/a-rather-long-driver",
		}},
		{
			"everything", &corev1.FlexPersistentVolumeSource{
				Driver: "example.com/lofs", FSType: "xfs", ReadOnly: true, Options: options,
				SecretRef: &corev1.SecretReference{Name: "s", Namespace: "own"},
			}, &corev1.ObjectReference{Namespace: "theirs"},
			&corev1.CSIPersistentVolumeSource{
				Driver: "lofs.example.com", VolumeHandle: "pv-1", FSType: "xfs", ReadOnly: true, VolumeAttributes: options,
				NodePublishSecretRef: &corev1.SecretReference{Name: "s", Namespace: "own"},
			},
		},
		{
			"the claim's Secret", &corev1.FlexPersistentVolumeSource{
				Driver: "lofs", SecretRef: &corev1.SecretReference{Name: "s"},
			},
			&corev1.ObjectReference{Namespace: "theirs"},
			&corev1.CSIPersistentVolumeSource{
				Driver: "lofs", VolumeHandle: "pv-1", NodePublishSecretRef: &corev1.SecretReference{Name: "s", Namespace: "theirs"},
			},
		},
		{
			"nobody's Secret", &corev1.FlexPersistentVolumeSource{Driver: "lofs", SecretRef: &corev1.SecretReference{Name: "s"}},
			nil,
			&corev1.CSIPersistentVolumeSource{
				Driver: "lofs", VolumeHandle: "pv-1", NodePublishSecretRef: &corev1.SecretReference{Name: "s"},
			},
		},
	} {
		v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-1"}}
		v.Spec.FlexVolume, v.Spec.ClaimRef = c.flex, c.claim
		before := v.DeepCopy()
		if diff := cmp.Diff(c.want, SourceOf(v)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
		if diff := cmp.Diff(before, v); diff != "" {
			t.Errorf("%s: the volume was changed:\n%s", c.name, diff)
		}
	}
}

func TestInlineOf(t *testing.T) {
	options := map[string]string{"size": "4Mi"}
	for _, c := range []struct {
		name string
		flex *corev1.FlexVolumeSource
		want *corev1.CSIVolumeSource
	}{
		{name: "another kind"},
		{name: "no driver's name", flex: &corev1.FlexVolumeSource{Driver: ""}},
		{
			"nothing said", &corev1.FlexVolumeSource{Driver: "example.com/scratch"},
			&corev1.CSIVolumeSource{Driver: "scratch.example.com"},
		},
		{
			"everything", &corev1.FlexVolumeSource{
				Driver: "example.com/scratch", FSType: "xfs", ReadOnly: true, Options: options,
				SecretRef: &corev1.LocalObjectReference{Name: "s"},
			},
			&corev1.CSIVolumeSource{
				Driver: "scratch.example.com", FSType: ptr.To("xfs"), ReadOnly: ptr.To(true), VolumeAttributes: options,
				NodePublishSecretRef: &corev1.LocalObjectReference{Name: "s"},
			},
		},
	} {
		v := &corev1.Volume{VolumeSource: corev1.VolumeSource{FlexVolume: c.flex}}
		if diff := cmp.Diff(c.want, InlineOf(v)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}
