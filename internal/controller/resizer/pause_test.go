package resizer

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/decide/resize"
)

// TestPauseIsOfASizeAndAState: refusals by the driver and refusals at the node have separate pauses.
func TestPauseIsOfASizeAndAState(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &resizer{controller.ClaimController{Refusals: controller.NewRefusals()}}
		is := func(c *corev1.PersistentVolumeClaim, want time.Duration) {
			t.Helper()
			if got := r.pause(c); got != want {
				t.Errorf("left alone for %s, wanted %s", got, want)
			}
		}
		never := func(size string) *corev1.PersistentVolumeClaim {
			return resize.Infeasible(claim(t), resource.MustParse(size), "never", metav1.Now())
		}
		is(never("2Gi"), infeasiblePause)
		<-time.After(time.Minute)
		is(never("2Gi"), infeasiblePause-time.Minute)
		is(never("3Gi"), infeasiblePause)
		<-time.After(time.Minute)
		atNode := never("3Gi")
		atNode.Status.AllocatedResourceStatuses[corev1.ResourceStorage] = corev1.PersistentVolumeClaimNodeResizeInfeasible
		is(atNode, infeasiblePause)
	})
}
