package survey_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/explain/survey"
	"volplane.dev/volplane/internal/explain/why"
	"volplane.dev/volplane/internal/explain/why/whytest"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

// TestBegun: a volume that was requested from a driver some time ago, and that it may
// have created, is reported once.
func TestBegun(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var out strings.Builder
	for _, c := range []struct {
		argues string
		change func(*scene, *provision.Intent)
	}{
		{"of a claim that is gone", func(*scene, *provision.Intent) {}},
		{"of one that was written down by an earlier version", func(_ *scene, in *provision.Intent) {
			in.Begun = metav1.Time{}
		}},
		{"what is to be retained is told so", func(_ *scene, in *provision.Intent) {
			in.Reclaim = corev1.PersistentVolumeReclaimRetain
		}},
		{"the last warning about the claim says what keeps it", func(s *scene, _ *provision.Intent) {
			for _, text := range []string{"older", "driver d.example.com has not registered, and may have created a volume"} {
				s.All.Warnings = append(s.All.Warnings, &corev1.Event{
					InvolvedObject: corev1.ObjectReference{UID: "uid-gone"}, Reason: string(volume.ReasonDriverMissing), Message: text,
				})
			}
		}},
		{"a claim that waits for it tells it itself", func(s *scene, in *provision.Intent) {
			s.Unbound()
			in.Claim.Name, in.Claim.UID = s.Claim.Name, s.Claim.UID
		}},
		{"one of its name does not", func(s *scene, in *provision.Intent) { in.Claim.Name = s.Claim.Name }},
		{"what has just begun is no news", func(_ *scene, in *provision.Intent) {
			in.Begun = metav1.NewTime(start.Add(51 * time.Second))
		}},
		{"nor what is there", func(s *scene, in *provision.Intent) {
			v := provision.Object(in, provision.Answer{Handle: "h9"}, "")
			v.Status.Phase = corev1.VolumeAvailable
			s.All.Volumes = append(s.All.Volumes, v)
		}},
	} {
		s := whytest.New()
		in := &provision.Intent{
			Driver: whytest.Driver, Name: "pvc-uid-gone", Claim: corev1.ObjectReference{
				Namespace: "ns", Name: "gone",
				UID: "uid-gone",
			},
			Reclaim: corev1.PersistentVolumeReclaimDelete, Begun: metav1.NewTime(start),
		}
		s.All.Begun, s.All.Now = []*provision.Intent{in}, start.Add(time.Minute)
		c.change(s, in)
		fmt.Fprintf(&out, "# %s\nunsettled: %d\n", c.argues, len(survey.Unsettled(why.Of(s.All))))
		if err := survey.RenderCauses(&out, survey.Causes(why.Of(s.All)), true, nil); err != nil {
			t.Fatal(err)
		}
		out.WriteString("\n")
	}
	golden.Equal(t, "testdata/begun.txt", out.String())
}
