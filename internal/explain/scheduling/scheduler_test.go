package scheduling_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/explain/why/whytest"
)

// TestScheduler: what a cluster's scheduler reports about a Pod, and which part of it is
// about its volumes.
func TestScheduler(t *testing.T) {
	whytest.Equal(t, "scheduler.txt", whytest.Written(t, schedulerRows(), func(s *scene) { s.Kubelet("") }))
}

func schedulerRows() []row {
	const full = "0/4 nodes are available: 1 Insufficient cpu, 3 node(s) exceed max volume count. " +
		"preemption: 0/4 nodes are available."
	takes := func(s *scene, count int32) {
		for _, n := range s.All.CSINodes {
			other := storagev1.CSINodeDriver{Name: "other", Allocatable: &storagev1.VolumeNodeResources{Count: ptr.To[int32](0)}}
			n.Spec.Drivers = append([]storagev1.CSINodeDriver{other}, n.Spec.Drivers...)
			n.Spec.Drivers[1].Allocatable = &storagev1.VolumeNodeResources{Count: ptr.To(count)}
		}
	}
	return append([]row{
		{"the claim has no volume yet", "pod/web", func(s *scene) {
			p := s.Pod
			s.Unbound()
			s.Use(p)
			s.Homeless("0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims. preemption: not helpful.")
		}},
		{"it had none, and has one now", "pod/web", func(s *scene) {
			s.Homeless("0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims.")
		}},
		{"nodes take no more volumes", "pod/web", func(s *scene) {
			takes(s, 1)
			s.Homeless(full)
			s.All.Attachments = []*storagev1.VolumeAttachment{s.Attachment}
		}},
		{"so do three", "pod/web", func(s *scene) {
			s.All.CSINodes = append(s.All.CSINodes, whytest.CSINode("n3"))
			takes(s, 0)
			s.Homeless(full)
		}},
		{"so do very many", "pod/web", func(s *scene) {
			for _, name := range []string{"n3", "n4", "n5"} {
				s.All.CSINodes = append(s.All.CSINodes, whytest.CSINode(name))
			}
			takes(s, 0)
			s.Homeless(full)
		}},
		{"nodes that do not tell how many they take", "pod/web", func(s *scene) {
			s.CSI1.Spec.Drivers[0].Allocatable = &storagev1.VolumeNodeResources{}
			s.Homeless(full)
		}},
		{"a volume that the Pod brings is not bound first", "pod/web", func(s *scene) {
			s.Inline()
			s.Homeless("0/2 nodes are available: 2 Insufficient memory.")
		}},
		{"a claim that is not there is not bound first", "pod/web", func(s *scene) {
			s.All.Claims = nil
			s.Homeless(`0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims, ` +
				`persistentvolumeclaim "data" not found.`)
		}},
		{"nobody says where the volume is", "pod/web", func(s *scene) {
			s.Volume.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{}
			more := s.Claim.DeepCopy()
			more.Name, more.Spec.VolumeName, more.UID = "more", "gone", "uid-more"
			s.All.Claims = append(s.All.Claims, more)
			s.Homeless("0/2 nodes are available: 2 node(s) didn't match PersistentVolume's node affinity.")
			s.Pod.Spec.Volumes = append(s.Pod.Spec.Volumes, corev1.Volume{VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "more"},
			}})
		}},
		{"the driver that is to make the volume is full", "pod/web", func(s *scene) {
			p := s.Pod
			s.Unbound()
			s.Use(p)
			takes(s, 0)
			s.Homeless(full)
		}},
	}, elsewhereRows()...)
}

// elsewhereRows are of volumes that can be used on some nodes, and of what is not
// about volumes.
func elsewhereRows() []row {
	return []row{
		{"the volume is elsewhere", "pod/web", func(s *scene) {
			in := func(key string, values ...string) corev1.NodeSelectorRequirement {
				return corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values}
			}
			terms := []corev1.NodeSelectorTerm{
				{MatchExpressions: []corev1.NodeSelectorRequirement{in("zone", "a", "b"), in("rack", "1")}},
				{MatchFields: []corev1.NodeSelectorRequirement{in("metadata.name", "n7")}},
			}
			s.Volume.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: terms}}
			s.Homeless("0/2 nodes are available: 2 node(s) didn't match PersistentVolume's node affinity.")
		}},
		{"an older scheduler says so of a volume that has become free of it", "pod/web", func(s *scene) {
			s.Homeless("0/2 nodes are available: 2 node(s) had volume node affinity conflict.")
		}},
		{"it is not for its volumes", "pod/web", func(s *scene) {
			s.Homeless("0/2 nodes are available: 2 Insufficient memory.")
		}},
		{"it is, in other words", "pod/web", func(s *scene) {
			s.Homeless(`0/2 nodes are available: 2 node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s).`)
		}},
	}
}

// row is one scene and the object in question.
type row whytest.Row

type scene = whytest.Scene
