package fix_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/explain/fix"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/explain/why/whytest"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

func fixRows() []row {
	return append([]row{
		{"all is well", "pvc/data", func(*scene) {}},
		{"nobody uses the claim", "pvc/data", (*scene).Late},
		{"a class that is not there", "pvc/data", func(s *scene) { s.Unbound(); s.All.Classes = nil }},
		{"no class is the default", "pvc/data", func(s *scene) { s.Unbound(); s.Claim.Spec.StorageClassName = nil }},
		{"a misspelt driver", "pvc/data", func(s *scene) { s.Unbound(); s.Class.Provisioner = "d.exmaple.com" }},
		{"a driver that has not started", "pvc/data", func(s *scene) { s.Unbound(); s.All.CSINodes = nil }},
		{"a FlexVolume driver that is not installed", "pod/web", func(s *scene) {
			s.FlexVolume()
			s.Attaching()
			s.FlexDrivers(`{}`)
			s.NotMounted(volume.Because{
				Reason:  volume.ReasonDriverMissing,
				Message: "driver d.example.com has not registered on node n1",
			})
		}},
		{"the driver refuses", "pvc/data", func(s *scene) {
			s.Unbound()
			s.Warn("uid-data", volume.ReasonProvisioningFailed, "rpc error: code = ResourceExhausted desc = pool is full")
		}},
		{"a node that is not ready", "pod/web", (*scene).Down},
		{"a node that is not ready and out of service", "pod/web", func(s *scene) {
			s.Down()
			s.N1.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
		}},
		{"a node that is gone", "pod/web", func(s *scene) { s.All.Nodes = s.All.Nodes[1:] }},
		{"a volume that was lost with its node", "pvc/data", func(s *scene) { s.GivenUp(); s.Detached(); s.All.Pods = nil }},
		{"a claim whose volume's object was deleted", "pvc/data", func(s *scene) {
			s.All.Volumes, s.All.Attachments, s.All.Pods = nil, nil, nil
			s.Claim.Status.Phase = corev1.ClaimLost
		}},
		{"nothing to attach with, and nobody knows a way", "volumeattachment/a1", (*scene).Attaching},
	}, moreFixRows()...)
}

func moreFixRows() []row {
	return []row{
		{"a claim that a Pod of a set keeps", "pvc/data", func(s *scene) {
			s.LeavingClaim(volume.FinalizerClaimProtection)
			s.Pod.OwnerReferences = []metav1.OwnerReference{{Kind: "StatefulSet", Name: "db"}}
		}},
		{"a claim that only its protection keeps", "pvc/data", func(s *scene) {
			s.LeavingClaim("example.com/backup", volume.FinalizerClaimProtection)
			s.All.Pods = nil
			s.Detached()
		}},
		{
			"a claim that is being copied", "pvc/data",
			func(s *scene) { s.LeavingClaim(volume.FinalizerCloning); s.All.Pods = nil; s.Detached() },
		},
		{
			"a claim of which a snapshot is taken", "pvc/data",
			func(s *scene) { s.LeavingClaim(volume.FinalizerSnapshotSource); s.All.Pods = nil; s.Detached() },
		},
		{
			"a claim that somebody else keeps", "pvc/data",
			func(s *scene) { s.LeavingClaim("example.com/backup"); s.All.Pods = nil; s.Detached() },
		},
		{"a volume that the driver does not delete", "pv/v1", func(s *scene) {
			s.Released()
			s.Detached()
			s.Volume.Finalizers = []string{volume.FinalizerProvisioner, volume.FinalizerVolumeProtection}
			s.Warn("uid-v1", volume.ReasonFailedDelete, "rpc error: code = Internal desc = disk on fire")
		}},
		{"an attachment that the driver does not take away", "volumeattachment/a1", func(s *scene) {
			s.Detaching()
			s.Attachment.Status.DetachError = &storagev1.VolumeError{Message: "Internal: disk on fire"}
		}},
		{"a claim of another namespace, asked by its volume", "pv/v1", func(s *scene) {
			s.LeavingClaim(volume.FinalizerClaimProtection)
			s.Claim.Namespace, s.Pod.Namespace, s.Volume.Spec.ClaimRef.Namespace = "far", "far", "far"
		}},
		{"another node has the volume", "pod/other", func(s *scene) { s.Use(whytest.Pod("other", "n2")) }},
		{"a Pod of another namespace has it mounted, and one of its name is here", "pod/other", func(s *scene) {
			s.SameHandle()
			s.All.Claims[1].Namespace, s.All.Volumes[1].Spec.ClaimRef.Namespace, s.All.Pods[1].Namespace = "far", "far", "far"
			s.Use(whytest.Pod("first", "n1"))
			s.Warn("uid-other", volume.ReasonFailedAttach,
				`Multi-Attach error for volume "v1": it can be on one node at a time, and node n1 says that it still uses it`)
			s.Next(volume.PodActor("far/first"))
		}},
		{"another node has the volume and is off", "pod/other", func(s *scene) {
			s.Use(whytest.Pod("other", "n2"))
			s.Down()
		}},
		{"a mount that fails", "pod/web", func(s *scene) {
			s.NotMounted(volume.Because{
				Reason: volume.ReasonFailedMount, Message: "Internal: disk on fire", Next: volume.NodeAgent("n1"),
			})
		}},
		{"a claim that cannot grow", "pvc/data", func(s *scene) { s.NodeGrowth("Internal: disk on fire") }},
		{
			"a volume that names an earlier claim", "pvc/data",
			func(s *scene) { s.Volume.Spec.ClaimRef.UID = types.UID("uid-before") },
		},
		{"a move that was broken off", "pvc/data", func(s *scene) {
			s.All.Claims, s.All.Volumes = nil, nil
			s.All.Moves = []state.Move{{Volume: "v1", Claim: "ns/data"}}
		}},
		{"names that a shell would run", "pvc/data", func(s *scene) {
			s.LeavingClaim(volume.FinalizerClaimProtection)
			s.Pod.Name = "$(rm -rf /)'; reboot"
		}},
	}
}

// TestFixes: the ways out by volplane's own verbs, and of kubectl only those that have no verb.
func TestFixes(t *testing.T) { golden.Equal(t, "testdata/fixes.txt", fixes(t, "volplane")) }

// TestFixesOfThePlugin: who has kubectl's plugin has kubectl, and may not have volplane.
func TestFixesOfThePlugin(t *testing.T) {
	all := fixes(t, "kubectl")
	for _, own := range []string{"\nvolplane delete pod", "\nvolplane delete pvc", "volplane get", "volplane resize"} {
		if strings.Contains(all, own) {
			t.Errorf("it has %q", own)
		}
	}
}

func fixes(t *testing.T, tool string) string {
	t.Helper()
	var b strings.Builder
	for _, r := range fixRows() {
		s := whytest.New()
		r.Change(s)
		told, ok := whytest.Ask(s.All, r.Ask)
		if !ok {
			t.Fatalf("%s: there is no %s", r.Name, r.Ask)
		}
		raw, _ := whytest.Explain(s.All, strings.Replace(r.Ask, "/a1", "/"+whytest.AttachmentName(), 1))
		fixes := fix.Remedies(s.All, "ns", tool, raw)
		for i := range fixes {
			fixes[i].Command = strings.ReplaceAll(fixes[i].Command, whytest.AttachmentName(), "a1")
		}
		b.WriteString("# " + r.Name + "\n")
		if err := fix.Render(&b, told, fixes); err != nil {
			t.Fatal(err)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// TestFixesAreSafe: in every scene, each fix is offered with its risk, the removal of
// another controller's finalizer with what leaks, and a node is only given up if it is
// not ready.
func TestFixesAreSafe(t *testing.T) {
	all := whytest.All()
	for _, r := range fixRows() {
		all = append(all, whytest.Row(r))
	}
	for _, r := range all {
		s := whytest.New()
		r.Change(s)
		raw, _ := whytest.Explain(s.All, strings.Replace(r.Ask, "/a1", "/"+whytest.AttachmentName(), 1))
		for _, f := range fix.Remedies(s.All, "ns", "kubectl", raw) {
			if text := unsafe(s, f); text != "" {
				t.Errorf("%s: %s: %+v", r.Name, text, f)
			}
		}
	}
}

// unsafe says what is wrong with a remedy; "" is nothing.
func unsafe(s *scene, f fix.Remedy) string {
	ready := s.N1.Status.Conditions[0].Status == corev1.ConditionTrue
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

type scene = whytest.Scene

// row is one scene and the object in question.
type row whytest.Row
