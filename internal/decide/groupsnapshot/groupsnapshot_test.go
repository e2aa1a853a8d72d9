package groupsnapshot

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/decide/snapshot"
	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

const (
	driver = "d.example.com"
	handle = "group-1"
)

// now is the time of all decisions.
func now() metav1.Time { return metav1.Time{Time: time.Unix(1000, 0).UTC()} }

// change changes the facts about a content.
type change func(*DriverFacts)

// of are the facts about the content of a group snapshot of two volumes, which is to be taken.
func of(changes ...change) DriverFacts {
	f := DriverFacts{
		Content: &groupv1.VolumeGroupSnapshotContent{
			ObjectMeta: metav1.ObjectMeta{Name: "c", Finalizers: []string{"a/b", volume.FinalizerGroupContentBound}},
			Spec: groupv1.VolumeGroupSnapshotContentSpec{
				VolumeGroupSnapshotRef: corev1.ObjectReference{Namespace: "ns", Name: "g", UID: "u"}, Driver: driver,
				DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete, VolumeGroupSnapshotClassName: ptr.To("fast"),
				Source: groupv1.VolumeGroupSnapshotContentSource{VolumeHandles: []string{"v", "w"}},
			},
		},
		Class: ClassOf(class("copies", "2")), Reachable: true, Takes: true, Now: now(),
	}
	for _, c := range changes {
		c(&f)
	}
	return f
}

func class(parameters ...string) *groupv1.VolumeGroupSnapshotClass {
	c := &groupv1.VolumeGroupSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Driver: driver, Parameters: map[string]string{},
	}
	for i := 0; i < len(parameters); i += 2 {
		c.Parameters[parameters[i]] = parameters[i+1]
	}
	return c
}

func annotated(key, value string) change {
	return func(f *DriverFacts) { f.Content = snapshot.Noted(f.Content, key, value) }
}

func known(f *DriverFacts)    { annotated(volume.AnnSnapshotParameters, `{"copies":"1"}`)(f) }
func intended(f *DriverFacts) { known(f); annotated(volume.AnnGroupCreating, "yes")(f) }
func going(f *DriverFacts)    { gone(f); annotated(volume.AnnGroupDeleting, "yes")(f) }
func gone(f *DriverFacts)     { f.Content.DeletionTimestamp = ptr.To(now()) }
func loose(f *DriverFacts)    { f.Content.Finalizers = nil }
func noClass(f *DriverFacts)  { f.Class = nil }
func cannot(f *DriverFacts)   { f.Takes = false }
func refused(f *DriverFacts)  { f.Refused = true }
func secret(f *DriverFacts) {
	annotated(volume.AnnGroupSecretName, "key")(f)
	annotated(volume.AnnGroupSecretNamespace, "vault")(f)
}

// answered is what a driver says of a group that it has taken.
func answered(ready bool) Taken {
	return Taken{Handle: handle, Created: 5e9, Ready: ready, Members: []snapshot.Taken{
		{Handle: "shot-w", Source: "w", Created: 5e9, Bytes: 1 << 30, Ready: ready}, {Handle: "shot-v", Source: "v"},
	}}
}

// placed is such a group, of which one snapshot can be used from a segment only.
func placed(key, value string) Taken {
	t := answered(true)
	t.Members[1].Places = []topology.Segment{{key: value}}
	return t
}

// TestPlaces: what a driver says of the places of a group's snapshots is kept by their volumes, unless it is too much.
func TestPlaces(t *testing.T) {
	long := strings.Repeat("a", maxPlaces)
	for value, want := range map[string]bool{"a": true, long[:maxPlaces/2]: true, long: false} {
		f := of(intended)
		f.Content.Annotations[volume.AnnSnapshotPlaces] = placesOf(placed("zone", value))
		v, w := affinityOf(f.Content, "v"), affinityOf(f.Content, "w")
		if is := len(v) == 1 && v[0].MatchLabelExpressions[0].Values[0] == value; is != want || w != nil {
			t.Errorf("a place of %d bytes: kept %v, want %v; of the other one %v", len(value), is, want, w)
		}
	}
	if got := placesOf(answered(true)); got != "" {
		t.Errorf("a driver that says nothing of places: %s", got)
	}
	f := of(annotated(volume.AnnSnapshotPlaces, "{"))
	if got := affinityOf(f.Content, "v"); got != nil {
		t.Errorf("what is no JSON: %v", got)
	}
}

func status(f *DriverFacts, ready bool) {
	f.Content = noteTaken(*f, answered(ready)).Content
}

func taken(f *DriverFacts)   { known(f); status(f, true) }
func pending(f *DriverFacts) { known(f); status(f, false) }

// given is a content of a group that somebody else has taken.
func given(f *DriverFacts) {
	f.Content.Spec.VolumeGroupSnapshotRef.UID = ""
	f.Content.Spec.Source = groupv1.VolumeGroupSnapshotContentSource{GroupSnapshotHandles: &groupv1.GroupSnapshotHandles{
		VolumeGroupSnapshotHandle: handle, VolumeSnapshotHandles: []string{"shot-v", "shot-w"},
	}}
}

func planText(t *testing.T, f DriverFacts, p DriverPlan) string {
	var out strings.Builder
	out.WriteString([...]string{
		"nothing", "write the intent, take the group", "take the group", "get the group", "list groups", "write the status",
		"forget the intent", "delete the group", "let the content go",
	}[p.Step])
	for _, w := range []struct {
		word string
		is   bool
	}{{"poll", p.Poll}, {"repeat", p.Repeat && !p.Poll}, {"certainly not taken", p.Refused}} {
		if w.is {
			out.WriteString(", " + w.word)
		}
	}
	out.WriteString("\n" + toldOf(p.Because, p.Warn, p.Event))
	if p.Request.Name != "" || p.Request.Handle != "" {
		text, err := json.Marshal(p.Request)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&out, "  asks for %s\n", text)
	}
	if p.Content != nil {
		out.WriteString(golden.Change(t, f.Content, p.Content))
	}
	return out.String() + "\n"
}

// row is a content in a state.
type row struct {
	argues string
	facts  DriverFacts
}

func compare(t *testing.T, file string, rows []row) {
	t.Helper()
	var out strings.Builder
	for _, r := range rows {
		before := r.facts.Content.DeepCopy()
		fmt.Fprintf(&out, "# %s\n%s", r.argues, planText(t, r.facts, Groups().Driver(r.facts)))
		if changed := golden.Change(t, before, r.facts.Content); changed != "" {
			t.Errorf("%s: the content in the cache is changed: %s", r.argues, changed)
		}
	}
	golden.Equal(t, file, out.String())
}

// TestTaking: when a driver is asked for a group, and with what.
func TestTaking(t *testing.T) {
	compare(t, "testdata/taking.txt", []row{
		{"the intent comes first, with the parameters of the class", of()},
		{"it is there", of(intended)},
		{"with its Secret", of(intended, secret)},
		{"a Secret without a namespace is none", of(intended, annotated(volume.AnnGroupSecretName, "key"))},
		{"its class is gone, and its parameters are known", of(known, noClass)},
		{"its class is gone before anybody knew them", of(noClass)},
		{"its class is another driver's", of(func(f *DriverFacts) { f.Class.Driver = "other.example.com" })},
		{"Secrets are not for the driver", of(func(f *DriverFacts) {
			f.Class = ClassOf(class("csi.storage.k8s.io/group-snapshotter-secret-name", "n",
				"csi.storage.k8s.io/group-snapshotter-get-secret-namespace", "n"))
		})},
		{"a parameter is unknown", of(func(f *DriverFacts) { f.Class = ClassOf(class("csi.storage.k8s.io/odd", "1")) })},
		{"somebody has spoiled the parameters", of(annotated(volume.AnnSnapshotParameters, "no"))},
		{"somebody has removed the finalizer", of(intended, loose)},
		{"the driver takes no groups", of(cannot)},
		{"the driver is elsewhere", of(func(f *DriverFacts) { f.Reachable = false })},
		{"it is bound to no group snapshot", of(func(f *DriverFacts) { f.Content.Spec.VolumeGroupSnapshotRef.UID = "" })},
		{"it has no source", of(func(f *DriverFacts) {
			f.Content.Spec.Source = groupv1.VolumeGroupSnapshotContentSource{}
		})},
		{"it has two", of(given, func(f *DriverFacts) { f.Content.Spec.Source.VolumeHandles = []string{"v"} })},
		{"it is taken, and the intent is not needed", of(taken, intended)},
		{"it is ready", of(taken)},
		{"it is not ready: the driver is asked again, without an intent", of(pending)},
		{"an error is no group", of(intended, func(f *DriverFacts) {
			f.Content = Groups().UserProblem(*f, volume.ReasonGroupFailed, "old").Content
		})},
	})
}

// TestLooking: how a group that somebody else has taken is found.
func TestLooking(t *testing.T) {
	withSecret := func(name string) change {
		return func(f *DriverFacts) {
			f.Class = ClassOf(class("csi.storage.k8s.io/group-snapshotter-get-secret-name", name,
				"csi.storage.k8s.io/group-snapshotter-get-secret-namespace", "vault"))
		}
	}
	compare(t, "testdata/looking.txt", []row{
		{"the driver can get it", of(given, noClass)},
		{"with the Secret of the class", of(given, withSecret("${volumegroupsnapshotcontent.name}"))},
		{"a template that needs a group snapshot cannot be used", of(given, withSecret("${volumegroupsnapshot.name}"))},
		{"the driver cannot be asked", of(given, cannot)},
		{"it is known", of(given, taken)},
	})
}

// TestRemoving: what a driver deletes, and when a content may go.
func TestRemoving(t *testing.T) {
	deleted := func(f *DriverFacts) { f.Content.Spec.DeletionPolicy = snapshotv1.VolumeSnapshotContentDelete }
	retained := func(f *DriverFacts) { f.Content.Spec.DeletionPolicy = snapshotv1.VolumeSnapshotContentRetain }
	compare(t, "testdata/removing.txt", []row{
		{"somebody deletes the content of a group snapshot that is there", of(taken, gone)},
		{"the driver deletes the group", of(taken, going)},
		{"with its Secret", of(taken, secret, going)},
		{"one that is not ready, too", of(pending, going)},
		{"it is retained", of(taken, retained, going)},
		{"the driver was never asked", of(going)},
		{"the driver may have taken it: it is asked again", of(intended, going)},
		{"its class is not needed for that", of(intended, noClass, going)},
		{"the driver has not taken it", of(intended, refused, going)},
		{"whatever it said before it took it", of(taken, intended, refused, going)},
		{"another content stands for it", of(taken, going, func(f *DriverFacts) { f.Others = []string{"another"} })},
		{"the driver has deleted it, and that could not be written", of(taken, going, func(f *DriverFacts) {
			f.Removed = true
		})},
		{"the driver cannot delete groups", of(taken, cannot, going)},
		{"an administrator's content that nobody was bound to", of(given, retained, gone)},
		{"with the driver's group", of(given, deleted, gone)},
		{"one that somebody is bound to", of(given, gone, func(f *DriverFacts) {
			f.Content.Spec.VolumeGroupSnapshotRef.UID = "u"
		})},
		{"the driver is not asked any more", of(taken, loose, going)},
	})
}

// TestEveryAnswer: what follows each answer to the calls that make and delete something.
func TestEveryAnswer(t *testing.T) {
	short := func(p DriverPlan) string {
		text := map[bool]string{true: "repeat", false: "go on"}[p.Repeat]
		if p.Refused {
			text += ", not taken"
		}
		return text
	}
	first, again, undo, removed := of(known), of(intended), of(intended, going), of(taken, going)
	got := csitest.EveryAnswer(func(a volume.Answer) string {
		answer := Answer{Answer: a, Taken: answered(true)}
		return fmt.Sprintf("first: %s; again: %s; undo: %s; delete: %s",
			short(AfterTake(first, Groups().Driver(first), answer)), short(AfterTake(again, Groups().Driver(again), answer)),
			short(AfterTake(undo, Groups().Driver(undo), answer)),
			short(afterRemove(removed, Groups().Driver(removed), answer)))
	})
	golden.Equal(t, "testdata/codes.txt", got+"\n")
}

// TestAnswers: what is written and said after an answer.
func TestAnswers(t *testing.T) {
	done := volume.Answer{Outcome: volume.Done}
	no := volume.Answer{Outcome: volume.Failed, Code: "Internal", Text: "Internal: no"}
	other := func(change func(*Taken)) Answer {
		g := answered(true)
		change(&g)
		return Answer{Answer: done, Taken: g}
	}
	var out strings.Builder
	for _, c := range []struct {
		argues string
		after  func(DriverFacts, DriverPlan, Answer) DriverPlan
		facts  DriverFacts
		answer Answer
	}{
		{"it is taken", AfterTake, of(intended), Answer{Answer: done, Taken: answered(true)}},
		{"it is taken, and not ready", AfterTake, of(intended), Answer{Answer: done, Taken: answered(false)}},
		{"it is still not ready", AfterTake, of(pending), Answer{Answer: done, Taken: answered(false)}},
		{"it is ready now", AfterTake, of(pending), Answer{Answer: done, Taken: answered(true)}},
		{"a driver that does not say when", AfterTake, of(intended), other(func(g *Taken) { g.Created = 0 })},
		{"whatever the driver says later", AfterTake, of(pending), other(func(g *Taken) { g.Created = 6e9 })},
		{"what was known of the time stays", AfterTake, of(pending), other(func(g *Taken) { g.Created = 0 })},
		{"it fails", AfterTake, of(intended), Answer{Answer: no}},
		{"and is not said twice", AfterTake, of(intended, func(f *DriverFacts) {
			f.Content = AfterTake(*f, Groups().Driver(*f), Answer{Answer: no}).Content
		}), Answer{Answer: no}},
		{"the driver names a group or snapshot of another content", AfterTake, of(intended), Answer{
			Answer: done, Taken: answered(true), TakenBy: "another",
		}},
		{"the driver names another group than before", AfterTake, of(pending), other(func(g *Taken) {
			g.Handle = "group-2"
		})},
		{"the driver names other snapshots than before", AfterTake, of(pending), other(func(g *Taken) {
			g.Members[0].Handle = "shot-x"
		})},
		{"an answer is late: the content is being deleted", AfterTake, of(intended, going), Answer{
			Answer: done, Taken: answered(false),
		}},
		{"it is found", AfterGet, of(given, noClass), Answer{Answer: done, Taken: answered(true)}},
		{"it is found, and not ready", AfterGet, of(given, noClass), Answer{Answer: done, Taken: answered(false)}},
		{"it cannot be asked", AfterGet, of(given, noClass), Answer{Answer: no}},
		{"it is deleted", afterRemove, of(taken, going), Answer{Answer: done}},
		{"it is not deleted", afterRemove, of(taken, going), Answer{Answer: no}},
		{"perhaps for want of a Secret", afterRemove, of(taken, going), Answer{
			Answer: volume.Answer{Outcome: volume.Failed, Code: "Internal", Text: "Internal: no", Missing: "no Secret"},
		}},
	} {
		fmt.Fprintf(&out, "# %s\n%s", c.argues, planText(t, c.facts, c.after(c.facts, Groups().Driver(c.facts), c.answer)))
	}
	f := of()
	unread := volume.Answer{Text: `secrets "s" not found`, NoSecret: true}
	fmt.Fprintf(&out, "# its Secret is missing\n%s", planText(t, f, Groups().SecretUnread(f, unread)))
	golden.Equal(t, "testdata/answers.txt", out.String())
}

// TestOthers: contents of one driver that stand for one group, or for a snapshot in it, know of each other. The
// contents of the group's own snapshots are none.
func TestOthers(t *testing.T) {
	c := of(taken).Content
	group := func(name, driver string) *groupv1.VolumeGroupSnapshotContent {
		o := of(given).Content
		o.Name, o.Spec.Driver = name, driver
		return o
	}
	single := func(name, driver, snapshot string) *cluster.VolumeSnapshotContent {
		o := &cluster.VolumeSnapshotContent{ObjectMeta: metav1.ObjectMeta{Name: name}}
		o.Spec.Driver, o.Spec.Source.SnapshotHandle = driver, &snapshot
		return o
	}
	mine, stated := single("mine", driver, "shot-v"), single("stated", driver, "shot-v")
	mine.Annotations = map[string]string{volume.AnnGroupSnapshotHandle: handle}
	stated.Status = &snapshotv1.VolumeSnapshotContentStatus{VolumeGroupSnapshotHandle: ptr.To(handle)}
	theirs := single("theirs", driver, "shot-w")
	theirs.Annotations = map[string]string{volume.AnnGroupSnapshotHandle: "group-2"}
	groups := []*groupv1.VolumeGroupSnapshotContent{group("z", driver), c, group("b", "other.example.com")}
	singles := []*cluster.VolumeSnapshotContent{
		mine, stated, theirs, single("admins", driver, "shot-v"), single("far", "other.example.com", "shot-v"),
		single("else", driver, "shot-x"),
	}
	got := fmt.Sprint(OthersOf(c, HandleOf(c), MembersOf(c), groups, singles), OthersOf(c, "", nil, groups, singles))
	if got != "[admins theirs z] []" {
		t.Errorf("others: %s", got)
	}
	admins := singles[3]
	admins.DeletionTimestamp, admins.Spec.DeletionPolicy = &metav1.Time{}, snapshotv1.VolumeSnapshotContentDelete
	admins.Finalizers = []string{volume.FinalizerContentBound}
	leaves := of(taken, going).Content
	got = fmt.Sprint(OthersOf(c, handle, MembersOf(c), groups, singles),
		OthersOf(leaves, handle, MembersOf(c), groups, singles))
	if got != "[admins theirs z] [theirs z]" {
		t.Errorf("others of one that goes: %s", got)
	}
}

// afterRemove has the arguments of the other functions that judge answers.
func afterRemove(f DriverFacts, p DriverPlan, a Answer) DriverPlan {
	return Groups().AfterRemove(f, p, a.Answer)
}
