package survey_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/explain/since"
	"volplane.dev/volplane/internal/explain/survey"
	"volplane.dev/volplane/internal/explain/why/whytest"
)

// TestSummaryAsJSON: who reads a summary as JSON knows what Summarize has said.
func TestSummaryAsJSON(t *testing.T) {
	causes := 0
	for _, r := range whytest.All() {
		s := whytest.New()
		s.All.Now = whytest.At(10).Time
		r.Change(s)
		want := survey.Summarize(s.All)
		text, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var got survey.Summary
		if err := json.Unmarshal(text, &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(since.Tries{}), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-said +read):\n%s", r.Name, diff)
		}
		causes += len(got.Causes)
	}
	if causes == 0 {
		t.Error("nothing waits in any scene")
	}
}

// TestSummary: what is counted, and what is named.
func TestSummary(t *testing.T) {
	s := whytest.New()
	s.All.Now = whytest.At(10).Time
	pending := s.Claim.DeepCopy()
	pending.Name, pending.UID, pending.Spec.VolumeName, pending.Status.Phase = "new", "u", "", corev1.ClaimPending
	pending.Annotations, pending.CreationTimestamp = nil, whytest.At(3)
	s.All.Claims = append(s.All.Claims, pending)
	s.Volume.Status.Phase = corev1.VolumeReleased
	s.N1.CreationTimestamp = whytest.At(1)
	got := survey.Summarize(s.All)
	got.Causes = nil
	want := survey.Summary{
		Now:    s.All.Now,
		Claims: map[string]int{"Bound": 1, "Pending": 1}, Volumes: map[string]int{"Released": 1},
		Attachments: map[string]int{"attached": 1}, Pods: 1,
		Unbound: survey.Some{Number: 1, First: survey.Held{Namespace: "ns", Subject: "new"}},
		Nodes: []survey.NodeState{
			{Name: "n1", Created: whytest.At(1).Time, Ready: true, Drivers: []string{whytest.Driver}},
			{Name: "n2", Ready: true, Drivers: []string{whytest.Driver}},
		},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(since.Tries{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
