package why_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/decide/why"
	"volplane.dev/volplane/internal/volume"
)

// TestScheduler: what a cluster's scheduler says of a Pod, and what of it is about
// its volumes.
func TestScheduler(t *testing.T) {
	equal(t, "scheduler.txt", written(t, schedulerRows(), func(s *scene) { s.kubelet("") }))
}

func schedulerRows() []row {
	const full = "0/4 nodes are available: 1 Insufficient cpu, 3 node(s) exceed max volume count. " +
		"preemption: 0/4 nodes are available."
	takes := func(s *scene, count int32) {
		for _, n := range s.all.CSINodes {
			other := storagev1.CSINodeDriver{Name: "other", Allocatable: &storagev1.VolumeNodeResources{Count: ptr.To[int32](0)}}
			n.Spec.Drivers = append([]storagev1.CSINodeDriver{other},
				n.Spec.Drivers...)
			n.Spec.Drivers[1].Allocatable = &storagev1.VolumeNodeResources{Count: ptr.To(count)}
		}
	}
	return append([]row{
		{"the claim has no volume yet", "pod/web", func(s *scene) {
			p := s.pod
			s.unbound()
			s.use(p)
			s.homeless("0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims. preemption: not helpful.")
		}},
		{"it had none, and has one now", "pod/web", func(s *scene) {
			s.homeless("0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims.")
		}},
		{"nodes take no more volumes", "pod/web", func(s *scene) {
			takes(s, 1)
			s.homeless(full)
			s.all.Attachments = []*storagev1.VolumeAttachment{s.attachment}
		}},
		{"so do three", "pod/web", func(s *scene) {
			s.all.CSINodes = append(s.all.CSINodes, csiNode("n3"))
			takes(s, 0)
			s.homeless(full)
		}},
		{"so do very many", "pod/web", func(s *scene) {
			for _, name := range []string{"n3", "n4", "n5"} {
				s.all.CSINodes = append(s.all.CSINodes, csiNode(name))
			}
			takes(s, 0)
			s.homeless(full)
		}},
		{"nodes that do not tell how many they take", "pod/web", func(s *scene) {
			s.csi1.Spec.Drivers[0].Allocatable = &storagev1.VolumeNodeResources{}
			s.homeless(full)
		}},
		{"a volume that the Pod brings is not bound first", "pod/web", func(s *scene) {
			s.inline()
			s.homeless("0/2 nodes are available: 2 Insufficient memory.")
		}},
		{"a claim that is not there is not bound first", "pod/web", func(s *scene) {
			s.all.Claims = nil
			s.homeless(`0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims, ` +
				`persistentvolumeclaim "data" not found.`)
		}},
		{"nobody says where the volume is", "pod/web", func(s *scene) {
			s.volume.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{}
			more := s.claim.DeepCopy()
			more.Name, more.Spec.VolumeName, more.UID = "more", "gone", "uid-more"
			s.all.Claims = append(s.all.Claims, more)
			s.homeless("0/2 nodes are available: 2 node(s) didn't match PersistentVolume's node affinity.")
			s.pod.Spec.Volumes = append(s.pod.Spec.Volumes, corev1.Volume{VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "more"},
			}})
		}},
		{"the driver that is to make the volume is full", "pod/web", func(s *scene) {
			p := s.pod
			s.unbound()
			s.use(p)
			takes(s, 0)
			s.homeless(full)
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
			s.volume.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: terms}}
			s.homeless("0/2 nodes are available: 2 node(s) didn't match PersistentVolume's node affinity.")
		}},
		{"an older scheduler says so of a volume that has become free of it", "pod/web", func(s *scene) {
			s.homeless("0/2 nodes are available: 2 node(s) had volume node affinity conflict.")
		}},
		{"it is not for its volumes", "pod/web", func(s *scene) {
			s.homeless("0/2 nodes are available: 2 Insufficient memory.")
		}},
		{"it is, in other words", "pod/web", func(s *scene) {
			s.homeless(`0/2 nodes are available: 2 node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s).`)
		}},
	}
}

// TestPodsWithoutVolumes: that a Pod without volumes finds no node is no cause; that
// it waits for a mount is.
func TestPodsWithoutVolumes(t *testing.T) {
	for message, want := range map[string]int{"0/2 nodes are available: 2 Insufficient cpu.": 0, "": 0} {
		s := newScene()
		s.kubelet("")
		s.sandbox(corev1.ConditionTrue)
		s.attachment.Spec.NodeName = "n1"
		p := pod("plain", "")
		p.Spec.Volumes = nil
		if message != "" {
			p.Status.Conditions = []corev1.PodCondition{
				{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: message},
			}
		}
		s.use(p)
		if got := why.Causes(s.all); len(got) != want {
			t.Errorf("%q: causes are %+v", message, got)
		}
	}
	s := newScene()
	s.kubelet("")
	s.pod.Spec.Volumes = nil
	s.warn("uid-web", volume.ReasonFailedMount,
		`MountVolume.SetUp failed for volume "conf" : configmap "settings" not found`)
	s.all.Claims, s.all.Volumes, s.all.Attachments = nil, nil, nil
	if got := why.Causes(s.all); len(got) != 1 || !strings.Contains(got[0].Because.Message, "settings") {
		t.Errorf("causes are %+v", got)
	}
}
