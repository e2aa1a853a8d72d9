package snapshot

import (
	"fmt"
	"strings"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

// row is a snapshot in a state.
type row struct {
	argues string
	facts  Facts
}

func compare(t *testing.T, file string, rows []row) {
	t.Helper()
	var out strings.Builder
	for _, r := range rows {
		before := r.facts.Snapshot.DeepCopy()
		fmt.Fprintf(&out, "# %s\n%s", r.argues, planText(t, r.facts, Snapshot(r.facts)))
		if golden.Change(t, before, r.facts.Snapshot) != "" {
			t.Errorf("%s: the decision has changed its facts", r.argues)
		}
	}
	golden.Equal(t, file, out.String())
}

// TestDynamic: how a snapshot of a claim comes to its content.
func TestDynamic(t *testing.T) {
	other := func(f *Facts) { f.Class = class("slow"); f.Class.Driver = "other.example.com" }
	compare(t, "testdata/dynamic.txt", []row{
		{"a new snapshot is kept from now on, and so will be its content", of()},
		{"what is retained is not kept for its content", of(func(f *Facts) {
			f.Class.DeletionPolicy = snapshotv1.VolumeSnapshotContentRetain
		})},
		{"the default class of the volume's driver is taken", of(noClass, func(f *Facts) {
			another := isDefault(class("another"))
			another.Driver = "other.example.com"
			f.Classes = []*cluster.VolumeSnapshotClass{another, class("slow"), isDefault(class("fast"))}
		})},
		{"there is no default class", of(noClass)},
		{"there are two", of(noClass, func(f *Facts) {
			f.Classes = []*cluster.VolumeSnapshotClass{isDefault(class("b")), isDefault(class("a"))}
		})},
		{"without a volume the default is not known", of(noClass, func(f *Facts) { f.Volume = nil })},
		{"without a claim neither", of(noClass, func(f *Facts) { f.Claim = nil })},
		{"its class does not exist", of(func(f *Facts) { f.Class = nil })},
		{"a source is missing", of(func(f *Facts) { f.Snapshot.Spec.Source = snapshotv1.VolumeSnapshotSource{} })},
		{"its claim is kept before anything is taken", of(kept, func(f *Facts) { f.Claim = claim() })},
		{"the content has all that is needed", of(kept)},
		{"a Secret, parameters, the mode and the node are in it", of(kept, func(f *Facts) {
			f.Class = class("fast", "csi.storage.k8s.io/snapshotter-secret-name", "${volumesnapshot.name}-key",
				"csi.storage.k8s.io/snapshotter-secret-namespace", "${volumesnapshot.namespace}", "copies", "2")
			f.Volume.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
			f.Volume.Annotations = map[string]string{volume.AnnProvisionedOn: "n1"}
		})},
		{"its claim does not exist", of(kept, func(f *Facts) { f.Claim = nil })},
		{"its claim is not bound", of(kept, func(f *Facts) { f.Claim.Status.Phase = corev1.ClaimPending })},
		{"the volume is another claim's", of(kept, func(f *Facts) { f.Volume.Spec.ClaimRef.UID = "another" })},
		{"the volume is of no driver", of(kept, func(f *Facts) { f.Volume.Spec.CSI = nil })},
		{"its claim is being deleted", of(kept, func(f *Facts) {
			f.Claim = claim()
			f.Claim.DeletionTimestamp = ptr.To(now())
		})},
		{"a claim that is kept already may be on its way out", of(kept, func(f *Facts) {
			f.Claim.DeletionTimestamp = ptr.To(now())
			f.Class = class("bare")
		})},
		{"the class is of another driver than the volume", of(kept, other)},
		{"a parameter is unknown", of(kept, func(f *Facts) { f.Class = class("odd", "csi.storage.k8s.io/odd", "1") })},
		{"the error is there already", of(func(f *Facts) {
			f.Class = nil
			f.Snapshot = Snapshot(*f).Snapshot
		})},
	})
}

// TestFollow: a snapshot says what its content says.
func TestFollow(t *testing.T) {
	compare(t, "testdata/follow.txt", []row{
		{"it names its content at once, before anything is taken", of(contained)},
		{"and is not written twice", of(contained, func(f *Facts) { f.Snapshot, _ = copied(f.Snapshot, f.Content) })},
		{"it is taken, and not ready", of(taken, func(f *Facts) { f.Content.Status.ReadyToUse = nil })},
		{"it is ready", of(taken)},
		{"what was known of its size stays", of(taken, func(f *Facts) {
			f.Snapshot.Status = &snapshotv1.VolumeSnapshotStatus{
				RestoreSize: resource.NewQuantity(7, resource.BinarySI), CreationTime: &metav1.Time{Time: time.Unix(1, 0)},
			}
		})},
		{"an error of the driver", of(contained, func(f *Facts) {
			f.Content.Status = &snapshotv1.VolumeSnapshotContentStatus{
				Error: &snapshotv1.VolumeSnapshotError{Message: ptr.To("Internal: no")},
			}
		})},
		{"ends with success", of(taken, func(f *Facts) {
			f.Snapshot = refused(t, *f, Plan{Step: CreateContent}, "old").Snapshot
		})},
		{"it is ready, and stays so", of(used)},
		{"it was lost with its node", of(used, func(f *Facts) {
			f.Content.Annotations = map[string]string{volume.AnnLostWith: "n2"}
		})},
		{"a cache may be late", of(used, noContent)},
		{"its content is gone", of(used, noContent, absent)},
		{"and no other one is made in its place", of(used, noContent, absent, func(f *Facts) {
			f.Snapshot = Snapshot(*f).Snapshot
		})},
		{"a cache may be late here, too", of(used, noContent, func(f *Facts) {
			f.Snapshot.Status.ReadyToUse = ptr.To(false)
		})},
		{"its content is bound to another snapshot", of(used, func(f *Facts) {
			f.Content.Spec.VolumeSnapshotRef.UID = "another"
		})},
		{"the content of its name is another one's", of(contained, func(f *Facts) {
			f.Content.Spec.VolumeSnapshotRef.Name = "another"
		})},
		{"the content of its name was made by hand", of(contained, func(f *Facts) {
			f.Content.Spec.Source.SnapshotHandle = ptr.To(handle)
		})},
		{"a class that is gone is not needed any more", of(contained, func(f *Facts) { f.Class = nil })},
		{"a member of a group that is being taken is kept", of(member, noContent)},
		{"and waits for its content, whatever its class", of(member, noContent, kept)},
		{"also if it has lost its owner", of(member, noContent, kept, func(f *Facts) { f.Snapshot.OwnerReferences = nil })},
		{"the content of its name is for another snapshot", of(member, kept, func(f *Facts) {
			f.Content.Spec.VolumeSnapshotRef.UID = "another"
		})},
		{"its content is there, and says nothing yet", of(member, kept, func(f *Facts) { f.Content.Status = nil })},
		{"the volume and the claim of a member may be gone", of(member, kept, func(f *Facts) {
			f.Snapshot.Spec.Source.PersistentVolumeClaimName, f.Claim, f.Volume = ptr.To(""), nil, nil
		})},
		{"a member that is ready", of(member, kept, func(f *Facts) { f.Snapshot, _ = copied(f.Snapshot, f.Content) })},
	})
}

// TestGiven: how a snapshot is bound to a content that exists.
func TestGiven(t *testing.T) {
	compare(t, "testdata/given.txt", []row{
		{"it is kept from now on", of(given)},
		{"whatever policy its class has, before its content is there", of(given, noContent, func(f *Facts) {
			f.Class, f.Snapshot.Spec.VolumeSnapshotClassName = class("fast"), ptr.To("fast")
		})},
		{"it is bound", of(given, func(f *Facts) { with(f.Snapshot, volume.FinalizerSnapshotAsSource) })},
		{"with its class", of(given, kept, func(f *Facts) { f.Snapshot.Spec.VolumeSnapshotClassName = ptr.To("slow") })},
		{"it is bound already", of(given, bound)},
		{"the content does not exist", of(given, kept, noContent)},
		{"the content is for another name", of(given, kept, func(f *Facts) {
			f.Content.Spec.VolumeSnapshotRef.Name = "another"
		})},
		{"the content is bound to an earlier snapshot of the name", of(given, kept, func(f *Facts) {
			f.Content.Spec.VolumeSnapshotRef.UID = "earlier"
		})},
		{"the content was made for a snapshot of a claim", of(given, kept, func(f *Facts) {
			f.Content.Spec.Source = snapshotv1.VolumeSnapshotContentSource{VolumeHandle: ptr.To("vol")}
		})},
		{"the content is being deleted", of(given, kept, contentGone)},
	})
}

// TestRefusedWrites: what is said when the API server refuses what only a snapshot needs.
func TestRefusedWrites(t *testing.T) {
	f := of(given, kept)
	got := planText(t, f, refused(t, f, Plan{Step: WriteContent, Binds: true}, "no")) +
		planText(t, f, refused(t, f, Plan{Step: CreateContent}, "no"))
	golden.Equal(t, "testdata/refused.txt", got)
}

// TestDeleted: what goes with a snapshot, and what holds it.
func TestDeleted(t *testing.T) {
	compare(t, "testdata/deleted.txt", []row{
		{"nothing was done for it", of(deleted)},
		{"it was only kept, but a cache may be late", of(kept, deleted)},
		{"it was only kept", of(kept, deleted, absent)},
		{"a claim waits for its data", of(used, deleted, restores)},
		{"a claim cannot wait for a snapshot without a content", of(kept, deleted, restores, absent)},
		{"nor for one whose content is another snapshot's", of(used, deleted, restores, func(f *Facts) {
			f.Content.Spec.VolumeSnapshotRef.UID = "another"
		})},
		{"a cache may be late, and the claim wait nevertheless", of(kept, deleted, restores)},
		{"a claim that has its volume does not", of(used, deleted, restores, func(f *Facts) {
			f.Restores[0].Status.Phase = corev1.ClaimBound
		})},
		{"a claim that is made from something else of that name does not", of(used, deleted, restores, func(f *Facts) {
			f.Restores[0].Spec.DataSource.APIGroup = nil
		})},
		{"a volume is being made from it", of(used, deleted, func(f *Facts) { with(f.Snapshot, volume.FinalizerRestoring) })},
		{"it is a member of a group", of(member, kept, deleted)},
		{"it was a member of a group", of(member, kept, deleted, func(f *Facts) {
			without(f.Snapshot, volume.FinalizerSnapshotInGroup)
		})},
		{"its content is told", of(used, deleted)},
		{"and deleted", of(used, deleted, contentGoing)},
		{"and waited for", of(used, deleted, contentGoing, contentGone)},
		{"which may fail", of(used, deleted, contentGoing, contentGone, func(f *Facts) {
			f.Content.Status.Error = &snapshotv1.VolumeSnapshotError{Message: ptr.To("Internal: no")}
		})},
		{"a content that is retained is told, too", of(used, deleted, retains)},
		{"and stays", of(used, deleted, retains, contentGoing)},
		{"another one's content is left alone", of(used, deleted, func(f *Facts) {
			f.Content.Spec.VolumeSnapshotRef.UID = "another"
		})},
		{"only the provisioner holds it", of(deleted, func(f *Facts) { with(f.Snapshot, volume.FinalizerRestoring) })},
		{"somebody else holds it", of(deleted, func(f *Facts) { with(f.Snapshot, "example.org/theirs") })},
	})
}

// TestClaims: how long a claim is kept for its snapshots.
func TestClaims(t *testing.T) {
	var out strings.Builder
	for _, c := range []struct {
		argues string
		facts  Facts
	}{
		{"it was never kept", of()},
		{"its snapshot is not ready", of(contained)},
		{"its snapshot fails at the driver, which is asked again", of(pending, func(f *Facts) {
			f.Snapshot.Status = &snapshotv1.VolumeSnapshotStatus{
				BoundVolumeSnapshotContentName: ptr.To("c"),
				Error:                          &snapshotv1.VolumeSnapshotError{Message: ptr.To("Internal: no")},
			}
		})},
		{"its snapshot cannot be taken at all", of(func(f *Facts) {
			f.Snapshot.Status = &snapshotv1.VolumeSnapshotStatus{
				Error: &snapshotv1.VolumeSnapshotError{Message: ptr.To("VolumeSnapshotClass gone does not exist")},
			}
			with(f.Claim, volume.FinalizerSnapshotSource)
		})},
		{"its snapshot is being deleted, and its driver may be reading the volume", of(contained, deleted)},
		{"its snapshot is ready", of(used)},
		{"a snapshot of another claim is not asked", of(contained, func(f *Facts) {
			f.Snapshot.Spec.Source.PersistentVolumeClaimName = ptr.To("other")
		})},
		{"a snapshot of another namespace is not asked", of(contained, func(f *Facts) { f.Snapshot.Namespace = "other" })},
	} {
		plan := Claim(c.facts.Claim, []*snapshotv1.VolumeSnapshot{c.facts.Snapshot})
		fmt.Fprintf(&out, "# %s\n%s", c.argues, planText(t, c.facts, plan))
	}
	golden.Equal(t, "testdata/claims.txt", out.String())
}

// TestContents: what a content gets that is no matter of its driver.
func TestContents(t *testing.T) {
	var out strings.Builder
	for _, c := range []struct {
		argues string
		facts  Facts
		absent bool
	}{
		{"it is kept", of(contained), false},
		{"somebody else made it", of(contained, func(f *Facts) { f.Content.Finalizers = nil }), false},
		{"nobody is bound to it", of(given), false},
		{"it has two sources", of(contained, func(f *Facts) {
			f.Content.Spec.Source.SnapshotHandle = ptr.To(handle)
		}), false},
		{"its snapshot is there", of(used, contentGone), false},
		{"its snapshot is gone, but a cache may be late", of(used, contentGone, func(f *Facts) { f.Snapshot = nil }), false},
		{"its snapshot is gone", of(used, contentGone, func(f *Facts) { f.Snapshot = nil }), true},
		{"another snapshot has its name", of(used, contentGone, func(f *Facts) { f.Snapshot.UID = "later" }), false},
		{"its driver is at it", of(used, contentGone, contentGoing), false},
		{"a missing snapshot alone is no reason to delete anything", of(used, func(f *Facts) { f.Snapshot = nil }), true},
	} {
		plan := Single().Content(ContentFacts{Content: c.facts.Content, Snapshot: c.facts.Snapshot, Absent: c.absent})
		fmt.Fprintf(&out, "# %s\n%s", c.argues, planText(t, c.facts, plan))
	}
	golden.Equal(t, "testdata/contents.txt", out.String())
}

// refused is the plan after the API server has refused a write.
func refused(t *testing.T, f Facts, p Plan, problem string) Plan {
	t.Helper()
	then, ok := Refused(f, p, problem)
	if !ok {
		t.Errorf("nothing is decided about the refusal of step %d", p.Step)
	}
	return then
}
