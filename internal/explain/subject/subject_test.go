package subject_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/subject"
	"volplane.dev/volplane/internal/explain/why/whytest"
)

// TestSubjects: the objects of a chain are those of its claim's namespace, wherever the question came from.
func TestSubjects(t *testing.T) {
	own := whytest.AttachmentName()
	for _, c := range []struct {
		about, link      string
		change           func(*whytest.Scene)
		space, claim, to string
	}{
		{"pvc/data", "", nil, "asked", "", own},
		{"pv/v1", "pvc/data", nil, "ns", "data", "n1 " + own},
		{"volumeattachment/" + own, "pvc/data", nil, "ns", "data", "n1 " + own},
		{"pod/web", "pvc/data", nil, "asked", "", own},
		{"namespace/ns", "pvc/data", nil, "ns", "data", "n1 " + own},
		{"pv/v1", "", func(s *whytest.Scene) { s.Volume.Spec.ClaimRef = nil }, "asked", "", own},
		{"pv/gone", "", nil, "asked", "", own},
		{"volumeattachment/gone", "", nil, "asked", "", own},
		{"volumeattachment/" + own, "", func(s *whytest.Scene) {
			s.Attachment.Spec.Source = storagev1.VolumeAttachmentSource{InlineVolumeSpec: &corev1.PersistentVolumeSpec{}}
		}, "asked", "", own},
	} {
		s := whytest.New()
		if c.change != nil {
			c.change(s)
		}
		f := subject.Of(s.All.View(), "asked", chain.Chain{Subject: c.about, Links: []chain.Link{{Subject: c.link}}})
		if f.Namespace != c.space {
			t.Errorf("%s: the namespace is %s, want %s", c.about, f.Namespace, c.space)
		}
		name := ""
		if claim, _ := f.Claim(); claim != nil {
			name = claim.Name
		}
		if name != c.claim {
			t.Errorf("%s: the claim is %q, want %q", c.about, name, c.claim)
		}
		for _, to := range []string{"n1", "n2", own} {
			for _, fits := range []bool{true, false} {
				a := f.Attachment(to, func(*storagev1.VolumeAttachment) bool { return fits })
				if want := fits && strings.Contains(c.to, to); (a != nil) != want {
					t.Errorf("%s: there is an attachment %s that fits (%t): %t, want %t", c.about, to, fits, a != nil, want)
				}
			}
		}
	}
}
