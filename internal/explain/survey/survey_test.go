package survey_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/survey"
	"volplane.dev/volplane/internal/explain/why"
	"volplane.dev/volplane/internal/explain/why/whytest"
	"volplane.dev/volplane/internal/volume"
)

// TestExplanations: an object is explained by the explanations of all objects that depend on it.
func TestExplanations(t *testing.T) {
	for file, rows := range map[string][]whytest.Row{"nodes.txt": whytest.NodeRows(), "kinds.txt": whytest.KindRows()} {
		whytest.Equal(t, file, whytest.Written(t, rows, func(*scene) {}))
	}
}

func TestCauses(t *testing.T) {
	var b strings.Builder
	for _, r := range whytest.CauseRows() {
		s := whytest.New()
		r.Change(s)
		b.WriteString("# " + r.Name + "\n")
		if err := survey.RenderCauses(&b, survey.Causes(why.Of(s.All)), true, nil); err != nil {
			t.Fatal(err)
		}
		b.WriteString("\n")
	}
	whytest.Equal(t, "causes.txt", b.String())
}

// TestEachStuckObjectIsInTheOverview: each claim, Pod, snapshot and group that waits is among the causes, with the
// reason and the next actor of its own answer. The overview leaves out a Pod without volumes that has no node.
func TestEachStuckObjectIsInTheOverview(t *testing.T) {
	for _, r := range whytest.All() {
		kind, _, _ := strings.Cut(r.Ask, "/")
		if !slices.Contains([]string{"pvc", "pod", "volumesnapshot", "volumegroupsnapshot"}, kind) ||
			r.Name == "a Pod without claims that finds no node" {
			continue
		}
		s := whytest.New()
		r.Change(s)
		told, ok := whytest.Ask(s.All, r.Ask)
		if !ok {
			t.Fatalf("%s: there is no %s", r.Name, r.Ask)
		}
		want, causes := told.Answer(), survey.Causes(why.Of(s.All))
		i := slices.IndexFunc(causes, func(c survey.Cause) bool {
			return slices.ContainsFunc(c.Waits, func(h survey.Held) bool { return h.Subject == told.Subject })
		})
		if (i >= 0) != (want.State != chain.OK) ||
			i >= 0 && (causes[i].Because.Reason != want.Because.Reason || causes[i].Because.Next != want.Because.Next) {
			t.Errorf("%s: of %s is told %+v, and the causes are %+v", r.Name, told.Subject, want, causes)
		}
	}
}

// TestDeadDrivers: a driver that is not there is one cause, whatever waits for it.
func TestDeadDrivers(t *testing.T) {
	var b strings.Builder
	gone := `rpc error: code = Unavailable desc = connection error: desc = "transport: connection refused"`
	for _, r := range []row{
		{"missing on one node", "", func(s *scene) { s.CSI1.Spec.Drivers = nil }},
		{"missing on two", "", func(s *scene) { s.CSI1.Spec.Drivers = nil; s.Twin(corev1.PodPending) }},
		{"missing everywhere", "", func(s *scene) {
			s.All.CSINodes = nil
			s.Twin(corev1.PodPending)
			c := s.Claim.DeepCopy()
			c.Name, c.UID, c.Spec.VolumeName, c.Status.Phase = "new", "uid-new", "", corev1.ClaimPending
			c.Annotations = nil
			s.All.Claims = append(s.All.Claims, c)
		}},
		{"nobody serves its socket", "", func(s *scene) {
			s.Twin(corev1.PodPending)
			for _, a := range s.All.Attachments {
				a.Status = storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{Message: gone}}
			}
			s.Warn("uid-web", volume.ReasonFailedMount, `MountVolume.MountDevice failed for volume "v1" : `+gone)
		}},
		{"one node's agent says so", "", func(s *scene) {
			s.Failed("publish", "NodePublishVolume by driver d.example.com: Unavailable: error reading from server: EOF",
				false)
		}},
		{"of two snapshots is told what their controller says, which is no driver", "", func(s *scene) {
			s.Snapshot(func(snapshot *snapshotv1.VolumeSnapshot, _ *cluster.VolumeSnapshotContent) {
				snapshot.Status.Error = &snapshotv1.VolumeSnapshotError{Message: &gone}
			})
			second := s.All.Snapshots[0].DeepCopy()
			second.Name, s.All.SnapshotsHidden = "second", true
			s.All.Snapshots = append(s.All.Snapshots, second)
		}},
		{"it answers, and refuses: each volume is a cause", "", func(s *scene) {
			s.Twin(corev1.PodPending)
			for _, a := range s.All.Attachments {
				a.Status = storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{Message: "Internal: no such disk"}}
			}
		}},
	} {
		s := whytest.New()
		s.Kubelet("")
		r.Change(s)
		b.WriteString("# " + r.Name + "\n")
		if err := survey.RenderCauses(&b, survey.Causes(why.Of(s.All)), true, nil); err != nil {
			t.Fatal(err)
		}
		b.WriteString("\n")
	}
	whytest.Equal(t, "dead-drivers.txt", b.String())
}

// TestDeadControllersAreOneCause: whatever waits for the programs of a driver, the
// driver is the cause; and those of the control plane are theirs.
func TestDeadControllersAreOneCause(t *testing.T) {
	s := whytest.New()
	s.Kubelet("")
	s.All.Now = whytest.At(10).Time
	s.Lease("kube-system", "apiserver-x", "x", 3600, 0)
	s.Twin(corev1.PodPending)
	for _, a := range s.All.Attachments {
		a.Status = storagev1.VolumeAttachmentStatus{}
	}
	fresh := s.Claim.DeepCopy()
	fresh.Name, fresh.UID, fresh.Spec.VolumeName, fresh.Status.Phase = "fresh", "uid-fresh", "", corev1.ClaimPending
	fresh.Annotations = nil
	s.All.Claims = append(s.All.Claims, fresh)
	s.Use(whytest.Pod("web9", ""))
	s.Lease("storage", "external-attacher-leader-d-example-com", "csi-0", 15, time.Minute)
	s.Lease("storage", "d-example-com", "csi-0", 15, time.Minute)
	s.Lease("kube-system", "kube-scheduler", "m_2", 15, 9*time.Minute)
	var b strings.Builder
	if err := survey.RenderCauses(&b, survey.Causes(why.Of(s.All)), true, nil); err != nil {
		t.Fatal(err)
	}
	whytest.Equal(t, "dead-controllers.txt", b.String())
}

// TestPodsWithoutVolumes: a Pod without volumes for which no node was found is not a
// cause; one that waits for a mount is.
func TestPodsWithoutVolumes(t *testing.T) {
	for message, want := range map[string]int{"0/2 nodes are available: 2 Insufficient cpu.": 0, "": 0} {
		s := whytest.New()
		s.Kubelet("")
		s.Sandbox(corev1.ConditionTrue)
		s.Attachment.Spec.NodeName = "n1"
		p := whytest.Pod("plain", "")
		p.Spec.Volumes = nil
		if message != "" {
			p.Status.Conditions = []corev1.PodCondition{
				{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: message},
			}
		}
		s.Use(p)
		if got := survey.Causes(why.Of(s.All)); len(got) != want {
			t.Errorf("%q: causes are %+v", message, got)
		}
	}
	s := whytest.New()
	s.Kubelet("")
	s.Pod.Spec.Volumes = nil
	s.Warn("uid-web", volume.ReasonFailedMount,
		`MountVolume.SetUp failed for volume "conf" : configmap "settings" not found`)
	s.All.Claims, s.All.Volumes, s.All.Attachments = nil, nil, nil
	if got := survey.Causes(why.Of(s.All)); len(got) != 1 || !strings.Contains(got[0].Because.Message, "settings") {
		t.Errorf("causes are %+v", got)
	}
}

// row is one scene and the object in question.
type row whytest.Row

type scene = whytest.Scene
