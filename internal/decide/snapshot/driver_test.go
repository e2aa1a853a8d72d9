package snapshot

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

// at are the facts about the driver's part of the content of a snapshot.
func at(f Facts, changes ...func(*DriverFacts)) DriverFacts {
	d := DriverFacts{
		Content: f.Content, Class: ClassOf(f.Class), Reachable: true, Takes: true, Lists: true, Gets: true, Now: now(),
	}
	for _, c := range changes {
		c(&d)
	}
	return d
}

func intended(f *Facts) { f.Content = Noted(f.Content, volume.AnnSnapshotCreating, yes) }

// pending says that the driver has taken the snapshot, and that it is not ready.
func pending(f *Facts) {
	taken(f)
	f.Content.Status.ReadyToUse = ptr.To(false)
}

func driverText(t *testing.T, f DriverFacts, p DriverPlan) string {
	var out strings.Builder
	out.WriteString([...]string{
		"nothing", "write the intent, take the snapshot", "take the snapshot", "get the snapshot", "list the snapshot",
		"write the status", "forget the intent", "delete the snapshot", "let the content go",
	}[p.Step])
	for word, is := range map[string]bool{"poll": p.Poll, "repeat": p.Repeat && !p.Poll} {
		if is {
			out.WriteString(", " + word)
		}
	}
	if p.Refused {
		out.WriteString(", certainly not taken")
	}
	out.WriteString("\n" + told(p.Because, p.Warn, p.Event))
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

// driverRow is a content in a state.
type driverRow struct {
	argues string
	facts  DriverFacts
}

func compareDriver(t *testing.T, file string, rows []driverRow) {
	t.Helper()
	var out strings.Builder
	for _, r := range rows {
		before := r.facts.Content.DeepCopy()
		fmt.Fprintf(&out, "# %s\n%s", r.argues, driverText(t, r.facts, Single().Driver(r.facts)))
		if golden.Change(t, before, r.facts.Content) != "" {
			t.Errorf("%s: the decision has changed its facts", r.argues)
		}
	}
	golden.Equal(t, file, out.String())
}

// zoned has the class want snapshots in one of two zones.
func zoned(f *DriverFacts) {
	f.Class.Topologies = topology.TermsOf([]topology.Segment{{"zone": "a"}, {"zone": "b"}})
}

func noAnnotations(f *Facts) { f.Content.Annotations = nil }

// TestTaking: what a driver is asked for, and what is written before.
func TestTaking(t *testing.T) {
	secret := func(f *Facts) {
		f.Content = Noted(Noted(f.Content, volume.AnnSnapshotSecretName, "key"), volume.AnnSnapshotSecretNamespace, "vault")
	}
	foreign := func(f *DriverFacts) { f.Class.Driver = "other.example.com" }
	compareDriver(t, "testdata/taking.txt", []driverRow{
		{"the intent comes first", at(of(contained, secret))},
		{"it is there", at(of(contained, intended, secret))},
		{"a content of another controller gets the parameters of its class", at(of(contained, noAnnotations),
			func(f *DriverFacts) { f.Class.Parameters["copies"] = "2" })},
		{"its class is gone, and its parameters are known", at(of(contained), func(f *DriverFacts) { f.Class = nil })},
		{"its class is gone before anybody knew them", at(of(contained, noAnnotations),
			func(f *DriverFacts) { f.Class = nil })},
		{"its class is another driver's", at(of(contained, noAnnotations), foreign)},
		{"a parameter is unknown", at(of(contained, noAnnotations),
			func(f *DriverFacts) { f.Class.Parameters["csi.storage.k8s.io/odd"] = "2" })},
		{"somebody has spoiled the parameters", at(of(contained, func(f *Facts) {
			f.Content = Noted(f.Content, volume.AnnSnapshotParameters, "[]")
		}))},
		{"somebody has removed the finalizer", at(of(contained, intended, func(f *Facts) { f.Content.Finalizers = nil }))},
		{"it is for no snapshot yet", at(of(contained, func(f *Facts) { f.Content.Spec.VolumeSnapshotRef.UID = "" }))},
		{"the driver takes no snapshots", at(of(contained), func(f *DriverFacts) { f.Takes = false })},
		{"the driver is elsewhere", at(of(contained), func(f *DriverFacts) { f.Reachable = false })},
		{"the intent is not needed any more", at(of(taken, intended))},
		{"not even while the snapshot is not ready", at(of(pending, intended))},
		{"whether it is ready is asked with the same words", at(of(pending))},
		{"it is ready", at(of(taken))},
		{"it is a member of a group", at(of(contained, func(f *Facts) {
			f.Content = Noted(f.Content, volume.AnnGroupSnapshotHandle, "g")
		}))},
		{"its class wants it in some zones, and the driver knows zones", at(of(contained), zoned, func(f *DriverFacts) {
			f.Places = true
		})},
		{"and the driver knows none", at(of(contained), zoned)},
		{"the class wants so after the driver was asked", at(of(contained, intended), zoned, func(f *DriverFacts) {
			f.Places = true
		})},
		{"somebody has spoiled the zones", at(of(contained, func(f *Facts) {
			f.Content = Noted(f.Content, volume.AnnSnapshotTopologies, `{"zone":"a"}`)
		}))},
		{"it has two sources", at(of(contained, func(f *Facts) { f.Content.Spec.Source.SnapshotHandle = ptr.To(handle) }))},
	})
}

// TestLooking: how a driver is asked about a snapshot that somebody else has taken.
func TestLooking(t *testing.T) {
	gets := func(f *DriverFacts) { f.Lists = false }
	compareDriver(t, "testdata/looking.txt", []driverRow{
		{"the driver can get it", at(of(given), gets)},
		{"the driver lists it, with the Secret of the class", at(of(given), func(f *DriverFacts) {
			f.Class = ClassOf(class("fast", "csi.storage.k8s.io/snapshotter-list-secret-name", "${volumesnapshotcontent.name}",
				"csi.storage.k8s.io/snapshotter-list-secret-namespace", "vault"))
		})},
		{"a template that needs a snapshot cannot be used", at(of(given), func(f *DriverFacts) {
			f.Class = ClassOf(class("fast", "csi.storage.k8s.io/snapshotter-list-secret-name", "${volumesnapshot.name}",
				"csi.storage.k8s.io/snapshotter-list-secret-namespace", "vault"))
		})},
		{"a driver that cannot be asked is believed", at(of(given), gets, func(f *DriverFacts) { f.Gets = false })},
		{"it is known", at(of(given, func(f *Facts) {
			f.Content.Status = &snapshotv1.VolumeSnapshotContentStatus{ReadyToUse: ptr.To(true), SnapshotHandle: ptr.To(handle)}
		}))},
	})
}

// TestRemoving: what a driver deletes, and when a content may go.
func TestRemoving(t *testing.T) {
	going := func(f *Facts) { contentGoing(f); contentGone(f) }
	kept := func(f *Facts) { with(f.Content, volume.FinalizerContentBound) }
	compareDriver(t, "testdata/removing.txt", []driverRow{
		{"somebody deletes the content of a snapshot that is there", at(of(taken, contentGone))},
		{"one that is not ready is asked for until then", at(of(pending, contentGone))},
		{"and one that is not taken is taken", at(of(contained, contentGone))},
		{"the driver deletes the snapshot", at(of(taken, going))},
		{"with its Secret", at(of(taken, going, func(f *Facts) {
			f.Content = Noted(Noted(f.Content, volume.AnnSnapshotSecretName, "key"), volume.AnnSnapshotSecretNamespace, "vault")
		}))},
		{"one that is not ready, too", at(of(pending, going))},
		{"it is retained", at(of(taken, retains, going))},
		{"the driver was never asked", at(of(contained, going))},
		{"the driver may have taken it: it is asked again", at(of(contained, intended, going))},
		{"somebody has removed the UID under which it was asked", at(of(contained, intended, going, func(f *Facts) {
			f.Content.Spec.VolumeSnapshotRef.UID = ""
		}))},
		{"its class is not needed for that", at(of(contained, intended, going), func(f *DriverFacts) { f.Class = nil })},
		{"the driver has not taken it", at(of(contained, intended, going), func(f *DriverFacts) { f.Refused = true })},
		{"whatever it said before it took it", at(of(taken, intended, going), func(f *DriverFacts) { f.Refused = true })},
		{"another content stands for the same snapshot", at(of(taken, going), func(f *DriverFacts) {
			f.Others = []string{"another"}
		})},
		{"the driver has deleted it, and that could not be written", at(of(taken, going), func(f *DriverFacts) {
			f.Removed = true
		})},
		{"it goes with its group", at(of(member, going))},
		{"it goes with its group, which has never had it", at(of(member, going, func(f *Facts) { f.Content.Status = nil }))},
		{"its group is known only by its status", at(of(taken, going, func(f *Facts) {
			f.Content.Status.VolumeGroupSnapshotHandle = ptr.To("g")
		}))},
		{"the driver cannot delete snapshots", at(of(taken, going), func(f *DriverFacts) { f.Takes = false })},
		{"an administrator's content that nobody was bound to", at(of(given, kept, contentGone))},
		{"with the driver's snapshot", at(of(given, kept, contentGone, func(f *Facts) {
			f.Content.Spec.DeletionPolicy = snapshotv1.VolumeSnapshotContentDelete
		}))},
		{"the driver is not asked any more", at(of(taken, going, func(f *Facts) { f.Content.Finalizers = nil }))},
		{"the driver is elsewhere", at(of(taken, going), func(f *DriverFacts) { f.Reachable = false })},
	})
}

// TestEveryAnswer: what follows each answer to the calls that make and delete something.
func TestEveryAnswer(t *testing.T) {
	going := func(f *Facts) { contentGoing(f); contentGone(f) }
	first, again := at(of(contained)), at(of(contained, intended))
	undo, removed := at(of(contained, intended, going)), at(of(taken, going))
	short := func(p DriverPlan) string {
		text := strings.TrimSuffix(fmt.Sprintf("%v", map[bool]string{true: "repeat", false: "go on"}[p.Repeat]), "\n")
		if p.Refused {
			text += ", not taken"
		}
		return text
	}
	got := csitest.EveryAnswer(func(a volume.Answer) string {
		answer := Answer{Answer: a, Taken: Taken{Handle: handle, Ready: true}}
		return fmt.Sprintf("first: %s; again: %s; undo: %s; delete: %s",
			short(AfterTake(first, Single().Driver(first), answer)), short(AfterTake(again, Single().Driver(again), answer)),
			short(AfterTake(undo, Single().Driver(undo), answer)),
			short(afterRemove(removed, Single().Driver(removed), answer)))
	})
	golden.Equal(t, "testdata/codes.txt", got+"\n")
}

// TestAnswers: what is written and said after an answer.
func TestAnswers(t *testing.T) {
	done := volume.Answer{Outcome: volume.Done}
	no := volume.Answer{Outcome: volume.Failed, Code: "Internal", Text: "Internal: no"}
	bare := no
	bare.Missing = `read secret ns/s: secrets "s" not found`
	shot := func(t Taken) Answer { t.Handle = handle; return Answer{Answer: done, Taken: t} }
	var out strings.Builder
	for _, c := range []struct {
		argues string
		after  func(DriverFacts, DriverPlan, Answer) DriverPlan
		facts  DriverFacts
		answer Answer
	}{
		{"it is taken and ready", AfterTake, at(of(contained)), shot(Taken{
			Source: "vol", Created: 7, Bytes: 3, Ready: true,
		})},
		{"it is not ready", AfterTake, at(of(contained)), shot(Taken{Created: 7})},
		{"it is in two zones", AfterTake, at(of(contained)), shot(Taken{
			Created: 7, Ready: true, Places: []topology.Segment{{"zone": "b"}, {"zone": "a"}},
		})},
		{"it is in more places than a content can say", AfterTake, at(of(contained)), shot(Taken{
			Created: 7, Ready: true, Places: make([]topology.Segment, maxPlaces+1),
		})},
		{"nor later", AfterTake, at(of(pending)), shot(Taken{Created: 5e9, Bytes: 1 << 30})},
		{"a driver that does not say when", AfterTake, at(of(contained)), shot(Taken{Ready: true})},
		{"what was known of the time and the size stays", AfterTake, at(of(pending)), shot(Taken{Ready: true})},
		{"whatever the driver says later", AfterTake, at(of(pending)), shot(Taken{
			Created: 6e9, Bytes: 2 << 30, Ready: true,
		})},
		{"it fails", AfterTake, at(of(contained)), Answer{Answer: no}},
		{"and is not said twice", AfterTake, at(of(contained, func(f *Facts) {
			f.Content = AfterTake(at(*f), Single().Driver(at(*f)), Answer{Answer: no}).Content
		})), Answer{Answer: no}},
		{"an error ends with success", AfterTake, at(of(pending, func(f *Facts) {
			f.Content.Status.Error = &snapshotv1.VolumeSnapshotError{Message: ptr.To("old")}
		})), shot(Taken{Created: 5e9, Bytes: 1 << 30})},
		{"the driver names a snapshot of another volume", AfterTake, at(of(contained)), shot(Taken{Source: "other"})},
		{"the driver names another content's snapshot", AfterTake, at(of(contained)), Answer{
			Answer: done, Taken: Taken{Handle: handle}, TakenBy: "another",
		}},
		{"another content was made by hand for a snapshot that is not ready", AfterTake, at(of(pending)), Answer{
			Answer: done, Taken: Taken{Handle: handle}, TakenBy: "another",
		}},
		{"the driver names another snapshot than before", AfterTake, at(of(pending)), Answer{
			Answer: done, Taken: Taken{Handle: "shot-2"},
		}},
		{
			"an answer is late: the content is being deleted", AfterTake,
			at(of(contained, intended, contentGoing, contentGone)), shot(Taken{Created: 7}),
		},
		{"it is found", AfterLook, at(of(given)), shot(Taken{Created: 7, Bytes: 3, Ready: true})},
		{"it is a part of a group", AfterLook, at(of(given)), shot(Taken{Created: 7, Ready: true, Group: "g"})},
		{"none that is taken here is one", AfterTake, at(of(contained)), shot(Taken{Created: 7, Ready: true, Group: "g"})},
		{"it is found, and not ready", AfterLook, at(of(given)), shot(Taken{Created: 7})},
		{"it is not found", AfterLook, at(of(given)), Answer{Answer: done}},
		{"another one is found", AfterLook, at(of(given)), Answer{Answer: done, Taken: Taken{Handle: "shot-2"}}},
		{"it cannot be asked", AfterLook, at(of(given)), Answer{Answer: no}},
		{"it is deleted", afterRemove, at(of(taken, contentGoing, contentGone)), Answer{Answer: done}},
		{"it is not deleted", afterRemove, at(of(taken, contentGoing, contentGone)), Answer{Answer: no}},
		{"perhaps for want of a Secret", afterRemove, at(of(taken, contentGoing, contentGone)), Answer{Answer: bare}},
	} {
		plan := Single().Driver(c.facts)
		fmt.Fprintf(&out, "# %s\n%s", c.argues, driverText(t, c.facts, c.after(c.facts, plan, c.answer)))
	}
	f := at(of(contained))
	unread := volume.Answer{Text: `secrets "s" not found`, NoSecret: true}
	fmt.Fprintf(&out, "# its Secret is missing\n%s", driverText(t, f, Single().SecretUnread(f, unread)))
	golden.Equal(t, "testdata/answers.txt", out.String())
}

// TestOthers: contents of one driver that stand for one snapshot know of each other.
func TestOthers(t *testing.T) {
	c := of(taken).Content
	same := func(name, driver string) *cluster.VolumeSnapshotContent {
		o := of(given).Content
		o.Name, o.Spec.Driver = name, driver
		return o
	}
	all := []*cluster.VolumeSnapshotContent{same("z", driver), c, same("a", driver), same("b", "other.example.com")}
	if got := fmt.Sprint(Single().SameAs(c, handle, all), Single().SameAs(c, "", all)); got != "[a z] []" {
		t.Errorf("others: %s", got)
	}
	going := of(taken, contentGoing, contentGone).Content
	with := func(name string, change func(*cluster.VolumeSnapshotContent)) {
		o := going.DeepCopy()
		o.Name = name
		change(o)
		all = append(all, o)
	}
	with("goes", func(*cluster.VolumeSnapshotContent) {})
	with("released", func(o *cluster.VolumeSnapshotContent) { o.Finalizers = nil })
	with("kept", func(o *cluster.VolumeSnapshotContent) { o.Annotations = nil })
	with("retained", func(o *cluster.VolumeSnapshotContent) {
		o.Spec.DeletionPolicy = snapshotv1.VolumeSnapshotContentRetain
	})
	with("in-group", func(o *cluster.VolumeSnapshotContent) { o.Status.VolumeGroupSnapshotHandle = ptr.To("g") })
	got := fmt.Sprint(Single().SameAs(c, handle, all), Single().SameAs(going, handle, all))
	if got != "[a goes in-group kept released retained z] [a in-group kept retained z]" {
		t.Errorf("others of one that goes: %s", got)
	}
}

// afterRemove has the arguments of the other functions that judge answers.
func afterRemove(f DriverFacts, p DriverPlan, a Answer) DriverPlan {
	return Single().AfterRemove(f, p, a.Answer)
}
