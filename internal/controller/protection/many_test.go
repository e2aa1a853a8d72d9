package protection_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/controller/protection"
	"volplane.dev/volplane/internal/controller/story"
	"volplane.dev/volplane/internal/kube/kubetest"
)

// TestManyClaims: claims that are deleted within the pause after a list of the Pods share the next one, and each gets
// its own part of it.
func TestManyClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := kubetest.NewAPI(t, story.Object[*corev1.Pod](t, "pod"))
		for i := range 50 {
			a.Set(story.Object[*corev1.PersistentVolumeClaim](t,
				fmt.Sprintf(`pvc {metadata: {name: c%d, finalizers: [kubernetes.io/pvc-protection]}}`, i)))
		}
		a.Set(story.Object[*corev1.PersistentVolumeClaim](t, "pvc"))
		var lists atomic.Int32
		a.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			lists.Add(1)
			return false, nil, nil
		})
		_, stop := a.Run(protection.New)
		defer stop()
		lists.Store(0) // the cache's own
		claims := a.CoreV1().PersistentVolumeClaims("ns")
		for i := range 50 {
			if err := claims.Delete(t.Context(), fmt.Sprint("c", i), metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		if err := claims.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		kubetest.Pass(time.Millisecond)
		if n := lists.Load(); n != 2 {
			t.Errorf("the Pods were listed %d times, want 2: for the first claim, and for all others", n)
		}
		left, err := claims.List(t.Context(), metav1.ListOptions{})
		if err != nil || len(left.Items) != 1 || left.Items[0].Name != "a" || len(left.Items[0].Finalizers) != 2 {
			t.Errorf("claims that are left: %v, %v", left.Items, err)
		}
	})
}
