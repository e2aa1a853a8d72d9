package since_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/retry"
	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/since"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/explain/why/whytest"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

// row is a scene with the minute since when its answer holds; 0 is not known.
type row struct {
	name, ask string
	change    func(*scene)
	want      int
}

func rows() []row {
	left := whytest.At(9)
	return append([]row{
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
		{"a Pod that is being deleted", "pod/web", func(s *scene) {
			s.Pod.DeletionTimestamp, s.Pod.DeletionGracePeriodSeconds = &left, ptr.To[int64](60)
		}, 8},
		{"a mount that fails", "pod/web", func(s *scene) {
			s.NotMounted(volume.Because{Reason: volume.ReasonFailedMount, Message: "x", Next: volume.NodeAgent("n1")})
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
		{"a volume that is to be deleted", "pv/v1", func(s *scene) {
			s.Released()
			s.Detached()
			s.Volume.Status.LastPhaseTransitionTime = &left
		}, 9},
		{"the same, by somebody who does not say since when", "pv/v1", func(s *scene) { s.Released(); s.Detached() }, 0},
		{"a claim that has lost its volume", "pvc/data", func(s *scene) {
			s.All.Volumes, s.All.Attachments, s.All.Pods = nil, nil, nil
			s.Claim.Status.Phase = corev1.ClaimLost
		}, 0},
		{"a volume that is being made", "pvc/data", func(s *scene) {
			s.Unbound()
			s.Creating()
			s.All.Begun[0].Begun = whytest.At(8)
		}, 8},
		{"a call that has not returned", "pod/web", func(s *scene) {
			s.NotMounted(volume.Because{Reason: volume.ReasonMounting, Message: "x", Next: volume.Driver("d")})
			s.Pod.Status.Conditions[0].LastTransitionTime = whytest.At(6)
			s.Pod.Annotations[volume.AnnCalledAt] = whytest.At(7).UTC().Format(time.RFC3339)
		}, 7},
		{"a volume that grows", "pvc/data", func(s *scene) {
			s.Wants("2Gi")
			s.Resizing(corev1.PersistentVolumeClaimControllerResizeInProgress)
			s.Claim.Status.Conditions = []corev1.PersistentVolumeClaimCondition{
				{Type: corev1.PersistentVolumeClaimResizing, Status: corev1.ConditionTrue, LastTransitionTime: whytest.At(6)},
				{Type: "example.org/Foreign", Status: corev1.ConditionTrue, LastTransitionTime: whytest.At(9)},
			}
		}, 6},
	}, missingRows()...)
}

// missingRows are of objects that are not there, and of snapshots.
func missingRows() []row {
	return []row{
		{"a class that is not there", "pvc/data", func(s *scene) { s.Unbound(); s.All.Classes = nil }, 1},
		{"a claim that is not there", "pod/web", func(s *scene) { s.All.Claims = nil }, 0},
		{"the same, as the node agent says", "pod/web", func(s *scene) {
			s.All.Claims = nil
			s.NotMounted(volume.Because{
				Reason: volume.ReasonClaimMissing, Message: "there is no claim data", Next: volume.User(),
			})
			s.Pod.Status.Conditions[0].LastTransitionTime = whytest.At(6)
		}, 6},
		{"another node has the volume", "pod/other", func(s *scene) {
			other := whytest.Pod("other", "n2")
			other.CreationTimestamp = whytest.At(5)
			s.Use(other)
		}, 0},
		{"the same, and an event says since when", "pod/other", func(s *scene) {
			s.Use(whytest.Pod("other", "n2"))
			s.Warn("uid-other", volume.ReasonFailedAttach, "it is attached to node n1")
			s.All.Warnings[0].FirstTimestamp = whytest.At(7)
		}, 7},
		{"a snapshot that cannot be taken", "volumesnapshot/s1", func(s *scene) {
			s.Snapshot(func(snapshot *snapshotv1.VolumeSnapshot, _ *cluster.VolumeSnapshotContent) {
				snapshot.CreationTimestamp = whytest.At(5)
				snapshot.Status.Error = &snapshotv1.VolumeSnapshotError{Message: ptr.To("disk on fire")}
			})
		}, 5},
	}
}

// TestSince: since when the answer holds, by the best evidence.
func TestSince(t *testing.T) {
	for _, c := range rows() {
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
		if got := since.TimesOf(s.All).Of("ns", told, told.Answer()).Since; !got.Equal(want) {
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

// TestTries: which attempt failed and when the next one begins is known from fields of the newest event, from the
// count of an event of a program that has no such fields, or from the status of an attachment.
func TestTries(t *testing.T) {
	ours := retry.Try{Number: 7, Next: whytest.At(9).Time}.Notes()
	within := retry.Try{Within: 5 * time.Minute}.Notes()
	failed := func(s *scene) {
		s.Attachment.Status = storagev1.VolumeAttachmentStatus{AttachError: &storagev1.VolumeError{
			Time: whytest.At(8), Message: "on fire",
		}}
	}
	var b strings.Builder
	for _, c := range []struct {
		name, ask string
		change    func(*scene)
	}{
		{"a controller that counts", "pvc/data", func(s *scene) { refused(s, corev1.Event{}, ours) }},
		{"an earlier answer was another one", "pvc/data", func(s *scene) {
			refused(s, corev1.Event{}, ours)
			s.Warn("uid-data", volume.ReasonProvisioningFailed, "on fire")
		}},
		{"another volume of the Pod has failed later", "pod/web", func(s *scene) {
			v1, v2 := volume.Cause{Object: "pv/v1"}, volume.Cause{Object: "pv/v2"}
			s.NotMounted(volume.Because{
				Reason: volume.ReasonFailedMount, Message: "full", Next: volume.NodeAgent("n1"), Cause: v1,
			})
			s.Warn("uid-web", volume.ReasonFailedMount, "full")
			s.Warn("uid-web", volume.ReasonFailedMount, "on fire")
			first, second := s.All.Warnings[0], s.All.Warnings[1]
			first.Annotations, first.LastTimestamp = maps.Clone(ours), whytest.At(7)
			first.Annotations[volume.AnnCause] = v1.String()
			second.Annotations = map[string]string{volume.AnnCause: v2.String()}
		}},
		{"a sidecar of others", "pvc/data", func(s *scene) { refused(s, corev1.Event{Count: 4}, nil) }},
		{"a series", "pvc/data", func(s *scene) {
			last := metav1.NewMicroTime(whytest.At(8).Time)
			refused(s, corev1.Event{Series: &corev1.EventSeries{Count: 5, LastObservedTime: last}}, nil)
		}},
		{"a single event", "pvc/data", func(s *scene) { refused(s, corev1.Event{Count: 1}, nil) }},
		{"fields that make no sense", "pvc/data", func(s *scene) {
			refused(s, corev1.Event{Count: 1}, map[string]string{
				volume.AnnAttempt: "-1", volume.AnnNextTry: "soon", volume.AnnRetryWithin: "-1s",
			})
		}},
		{"an attachment of which no event is left", "volumeattachment/a1", failed},
		{"an attachment whose attacher says how long it pauses", "volumeattachment/a1", func(s *scene) {
			failed(s)
			s.Warn(s.Attachment.UID, volume.ReasonFailedAttach, "on fire")
			s.All.Warnings[0].Annotations, s.All.Warnings[0].FirstTimestamp = within, whytest.At(3)
		}},
	} {
		s := whytest.New()
		c.change(s)
		told, _ := explainNamed(s.All, c.ask)
		times := since.TimesOf(s.All)
		is := times.Of("ns", told, told.Answer())
		if steady := times.WithoutTries().Of("ns", told, told.Answer()); steady != (since.Time{Since: is.Since}) {
			t.Errorf("%s: without tries there are %+v", c.name, steady)
		}
		fmt.Fprintf(&b, "# %s\n%s\n%s\n%s\n\n", c.name, is.Text(time.Time{}), is.Text(whytest.At(8).Time),
			is.Text(whytest.At(10).Time))
	}
	golden.Equal(t, "testdata/tries.txt", b.String())
}

// refused has the claim's volume refused since minute 4, the last time in minute 7.
func refused(s *scene, e corev1.Event, notes map[string]string) {
	s.Unbound()
	s.Warn("uid-data", volume.ReasonProvisioningFailed, "full")
	told := s.All.Warnings[0]
	told.Annotations, told.Count, told.Series = notes, e.Count, e.Series
	told.FirstTimestamp, told.LastTimestamp = whytest.At(4), whytest.At(7)
}
