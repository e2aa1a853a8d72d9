package since_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/since"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/explain/why/whytest"
	"volplane.dev/volplane/internal/volume"
)

// TestSince: since when the answer holds, by what tells it best.
func TestSince(t *testing.T) {
	left := whytest.At(9)
	for _, c := range []struct {
		name, ask string
		change    func(*scene)
		want      int // the minute; 0 is not known
	}{
		{"all is well", "pvc/data", func(*scene) {}, 0},
		{"a claim that waits", "pvc/data", (*scene).Unbound, 1},
		{"a claim whose driver has refused", "pvc/data", func(s *scene) {
			s.Unbound()
			s.Warn("uid-other", volume.ReasonProvisioningFailed, "full")
			s.Warn("uid-data", volume.ReasonProvisioningFailed, "full")
			s.All.Warnings[0].FirstTimestamp, s.All.Warnings[1].FirstTimestamp = whytest.At(7), whytest.At(4)
		}, 4},
		{"an event of the newer form", "pvc/data", func(s *scene) {
			s.Unbound()
			s.Warn("uid-data", volume.ReasonProvisioningFailed, "full")
			s.All.Warnings[0].EventTime = metav1.NewMicroTime(whytest.At(5).Time)
		}, 5},
		{"a claim that is being deleted", "pvc/data", func(s *scene) {
			s.LeavingClaim(volume.FinalizerClaimProtection)
			s.Claim.DeletionTimestamp = &left
		}, 9},
		{"a mount that fails", "pod/web", func(s *scene) {
			s.Told(volume.Because{Reason: volume.ReasonFailedMount, Message: "x", Next: "node n1"})
			s.Pod.Status.Conditions[0].LastTransitionTime = whytest.At(6)
		}, 6},
		{"a Pod without a word", "pod/web", func(s *scene) { s.Pod.Status.Conditions = nil }, 2},
		{"a node that is not ready", "pod/web", func(s *scene) {
			s.Down()
			s.N1.Status.Conditions[0].LastTransitionTime = whytest.At(8)
		}, 8},
		{"a node that is gone", "pod/web", func(s *scene) { s.All.Nodes = s.All.Nodes[1:] }, 0},
		{"a volume that is being attached", "pvc/data", (*scene).Attaching, 3},
		{"the same, asked by the attachment", "volumeattachment/a1", (*scene).Attaching, 3},
		{"a volume that is deleted", "pv/v1", func(s *scene) { s.Released(); s.Detached() }, 11},
		{"a class that is not there", "pvc/data", func(s *scene) { s.Unbound(); s.All.Classes = nil }, 1},
		{"a claim that is not there", "pod/web", func(s *scene) { s.All.Claims = nil }, 0},
	} {
		s := whytest.New()
		s.Claim.CreationTimestamp, s.Pod.CreationTimestamp, s.Attachment.CreationTimestamp = whytest.At(1), whytest.At(2),
			whytest.At(3)
		s.Volume.CreationTimestamp = whytest.At(11)
		c.change(s)
		told, ok := explainNamed(s.All, c.ask)
		if !ok {
			t.Fatalf("%s: there is no %s", c.name, c.ask)
		}
		want := time.Time{}
		if c.want > 0 {
			want = whytest.At(c.want).Time
		}
		if got := since.TimesOf(s.All).Since("ns", told, told.Answer()); !got.Equal(want) {
			t.Errorf("%s: %v since %v, want %v", c.name, told.Answer(), got, want)
		}
	}
}

// explainNamed explains an object; a1 stands for the long name of the attachment to n1.
func explainNamed(o state.Objects, subject string) (chain.Chain, bool) {
	if subject == "volumeattachment/a1" {
		subject = "volumeattachment/" + whytest.AttachmentName()
	}
	return whytest.Explain(o, subject)
}

type scene = whytest.Scene
