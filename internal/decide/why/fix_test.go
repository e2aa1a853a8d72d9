package why_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/decide/why"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

// down has a node not answer.
func (s *scene) down() {
	s.n1.Status.Conditions[0].Status, s.n1.Status.Conditions[0].Reason = corev1.ConditionUnknown, "NodeStatusUnknown"
}

// leavingClaim has the claim be deleted with finalizers.
func (s *scene) leavingClaim(finalizers ...string) {
	s.claim.DeletionTimestamp, s.claim.Finalizers = now(), finalizers
}

func fixRows() []row {
	return append([]row{
		{"all is well", "pvc/data", func(*scene) {}},
		{"nobody uses the claim", "pvc/data", (*scene).late},
		{"a class that is not there", "pvc/data", func(s *scene) { s.unbound(); s.all.Classes = nil }},
		{"no class is the default", "pvc/data", func(s *scene) { s.unbound(); s.claim.Spec.StorageClassName = nil }},
		{"a misspelt driver", "pvc/data", func(s *scene) { s.unbound(); s.class.Provisioner = "d.exmaple.com" }},
		{"a driver that has not started", "pvc/data", func(s *scene) { s.unbound(); s.all.CSINodes = nil }},
		{"a FlexVolume driver that is not installed", "pod/web", func(s *scene) {
			s.flexVolume()
			s.attaching()
			s.flexDrivers(`{}`)
			s.told(volume.Because{
				Reason:  volume.ReasonDriverMissing,
				Message: "driver d.example.com has not registered on node n1",
			})
		}},
		{"the driver refuses", "pvc/data", func(s *scene) {
			s.unbound()
			s.warn("uid-data", volume.ReasonProvisioningFailed, "rpc error: code = ResourceExhausted desc = pool is full")
		}},
		{"a node that is not ready", "pod/web", (*scene).down},
		{"a node that is not ready and out of service", "pod/web", func(s *scene) {
			s.down()
			s.n1.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
		}},
		{"a node that is gone", "pod/web", func(s *scene) { s.all.Nodes = s.all.Nodes[1:] }},
		{"nothing to attach with, and nobody knows a way", "volumeattachment/a1", (*scene).attaching},
	}, moreFixRows()...)
}

func moreFixRows() []row {
	return []row{
		{"a claim that a Pod of a set keeps", "pvc/data", func(s *scene) {
			s.leavingClaim(volume.FinalizerClaimProtection)
			s.pod.OwnerReferences = []metav1.OwnerReference{{Kind: "StatefulSet", Name: "db"}}
		}},
		{"a claim that only its protection keeps", "pvc/data", func(s *scene) {
			s.leavingClaim("example.com/backup", volume.FinalizerClaimProtection)
			s.all.Pods = nil
			s.detached()
		}},
		{
			"a claim that is being copied", "pvc/data",
			func(s *scene) { s.leavingClaim(volume.FinalizerCloning); s.all.Pods = nil; s.detached() },
		},
		{
			"a claim that somebody else keeps", "pvc/data",
			func(s *scene) { s.leavingClaim("example.com/backup"); s.all.Pods = nil; s.detached() },
		},
		{"a volume that the driver does not delete", "pv/v1", func(s *scene) {
			s.released()
			s.detached()
			s.volume.Finalizers = []string{volume.FinalizerProvisioner, volume.FinalizerVolumeProtection}
			s.warn("uid-v1", volume.ReasonFailedDelete, "rpc error: code = Internal desc = disk on fire")
		}},
		{"an attachment that the driver does not take away", "volumeattachment/a1", func(s *scene) {
			s.detaching()
			s.attachment.Status.DetachError = &storagev1.VolumeError{Message: "Internal: disk on fire"}
		}},
		{"a claim of another namespace, asked by its volume", "pv/v1", func(s *scene) {
			s.leavingClaim(volume.FinalizerClaimProtection)
			s.claim.Namespace, s.pod.Namespace, s.volume.Spec.ClaimRef.Namespace = "far", "far", "far"
		}},
		{"another node has the volume", "pod/other", func(s *scene) { s.use(pod("other", "n2")) }},
		{"another node has the volume and is off", "pod/other", func(s *scene) { s.use(pod("other", "n2")); s.down() }},
		{"a mount that fails", "pod/web", func(s *scene) {
			s.told(volume.Because{Reason: volume.ReasonFailedMount, Message: "Internal: disk on fire", Next: "node n1"})
		}},
		{"a claim that cannot grow", "pvc/data", func(s *scene) { s.nodeGrowth("Internal: disk on fire") }},
		{
			"a volume that names an earlier claim", "pvc/data",
			func(s *scene) { s.volume.Spec.ClaimRef.UID = types.UID("uid-before") },
		},
		{"a move that was broken off", "pvc/data", func(s *scene) {
			s.all.Claims, s.all.Volumes = nil, nil
			s.all.Moves = []why.Move{{Volume: "v1", Claim: "ns/data"}}
		}},
		{"names that a shell would run", "pvc/data", func(s *scene) {
			s.leavingClaim(volume.FinalizerClaimProtection)
			s.pod.Name = "$(rm -rf /)'; reboot"
		}},
	}
}

func TestFixes(t *testing.T) {
	var b strings.Builder
	for _, r := range fixRows() {
		s := newScene()
		r.change(s)
		chain, ok := ask(s.all, r.ask)
		if !ok {
			t.Fatalf("%s: there is no %s", r.name, r.ask)
		}
		raw, _ := explain(s.all, strings.Replace(r.ask, "/a1", "/"+attachmentName(), 1))
		fixes := why.Fix(s.all, "ns", raw)
		for i := range fixes {
			fixes[i].Command = strings.ReplaceAll(fixes[i].Command, attachmentName(), "a1")
		}
		b.WriteString("# " + r.name + "\n")
		if err := why.RenderFixes(&b, chain, fixes); err != nil {
			t.Fatal(err)
		}
		b.WriteString("\n")
	}
	golden.Equal(t, "testdata/fixes.txt", b.String())
}

// TestFixesAreSafe: whatever the scene, nothing is offered without its risk, a finalizer
// of somebody else not without what leaks, and a node is only given up when it is not
// ready.
func TestFixesAreSafe(t *testing.T) {
	for _, rows := range [][]row{
		claimRows(), attachmentRows(), consumerRows(), growthRows(), volumeRows(), nodeRows(), absentRows(), moveRows(),
		kindRows(), fixRows(),
	} {
		for _, r := range rows {
			s := newScene()
			r.change(s)
			raw, _ := explain(s.all, strings.Replace(r.ask, "/a1", "/"+attachmentName(), 1))
			for _, f := range why.Fix(s.all, "ns", raw) {
				if text := unsafe(s, f); text != "" {
					t.Errorf("%s: %s: %+v", r.name, text, f)
				}
			}
		}
	}
}

// unsafe says what is wrong with a remedy; "" is nothing.
func unsafe(s *scene, f why.Remedy) string {
	ready := s.n1.Status.Conditions[0].Status == corev1.ConditionTrue
	gone := strings.Contains(f.Command, "taint node n1") || strings.Contains(f.Command, "delete node n1")
	foreign := strings.Contains(f.Command, "finalizers") && strings.Contains(f.Command, "example.com/")
	switch {
	case f.Does == "" || f.Risk == "":
		return "it is not told what comes of it"
	case gone && (ready || !strings.Contains(f.Risk, "made sure that it is off")):
		return "a node is given up"
	case foreign && !strings.Contains(f.Risk, "leaks"):
		return "a finalizer is somebody else's"
	}
	return ""
}
