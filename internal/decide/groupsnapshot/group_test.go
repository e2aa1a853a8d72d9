package groupsnapshot

import (
	"fmt"
	"strings"
	"testing"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/decide/snapshot"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

// TestGroupOfClaims: how a group of claims comes to its content.
func TestGroupOfClaims(t *testing.T) {
	onNode := func(i int, node string) edit {
		return func(f *Facts) { f.Sources[i].Volume.Annotations = map[string]string{volume.AnnProvisionedOn: node} }
	}
	compareGroups(t, "testdata/claims.txt", []groupRow{
		{"a new group is kept from now on, before it has a content", group()},
		{"the default class of the volumes' driver is taken", group(classless, func(f *Facts) {
			another := isDefault(fast("another"))
			another.Driver = "other.example.com"
			f.Classes = []*groupv1.VolumeGroupSnapshotClass{another, fast("slow"), isDefault(fast("fast"))}
		})},
		{"there is no default class", group(classless)},
		{"there are two", group(classless, func(f *Facts) {
			f.Classes = []*groupv1.VolumeGroupSnapshotClass{isDefault(fast("b")), isDefault(fast("a"))}
		})},
		{"without claims the default is not known", group(classless, func(f *Facts) { f.Sources = nil })},
		{"its class does not exist", group(func(f *Facts) { f.Class = nil })},
		{"a source is missing", group(func(f *Facts) { f.Group.Spec.Source.Selector = nil })},
		{"the content has all that is needed", group(held)},
		{"a Secret, parameters and the node are in it", group(held, onNode(0, "n1"), onNode(1, "n1"), func(f *Facts) {
			f.Class = fast("fast", "csi.storage.k8s.io/group-snapshotter-secret-name", "${volumegroupsnapshot.name}-key",
				"csi.storage.k8s.io/group-snapshotter-secret-namespace", "${volumegroupsnapshot.namespace}", "copies", "2")
		})},
		{"no claim has the labels", group(held, func(f *Facts) { f.Sources = nil })},
		{"the selector is not valid", group(held, func(f *Facts) {
			f.Group.Spec.Source.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Has"}}
		})},
		{"a claim is not bound", group(held, func(f *Facts) { f.Sources[1].Claim.Status.Phase = corev1.ClaimPending })},
		{"a claim is being deleted", group(held, func(f *Facts) { f.Sources[1].Claim.DeletionTimestamp = ptr.To(now()) })},
		{"a volume is of no driver", group(held, func(f *Facts) { f.Sources[0].Volume.Spec.CSI = nil })},
		{"a volume is of another driver", group(held, func(f *Facts) {
			f.Sources[1].Volume.Spec.CSI.Driver = "other.example.com"
		})},
		{"a volume is of another node", group(held, onNode(0, "n1"), onNode(1, "n2"))},
		{"two volumes are one", group(held, func(f *Facts) { f.Sources[1].Volume.Spec.CSI.VolumeHandle = "v" })},
		{"the class is of another driver", group(held, func(f *Facts) { f.Class.Driver = "other.example.com" })},
		{"the Secret's namespace is missing", group(held, func(f *Facts) {
			f.Class = fast("fast", "csi.storage.k8s.io/group-snapshotter-secret-name", "key")
		})},
		{"a parameter is unknown", group(held, func(f *Facts) { f.Class = fast("fast", "csi.storage.k8s.io/odd", "1") })},
		{"the error is there already", group(func(f *Facts) {
			f.Class = nil
			f.Group = Group(*f).Snapshot
		})},
		{"the content of its name is another one's", group(contained, func(f *Facts) {
			f.Content.Spec.VolumeGroupSnapshotRef.UID = "another"
		})},
		{"the content of its name was made by hand", group(contained, func(f *Facts) {
			f.Content.Spec.Source = groupv1.VolumeGroupSnapshotContentSource{
				GroupSnapshotHandles: &groupv1.GroupSnapshotHandles{VolumeGroupSnapshotHandle: handle},
			}
		})},
	})
}

// TestGroupFollows: a group says what its content says, when it has the members that the driver has taken.
func TestGroupFollows(t *testing.T) {
	member := func(i int, change func(*Member)) edit { return func(f *Facts) { change(&f.Members[i]) } }
	compareGroups(t, "testdata/follow.txt", []groupRow{
		{"it names its content at once, before anything is taken", group(contained)},
		{"and is not written twice", group(bound)},
		{"an error of the driver", group(bound, func(f *Facts) {
			f.Content.Status = &groupv1.VolumeGroupSnapshotContentStatus{
				Error: &snapshotv1.VolumeSnapshotError{Message: ptr.To("Internal: no")},
			}
		})},
		{"it is taken: the first member is made", group(takenOf)},
		{"whose volume is gone", group(takenOf, member(0, func(m *Member) { m.Volume = nil }))},
		{"whose volume is a claim's of another namespace now", group(takenOf, member(0, func(m *Member) {
			m.Volume.Spec.ClaimRef.Namespace = "other"
		}))},
		{"whose content is retained", group(takenOf, retained)},
		{"then its content", group(takenOf, func(f *Facts) { step(f, 0) })},
		{"with the places from which it can be used", group(takenOf, func(f *Facts) {
			f.Content.Annotations = map[string]string{volume.AnnSnapshotPlaces: placesOf(placed("zone", "a"))}
			step(f, 0)
		})},
		{"with Secret and node", group(func(f *Facts) {
			f.Class = fast("fast", "csi.storage.k8s.io/group-snapshotter-secret-name", "key",
				"csi.storage.k8s.io/group-snapshotter-secret-namespace", "vault")
			f.Sources[0].Volume.Annotations = map[string]string{volume.AnnProvisionedOn: "n1"}
			takenOf(f)
			step(f, 0)
		})},
		{"without a volume its mode is not known", group(takenOf, func(f *Facts) { step(f, 0) }, member(0, func(m *Member) {
			m.Volume = nil
		}))},
		{"then what the driver says of it", group(takenOf, func(f *Facts) { step(f, 0); step(f, 0) })},
		{"then the second one", group(takenOf, func(f *Facts) { step(f, 0); step(f, 0); step(f, 0) })},
		{"upstream's controller binds the content of a member later", group(made, member(0, func(m *Member) {
			m.Content.Spec.VolumeSnapshotRef.UID = ""
		}))},
		{"the snapshot of its name is no member", group(made, member(0, func(m *Member) {
			m.Snapshot.OwnerReferences[0].UID = "another"
		}))},
		{"the content of its name is an earlier snapshot's", group(made, member(1, func(m *Member) {
			m.Content.Spec.VolumeSnapshotRef.UID = "another"
		}))},
		{"the content of its name is of another group", group(made, member(1, func(m *Member) {
			m.Content.Annotations[volume.AnnGroupSnapshotHandle] = "group-2"
		}))},
		{"it is ready", group(made)},
		{"it is not ready yet, and its members follow", group(made, func(f *Facts) {
			f.Content.Status.ReadyToUse, f.Members[1].Info.ReadyToUse = ptr.To(false), ptr.To(false)
		})},
		{"an error ends with success", group(made, func(f *Facts) {
			f.Group = f.failed("x", volume.Actor{}, "old").Snapshot
		})},
		{"it is ready, and stays so", group(used)},
		{"it was lost with its node", group(used, func(f *Facts) {
			f.Content.Annotations = map[string]string{volume.AnnLostWith: "n2"}
		})},
		{"a cache may be late", group(used, lost)},
		{"its content is gone", group(used, lost, absent)},
		{"and no other one is made in its place", group(used, lost, absent, func(f *Facts) { f.Group = Group(*f).Snapshot })},
		{"a cache may be late here, too", group(used, lost, func(f *Facts) { f.Group.Status.ReadyToUse = ptr.To(false) })},
		{"its content is bound to another group", group(used, func(f *Facts) {
			f.Content.Spec.VolumeGroupSnapshotRef.UID = "another"
		})},
		{"a class that is gone is not needed any more", group(takenOf, func(f *Facts) { f.Class = nil })},
	})
}

// TestGroupGiven: how a group is bound to a content that exists.
func TestGroupGiven(t *testing.T) {
	compareGroups(t, "testdata/given.txt", []groupRow{
		{"it is kept from now on", group(prebound)},
		{"it is bound", group(prebound, held)},
		{"with its class", group(prebound, held, func(f *Facts) {
			f.Group.Spec.VolumeGroupSnapshotClassName, f.Class = ptr.To("fast"), fast("fast")
		})},
		{"it is bound already", group(prebound, held, func(f *Facts) { f.Content.Spec.VolumeGroupSnapshotRef.UID = "u" })},
		{"a snapshot of a member becomes its own", group(prebound, held, theirs)},
		{"also after the group is ready", group(prebound, held, theirs, func(f *Facts) {
			f.Content.Status = &groupv1.VolumeGroupSnapshotContentStatus{ReadyToUse: ptr.To(true)}
			f.Group, _ = copied(f.Group, f.Content)
		})},
		{"the content does not exist, and the group is not kept", group(prebound, lost)},
		{"the content is for another name", group(prebound, func(f *Facts) {
			f.Content.Spec.VolumeGroupSnapshotRef.Name = "another"
		})},
		{"the content was made for a group of claims", group(prebound, held, func(f *Facts) {
			f.Content.Spec.Source = groupv1.VolumeGroupSnapshotContentSource{VolumeHandles: []string{"v"}}
		})},
		{"the content is being deleted", group(prebound, held, contentGo)},
	})
}

// TestGroupDeleted: what goes with a group, in which order, and what holds it.
func TestGroupDeleted(t *testing.T) {
	compareGroups(t, "testdata/deleted.txt", []groupRow{
		{"nothing was done for it", group(deleted)},
		{"somebody else holds it", group(deleted, func(f *Facts) { f.Group.Finalizers = []string{"example.org/theirs"} })},
		{"it was only kept, but a cache may be late", group(held, deleted)},
		{"it was only kept", group(held, deleted, absent)},
		{"it does not name its content yet, and loses nothing", group(contained, deleted)},
		{"not even if upstream's controller has not kept it", group(contained, deleted, func(f *Facts) {
			f.Group.Finalizers = []string{"example.org/theirs"}
		})},
		{"which then holds nothing more", group(contained, retained, contentTold, deleted, func(f *Facts) {
			f.Group.Finalizers = []string{"example.org/theirs"}
		})},
		{"a claim waits for the data of a member", group(used, deleted, restores)},
		{"a claim that is bound does not", group(used, deleted, restores, func(f *Facts) {
			f.Children[1].Restores[0].Status.Phase = corev1.ClaimBound
		})},
		{"a volume is being made from a member", group(used, deleted, func(f *Facts) {
			s := f.Children[0].Snapshot
			s.Finalizers = append(s.Finalizers, volume.FinalizerRestoring)
		})},
		{"its members go first", group(used, deleted)},
		{"also while one of them goes already", group(used, deleted, func(f *Facts) {
			f.Children[0].Snapshot.DeletionTimestamp = ptr.To(now())
		})},
		{"then its content is told", group(used, deleted, childrenGo)},
		{"and deleted", group(used, deleted, childrenGo, contentTold)},
		{"and waited for", group(used, deleted, childrenGo, contentTold, contentGo)},
		{"which may fail", group(used, deleted, childrenGo, contentTold, contentGo, func(f *Facts) {
			f.Content.Status.Error = &snapshotv1.VolumeSnapshotError{Message: ptr.To("Internal: no")}
		})},
		{"the content is gone", group(used, deleted, childrenGo, lost, absent)},
		{"a content that is retained stays", group(used, deleted, childrenGo, retained, contentTold)},
		{"a member that was taken out of a retained group stays without it", group(used, deleted, retained, outside)},
		{"first its status says so", group(used, deleted, retained, outside, func(f *Facts) {
			f.Members[1].Content.Status.VolumeGroupSnapshotHandle = ptr.To(handle)
		})},
		{"not if it is retained, too", group(used, deleted, retained, contentTold, outside, func(f *Facts) {
			for i := range f.Members {
				f.Members[i].Content.Spec.DeletionPolicy = snapshotv1.VolumeSnapshotContentRetain
			}
		})},
		{"nor if the group is deleted at the driver", group(used, deleted, contentTold, outside)},
		{"another one's content is left alone", group(used, deleted, childrenGo, func(f *Facts) {
			f.Content.Spec.VolumeGroupSnapshotRef.UID = "another"
		})},
	})
}

// outside takes all members out of their group.
func outside(f *Facts) {
	f.Children = nil
	for i, m := range f.Members {
		m.Snapshot = m.Snapshot.DeepCopy()
		m.Snapshot.OwnerReferences, m.Snapshot.Finalizers = nil, nil
		m.Content = m.Content.DeepCopy()
		m.Content.Spec.DeletionPolicy = snapshotv1.VolumeSnapshotContentDelete
		m.Content.Status.VolumeGroupSnapshotHandle = nil
		f.Members[i] = m
	}
}

// TestGroupRefusals: what is said when the API server refuses what only a group needs.
func TestGroupRefusals(t *testing.T) {
	f, g := group(prebound, held), group(takenOf)
	var out strings.Builder
	for _, c := range []struct {
		facts Facts
		plan  Plan
	}{
		{f, Plan{Step: snapshot.WriteContent, Binds: true}}, {f, Plan{Step: snapshot.CreateContent}}, {g, Group(g)},
	} {
		p, ok := Refused(c.facts, c.plan, "no")
		if !ok {
			t.Errorf("nothing is decided about the refusal of step %d", c.plan.Step)
		}
		out.WriteString(stepText(t, p, c.facts.Group))
	}
	if p, ok := Refused(g, Plan{Step: snapshot.WriteStatus}, "no"); ok {
		t.Errorf("the refusal of a status leads to %+v", p)
	}
	golden.Equal(t, "testdata/refused.txt", out.String())
}

// TestGroupContents: what a content gets that is no matter of its driver.
func TestGroupContents(t *testing.T) {
	var out strings.Builder
	none := func(f *Facts) { f.Group = nil }
	for _, c := range []struct {
		argues string
		facts  Facts
		absent bool
	}{
		{"it is kept", group(contained), false},
		{"somebody else made it", group(contained, func(f *Facts) { f.Content.Finalizers = nil }), false},
		{"nobody is bound to it", group(prebound), false},
		{"it has two sources", group(contained, func(f *Facts) {
			f.Content.Spec.Source.GroupSnapshotHandles = &groupv1.GroupSnapshotHandles{}
		}), false},
		{"its group is there", group(used, contentGo), false},
		{"its group is gone, but a cache may be late", group(used, contentGo, none), false},
		{"its group is gone", group(used, contentGo, none), true},
		{"another group has its name", group(used, contentGo, func(f *Facts) { f.Group.UID = "later" }), false},
		{"its driver is at it", group(used, contentGo, contentTold), false},
		{"a missing group alone is no reason to delete anything", group(used, none), true},
	} {
		p := Groups().Content(ContentFacts{Content: c.facts.Content, Snapshot: c.facts.Group, Absent: c.absent})
		fmt.Fprintf(&out, "# %s\n%s", c.argues, stepText(t, p, c.facts.Content))
	}
	golden.Equal(t, "testdata/contents.txt", out.String())
}

// TestMembership: a member stays until its group is gone.
func TestMembership(t *testing.T) {
	unowned := func(f *Facts) { f.Children[0].Snapshot.OwnerReferences = nil }
	none := func(f *Facts) { f.Group = nil }
	var out strings.Builder
	for _, c := range []struct {
		argues string
		facts  Facts
		absent bool
	}{
		{"it is not being deleted", group(used), false},
		{"its group is there", group(used, childrenGo), false},
		{"its group goes, too", group(used, childrenGo, deleted), false},
		{"its group is gone, but a cache may be late", group(used, childrenGo, none), false},
		{"its group is gone", group(used, childrenGo, none), true},
		{"another group has the name", group(used, childrenGo, func(f *Facts) { f.Group.UID = "later" }), false},
		{"it has lost its owner, and says whose it is", group(used, childrenGo, unowned, func(f *Facts) {
			f.Children[0].Snapshot.Status = &snapshotv1.VolumeSnapshotStatus{VolumeGroupSnapshotName: ptr.To("g")}
		}), false},
		{"nobody knows its group", group(used, childrenGo, unowned, none), false},
		{"nothing holds it", group(used, childrenGo, func(f *Facts) { f.Children[0].Snapshot.Finalizers = nil }), false},
	} {
		s := c.facts.Children[0].Snapshot
		p := Membership(MemberFacts{Snapshot: s, Group: c.facts.Group, Absent: c.absent})
		fmt.Fprintf(&out, "# %s\n%s", c.argues, stepText(t, p, s))
	}
	golden.Equal(t, "testdata/membership.txt", out.String())
}

// TestChosen: a selector chooses claims of the group's namespace, by labels and by expressions.
func TestChosen(t *testing.T) {
	f := group()
	elsewhere := source("c", "x").Claim
	elsewhere.Namespace = "other"
	unlabelled := source("d", "y").Claim
	unlabelled.Labels = nil
	all := []*corev1.PersistentVolumeClaim{f.Sources[1].Claim, elsewhere, unlabelled, f.Sources[0].Claim}
	for _, c := range []struct{ selector, want string }{
		{"app=db", "a b"},
		{"app notin (db)", "d"},
		{"app in (web)", ""},
		{"", "a b d"},
	} {
		selector, err := metav1.ParseToLabelSelector(c.selector)
		if err != nil {
			t.Fatal(err)
		}
		f.Group.Spec.Source.Selector = selector
		var got []string
		for _, claim := range Chosen(f.Group, all) {
			got = append(got, claim.Name)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%q chooses %q, want %q", c.selector, got, c.want)
		}
	}
	f.Group.Spec.Source.Selector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Has"}}
	if got := Chosen(f.Group, all); got != nil {
		t.Errorf("an invalid selector chooses %v", got)
	}
}
