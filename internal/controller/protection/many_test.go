package protection_test

import (
	"fmt"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/controller/protection"
	"volplane.dev/volplane/internal/controller/story"
	"volplane.dev/volplane/internal/kube/kubetest"
)

// TestManyAtOnce: claims that are deleted at the same moment share one list from the API server, and each gets its own
// part of it.
func TestManyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := kubetest.NewAPI(t, story.Object[*corev1.Pod](t, "pod"))
		for i := range 50 {
			a.Set(story.Object[*corev1.PersistentVolumeClaim](t,
				fmt.Sprintf(`pvc {metadata: {name: c%d, finalizers: [kubernetes.io/pvc-protection]}}`, i)))
		}
		a.Set(story.Object[*corev1.PersistentVolumeClaim](t, "pvc"))
		_, stop := a.Run(protection.New)
		defer stop()
		claims := a.CoreV1().PersistentVolumeClaims("ns")
		for i := range 50 {
			if err := claims.Delete(t.Context(), fmt.Sprint("c", i), metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		if err := claims.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		left, err := claims.List(t.Context(), metav1.ListOptions{})
		if err != nil || len(left.Items) != 1 || left.Items[0].Name != "a" || len(left.Items[0].Finalizers) != 2 {
			t.Errorf("claims that are left: %v, %v", left.Items, err)
		}
	})
}
