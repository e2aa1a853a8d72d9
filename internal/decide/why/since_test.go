package why_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/decide/chain"
	"volplane.dev/volplane/internal/decide/state"
	"volplane.dev/volplane/internal/decide/why"
	"volplane.dev/volplane/internal/volume"
)

// TestSince: since when the answer holds, by what tells it best.
func TestSince(t *testing.T) {
	at := func(minute int) metav1.Time { return metav1.NewTime(time.Date(2026, 1, 2, 3, minute, 0, 0, time.UTC)) }
	left := at(9)
	for _, c := range []struct {
		name, ask string
		change    func(*scene)
		want      int // the minute; 0 is not known
	}{
		{"all is well", "pvc/data", func(*scene) {}, 0},
		{"a claim that waits", "pvc/data", (*scene).unbound, 1},
		{"a claim whose driver has refused", "pvc/data", func(s *scene) {
			s.unbound()
			s.warn("uid-other", volume.ReasonProvisioningFailed, "full")
			s.warn("uid-data", volume.ReasonProvisioningFailed, "full")
			s.all.Warnings[0].FirstTimestamp, s.all.Warnings[1].FirstTimestamp = at(7), at(4)
		}, 4},
		{"an event of the newer form", "pvc/data", func(s *scene) {
			s.unbound()
			s.warn("uid-data", volume.ReasonProvisioningFailed, "full")
			s.all.Warnings[0].EventTime = metav1.NewMicroTime(at(5).Time)
		}, 5},
		{"a claim that is being deleted", "pvc/data", func(s *scene) {
			s.leavingClaim(volume.FinalizerClaimProtection)
			s.claim.DeletionTimestamp = &left
		}, 9},
		{"a mount that fails", "pod/web", func(s *scene) {
			s.told(volume.Because{Reason: volume.ReasonFailedMount, Message: "x", Next: "node n1"})
			s.pod.Status.Conditions[0].LastTransitionTime = at(6)
		}, 6},
		{"a Pod without a word", "pod/web", func(s *scene) { s.pod.Status.Conditions = nil }, 2},
		{"a node that is not ready", "pod/web", func(s *scene) {
			s.down()
			s.n1.Status.Conditions[0].LastTransitionTime = at(8)
		}, 8},
		{"a node that is gone", "pod/web", func(s *scene) { s.all.Nodes = s.all.Nodes[1:] }, 0},
		{"a volume that is being attached", "pvc/data", (*scene).attaching, 3},
		{"the same, asked by the attachment", "volumeattachment/a1", (*scene).attaching, 3},
		{"a volume that is deleted", "pv/v1", func(s *scene) { s.released(); s.detached() }, 11},
		{"a class that is not there", "pvc/data", func(s *scene) { s.unbound(); s.all.Classes = nil }, 1},
		{"a claim that is not there", "pod/web", func(s *scene) { s.all.Claims = nil }, 0},
	} {
		s := newScene()
		s.claim.CreationTimestamp, s.pod.CreationTimestamp, s.attachment.CreationTimestamp = at(1), at(2), at(3)
		s.volume.CreationTimestamp = at(11)
		c.change(s)
		told, ok := explainNamed(s.all, c.ask)
		if !ok {
			t.Fatalf("%s: there is no %s", c.name, c.ask)
		}
		want := time.Time{}
		if c.want > 0 {
			want = at(c.want).Time
		}
		if got := why.TimesOf(s.all).Since("ns", told, told.Answer()); !got.Equal(want) {
			t.Errorf("%s: %v since %v, want %v", c.name, told.Answer(), got, want)
		}
	}
}

// explainNamed explains an object; a1 stands for the long name of the attachment to n1.
func explainNamed(o state.Objects, subject string) (chain.Chain, bool) {
	if subject == "volumeattachment/a1" {
		subject = "volumeattachment/" + attachmentName()
	}
	return explain(o, subject)
}
