package cluster

import (
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/volume"
)

// TestMountPaths: the annotation counts while all volumes are mounted, and the text of the condition without it.
func TestMountPaths(t *testing.T) {
	const told = `{"data":"/d/a, b=c"}`
	earlier := map[string]string{"data": "/d", "more": "/e"}
	for _, c := range []struct {
		mounted          corev1.ConditionStatus
		annotation, text string
		want             map[string]string
	}{
		{corev1.ConditionTrue, told, "data=/d/a, b=c", map[string]string{"data": "/d/a, b=c"}},
		{corev1.ConditionTrue, "{}", "no volumes", map[string]string{}},
		{corev1.ConditionTrue, "", "data=/d, more=/e", earlier},
		{corev1.ConditionTrue, "nonsense", "data=/d, more=/e", earlier},
		{corev1.ConditionFalse, told, "volume data is being mounted", nil},
		{"", told, "", nil},
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{}}}
		if c.annotation != "" {
			p.Annotations[volume.AnnPaths] = c.annotation
		}
		if c.mounted != "" {
			p.Status.Conditions = []corev1.PodCondition{
				{Type: volume.ConditionVolumesMounted, Status: c.mounted, Message: c.text},
			}
		}
		if got := MountPaths(p); !maps.Equal(got, c.want) || (got == nil) != (c.want == nil) {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
