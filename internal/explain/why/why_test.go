package why_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/why/whytest"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

func TestExplanations(t *testing.T) {
	for file, rows := range map[string][]whytest.Row{
		"claims.txt": whytest.ClaimRows(), "attachments.txt": whytest.AttachmentRows(),
		"consumers.txt": whytest.ConsumerRows(), "growth.txt": whytest.GrowthRows(),
		"attributes.txt": whytest.AttributesRows(), "health.txt": whytest.HealthRows(),
		"volumes.txt": whytest.VolumeRows(), "moves.txt": whytest.MoveRows(), "deleted.txt": whytest.DeletedRows(),
	} {
		whytest.Equal(t, file, whytest.Written(t, rows, func(*scene) {}))
	}
}

// TestWhoActsAfterEveryCode: who has to act after each code that a driver may answer,
// at each call that a user waits for.
func TestWhoActsAfterEveryCode(t *testing.T) {
	var b strings.Builder
	for _, c := range []row{
		{"ControllerPublishVolume", "volumeattachment/a1", func(s *scene) {
			s.Attachment.Status = storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{}}
		}},
		{"ControllerUnpublishVolume", "volumeattachment/a1", func(s *scene) {
			s.All.Pods, s.Attachment.Status.DetachError = nil, &storagev1.VolumeError{}
		}},
		{"NodeStageVolume, NodePublishVolume", "pod/web", func(s *scene) {
			s.Mounted(corev1.ConditionFalse, string(volume.ReasonFailedMount), "")
		}},
		{"NodeUnpublishVolume", "pod/web", func(s *scene) {
			s.Pod.DeletionTimestamp = whytest.Now()
			s.Warn("uid-web", volume.ReasonFailedUnmount, "")
		}},
		{"NodeUnstageVolume", "volumeattachment/a1", func(s *scene) { s.StillMounted("") }},
		{"NodeExpandVolume", "pvc/data", func(s *scene) { s.NodeGrowth("") }},
		{"NodeGetInfo", "node/n1", func(s *scene) {
			s.All.CSINodes = nil
			s.Warn("uid-n1", volume.ReasonRegistrationRefused, "")
		}},
	} {
		next := map[string][]string{}
		for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
			s := whytest.New()
			c.Change(s)
			s.FailWith("mount by driver d: " + code.String() + ": on fire")
			if len(s.All.Warnings) > 0 {
				s.Next(volume.Answer{Code: code.String()}.Next(volume.NodeAgent("n1")))
			}
			told, ok := whytest.Ask(s.All, c.Ask)
			if a := told.Answer(); ok && a.State == chain.Problem && strings.Contains(a.Because.Message, "on fire") {
				next[a.Because.Next.String()] = append(next[a.Because.Next.String()], code.String())
			} else {
				t.Errorf("%s: %s is not told: %+v", c.Name, code, a)
			}
		}
		b.WriteString("# " + c.Name + "\n")
		for _, actor := range slices.Sorted(maps.Keys(next)) {
			b.WriteString(actor + ": " + strings.Join(next[actor], " ") + "\n")
		}
		b.WriteString("\n")
	}
	golden.Equal(t, "testdata/codes.txt", b.String())
}

// TestDeletedPodIsForgotten: a Pod that was deleted for its node is not explained when its claims are gone.
func TestDeletedPodIsForgotten(t *testing.T) {
	for name, change := range map[string]func(*scene){
		"no claim":            func(s *scene) { s.Deleted("data"); s.All.Claims = nil },
		"another claim":       func(s *scene) { s.Deleted("other") },
		"no claims are named": func(s *scene) { s.Deleted("") },
		"a younger claim":     func(s *scene) { s.Deleted("data"); s.Claim.CreationTimestamp = whytest.At(2) },
		"another namespace": func(s *scene) {
			s.Deleted("data")
			s.All.Warnings[0].InvolvedObject.Namespace = "other"
		},
	} {
		s := whytest.New()
		change(s)
		if c, ok := whytest.Ask(s.All, "pod/web"); ok {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

func TestWhatIsNotThere(t *testing.T) {
	for _, subject := range []string{
		"pvc/other", "pv/other", "pod/other", "volumeattachment/other", "node/other",
		"storageclass/other", "csidriver/other", "csinode/other", "namespace/other", "volumesnapshot/other",
		"volumegroupsnapshot/other",
	} {
		if c, ok := whytest.Ask(whytest.New().All, subject); ok {
			t.Errorf("%s is explained: %+v", subject, c)
		}
	}
}

// row is one scene and the object in question.
type row whytest.Row

type scene = whytest.Scene
