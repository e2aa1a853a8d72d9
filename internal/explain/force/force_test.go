package force_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/explain/why/whytest"
)

// TestForce: when a volume is detached by force from a node that is not ready, as far as
// the objects show.
func TestForce(t *testing.T) {
	whytest.Equal(t, "force.txt", whytest.Written(t, forceRows(), (*scene).DeadNode))
}

func forceRows() []row {
	const multi = `Multi-Attach error for volume "v1" Volume is already `
	evicts := func(s *scene, seconds ...int64) {
		s.N1.Spec.Taints = []corev1.Taint{
			{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoSchedule},
			{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute, TimeAdded: ptr.To(whytest.At(5))},
		}
		for _, n := range seconds {
			s.Pod.Spec.Tolerations = append(s.Pod.Spec.Tolerations,
				corev1.Toleration{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, TolerationSeconds: &n})
		}
	}
	return []row{
		{"its Pod is there, and nothing drives it away", "pod/other", func(*scene) {}},
		{"its Pod is evicted after a time", "pod/other", func(s *scene) { evicts(s, 600, 300) }},
		{"at once", "pod/other", func(s *scene) { evicts(s) }},
		{"never", "pod/other", func(s *scene) {
			evicts(s)
			s.Pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		}},
		{"after a time that nobody knows", "pod/other", func(s *scene) {
			evicts(s, 300)
			s.N1.Spec.Taints[1].TimeAdded = nil
		}},
		{"the first of two taints counts", "pod/other", func(s *scene) {
			evicts(s, 300)
			s.N1.Spec.Taints = append(s.N1.Spec.Taints,
				corev1.Taint{
					Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute,
					TimeAdded: ptr.To(whytest.At(1)),
				})
		}},
		{"nobody ends its Pod", "pod/other", func(s *scene) { s.Pod.DeletionTimestamp = ptr.To(whytest.At(8)) }},
		{"its Pod has gone, nobody knows when", "pod/other", func(s *scene) { s.PodGone() }},
		{"its Pod had gone when another was told", "pod/other", func(s *scene) {
			s.PodGone()
			s.MultiAttach("uid-other", multi+"used by pod(s) web", whytest.At(1))
			s.MultiAttach("uid-else", multi+"exclusively attached to one node", whytest.At(2))
			s.MultiAttach("uid-other", `AttachVolume.Attach failed for volume "v1" : no`, whytest.At(3))
			s.MultiAttach("uid-other", multi+"exclusively attached to one node", metav1.Time{})
			s.MultiAttach("uid-other", multi+"used by 2 pod(s) in different namespaces", whytest.At(4))
			s.MultiAttach("uid-other", strings.Replace(multi, "v1", "v2", 1)+"exclusively attached to one node", whytest.At(5))
			s.MultiAttach("uid-other", multi+"exclusively attached to one node", whytest.At(10))
		}},
		{"the same, as newer controllers say it", "pod/other", func(s *scene) {
			s.PodGone()
			s.MultiAttach("uid-other",
				`Waiting for detach for volume "v1" Volume is already exclusively attached to one node, waiting on detach`,
				whytest.At(9))
		}},
		{"nor does the node use it: it is detached anyhow", "pod/other", func(s *scene) {
			s.PodGone()
			s.N1.Status.VolumesInUse = nil
		}},
		{"somebody has said that the host is off", "pod/other", func(s *scene) {
			s.PodGone()
			s.N1.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
		}},
		{"it is being detached", "pod/other", func(s *scene) { s.PodGone(); s.Detaching() }},
		{"the Node is gone", "pod/other", func(s *scene) { s.PodGone(); s.All.Nodes = s.All.Nodes[1:] }},
		{"the node lives", "pod/other", func(s *scene) {
			s.N1.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		}},
	}
}

// row is one scene and the object in question.
type row whytest.Row

type scene = whytest.Scene
