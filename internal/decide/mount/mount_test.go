package mount

import (
	"bytes"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

// TestVolume plays the tables in testdata: facts, and below them the plan.
func TestVolume(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no tables", err)
	}
	for _, file := range files {
		golden.Play(t, file, func(t *testing.T, given string) string {
			plan := Volume(facts(t, given))
			if plan.Because.Reason == "" || plan.Because.Message == "" {
				t.Error("no reason")
			}
			return text(plan)
		})
	}
}

func text(p Plan) string {
	var b bytes.Buffer
	for _, a := range p.Actions {
		fmt.Fprintln(&b, strings.TrimSpace(string(a.Verb)+" "+a.Path))
	}
	if p.Label != "" {
		fmt.Fprintln(&b, "with label", p.Label)
	}
	b.WriteString(said(p.Because))
	for _, path := range slices.Sorted(maps.Keys(p.Own)) {
		if p.Own[path] != p.Because {
			fmt.Fprintf(&b, "\nfor %s: %s", path, said(p.Own[path]))
		}
	}
	return b.String()
}

func said(why volume.Because) string {
	text := string(why.Reason) + ": " + why.Message
	if !why.Next.IsZero() {
		text += " -> " + why.Next.String()
	}
	return text
}

// facts are words: those of the volume, of the Pods that want it, of the record and its targets, and of paths.
func facts(t *testing.T, given string) Facts {
	f := Facts{
		Driver: "d", Handle: "h", Volume: "pv", Node: "n", Mounted: map[string]bool{}, Dead: map[string]bool{},
		Covered: map[string]string{}, Bare: map[string]bool{},
	}
	for line := range strings.Lines(given) {
		kind, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		words := strings.Fields(rest)
		switch kind {
		case "volume":
			golden.Read(t, &f, words)
		case "want":
			f.Wanted = append(f.Wanted, wanted(t, words, f.SinglePod))
		case "record":
			f.Record = &Record{Driver: "d", Handle: "h", Volume: "pv", StagingPath: "/s"}
			golden.Read(t, f.Record, words)
		case "target":
			f.Record.Targets = append(f.Record.Targets, target(words))
		case "lost":
			f.Record.Lost = map[string]Loss{words[0]: Loss(words[1])}
		case "mounted", "dead", "covered":
			f.readMounts(kind, words)
		case "bare":
			f.Bare[rest] = true
		case "absent":
			f.Absent = volume.Because{Reason: volume.ReasonDriverMissing, Message: rest, Next: volume.Administrator("n")}
		case "refused":
			f.Refused = rest
		default:
			t.Fatalf("unknown fact %q", line)
		}
	}
	return f
}

// readMounts reads the paths at which something is mounted.
func (f *Facts) readMounts(how string, paths []string) {
	for _, path := range paths {
		f.Mounted[path], f.Dead[path] = true, how == "dead"
		if how == "covered" {
			f.Covered[path] = "tmpfs none"
		}
	}
}

// wanted returns a Pod.
func wanted(t *testing.T, words []string, singlePod bool) Consumer {
	c := Consumer{
		UID: words[0], Namespace: "ns", Name: words[0], Path: "/p/" + words[0], Volume: "pv", SinglePod: singlePod,
	}
	if i := slices.Index(words, "two-labels"); i > 0 {
		_, c.Refused = Label([]string{"x", "y"})
		words = slices.Delete(words, i, i+1)
	}
	golden.Read(t, &c, words[1:])
	return c
}

func target(words []string) Target {
	t := Target{PodUID: words[0], PodNamespace: "ns", PodName: words[0], Path: "/p/" + words[0], Phase: Phase(words[1])}
	if len(words) > 2 {
		t.HostPath, t.HostPhase = words[2], Phase(words[3])
	}
	return t
}

// TestInvariants lets plans be carried out by a driver that never fails, from
// every state that can be found, and looks at the order of the calls.
func TestInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := anyFacts(t)
		f.DriverReady, f.Known, f.Attached, f.Refused = true, true, true, ""
		for range 6 {
			p := Volume(f)
			if p.Because.Reason == "" {
				t.Fatal("no reason")
			}
			if len(p.Actions) == 0 {
				settled(t, f)
				return
			}
			for _, a := range p.Actions {
				if a.Verb == Stage || a.Verb == Publish {
					labelled(t, &f, p.Label)
				}
				carryOut(t, &f, a)
			}
		}
		t.Fatalf("never settles: %+v", f)
	})
}

// TestRunningIsLeftAlone: whatever is missing around it, what a living Pod has
// mounted is not taken away.
func TestRunningIsLeftAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := anyFacts(t)
		for _, a := range Volume(f).Actions {
			if a.Verb != Unpublish && a.Verb != Unstage {
				continue
			}
			for _, c := range f.Wanted {
				at := f.Record.Target(c.Path)
				if at != nil && at.Phase == Published && a.Verb == Unpublish && a.Path == c.Path && !f.Dead[a.Path] &&
					!f.Dead[f.Record.StagingPath] {
					t.Fatalf("%v of %s, which a Pod uses", a, c.Path)
				}
			}
		}
	})
}

func anyFacts(t *rapid.T) Facts {
	flag := func(name string) bool { return rapid.Bool().Draw(t, name) }
	f := Facts{
		Driver: "d", Handle: "h", Volume: "pv", Node: "n", Known: flag("known"), Block: flag("block"),
		DriverReady: flag("driver"),
		CanStage:    flag("stages"), AttachRequired: flag("attach"), Attached: flag("attached"), InUse: flag("in use"),
		SinglePod: flag("single"), Verify: flag("verify"), Ephemeral: flag("ephemeral"), Mounted: map[string]bool{},
		Dead: map[string]bool{},
	}
	if flag("refused") {
		f.Refused = "no"
	}
	if f.Ephemeral {
		f.InUse, f.SinglePod = false, false
	}
	if flag("staging dead") {
		f.Dead["/s"] = true
	}
	pods := []string{"a", "b", "c"}
	for _, p := range pods {
		if flag("want " + p) {
			c := Consumer{
				UID: p, Namespace: "ns", Name: p, Path: "/p/" + p, Due: flag("due " + p), SinglePod: f.SinglePod,
				Label: rapid.SampledFrom([]string{"", "", "x", "y"}).Draw(t, "label"),
			}
			f.Dead[c.Path] = flag("dead " + p)
			if flag("host " + p) {
				c.HostPath = "/h/" + p
			}
			f.Wanted = append(f.Wanted, c)
		}
	}
	if flag("record") {
		f.Record = anyRecord(t, f, pods)
	}
	return f
}

func anyRecord(t *rapid.T, f Facts, pods []string) *Record {
	flag := func(name string) bool { return rapid.Bool().Draw(t, name) }
	r := &Record{
		Driver: "d", Handle: "h", StagingPath: "/s", StagingMounted: flag("seen"), LabelUnknown: flag("rebuilt"),
		Label: rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "mounted label"),
	}
	if r.Stage = rapid.SampledFrom([]Phase{"", Staging, Staged, Unstaging}).Draw(t, "stage"); f.Ephemeral {
		r.Stage = ""
	}
	if r.Stage == Staging || r.Stage == Unstaging {
		return r
	}
	r.LabelUnknown = r.LabelUnknown && r.Stage != Staged
	for _, p := range pods {
		if !flag("target " + p) {
			continue
		}
		at := Target{
			PodUID: p, Path: "/p/" + p, Phase: rapid.SampledFrom([]Phase{Publishing, Published, Unpublishing}).Draw(t, "phase"),
		}
		if at.Phase == Published && flag("bound") {
			at.HostPath, at.HostPhase = "/h/"+p, rapid.SampledFrom([]Phase{Binding, Bound, Unbinding}).Draw(t, "host phase")
		}
		// What was rebuilt is done once more.
		r.LabelUnknown = r.LabelUnknown && at.Phase != Published
		r.Targets = append(r.Targets, at)
	}
	return r
}

// carryOut does what an action says, and fails when the order of CSI's calls
// is broken.
func carryOut(t *rapid.T, f *Facts, a Action) {
	switch a.Verb {
	case CheckAttached, Expand:
	case Republish:
		at := f.Record.Target(a.Path)
		must(t, at != nil && at.Phase == Published, "repeated what was not done")
		for i := range f.Wanted {
			f.Wanted[i].Due = f.Wanted[i].Due && f.Wanted[i].Path != a.Path
		}
	case MarkInUse:
		must(t, !f.Ephemeral, "nobody needs to know of an inline volume")
		f.InUse = true
	case UnmarkInUse:
		must(t, empty(f.Record), "unmarked while something is mounted")
		f.InUse = false
	case Drop:
		must(t, empty(f.Record), "record dropped while something is mounted")
		f.Record = nil
	case Stage, Unstage:
		carryOutStage(t, f, a)
	default:
		carryOutTarget(t, f, a)
	}
}

// labelled records the label of a mount, which all mounts of a volume have.
func labelled(t *rapid.T, f *Facts, label string) {
	r := begin(f)
	must(t, empty(r) || r.LabelUnknown || r.Label == label, "mounted with another label than before")
	r.Label, r.LabelUnknown = label, false
}

func empty(r *Record) bool { return r == nil || r.Stage == "" && len(r.Targets) == 0 }

func must(t *rapid.T, ok bool, otherwise string) {
	if !ok {
		t.Fatal(otherwise)
	}
}

func begin(f *Facts) *Record {
	if f.Record == nil {
		f.Record = &Record{Driver: "d", Handle: "h", StagingPath: "/s"}
	}
	return f.Record
}

func carryOutStage(t *rapid.T, f *Facts, a Action) {
	r := begin(f)
	if a.Verb == Stage {
		must(t, f.InUse && !f.Ephemeral, "staged without being marked in use")
		must(t, f.CanStage, "staged by a driver that does not stage")
		r.Stage, f.Mounted["/s"], f.Dead["/s"] = Staged, true, false
		return
	}
	must(t, len(r.Targets) == 0, "unstaged while published")
	r.Stage, f.Mounted["/s"], f.Dead["/s"] = "", false, false
}

func carryOutTarget(t *rapid.T, f *Facts, a Action) {
	r := begin(f)
	at := r.Target(a.Path)
	switch a.Verb {
	case Publish:
		must(t, f.Ephemeral || f.InUse && (!f.CanStage || r.Stage == Staged), "published before it was staged and marked")
		if at == nil {
			r.Targets = append(r.Targets, Target{PodUID: a.Path[3:], Path: a.Path})
			at = r.Target(a.Path)
		}
		at.Phase, f.Mounted[a.Path], f.Dead[a.Path] = Published, true, false
	case Unpublish:
		must(t, at.HostPhase == "", "unpublished while bound")
		r.Targets = slices.DeleteFunc(r.Targets, func(x Target) bool { return x.Path == a.Path })
		f.Mounted[a.Path], f.Dead[a.Path] = false, false
	case Bind:
		must(t, at != nil && at.Phase == Published, "bound before it was published")
		at.HostPath, at.HostPhase = "/h/"+a.Path[3:], Bound
		f.Mounted[at.HostPath] = true
	case Unbind:
		f.Mounted[at.HostPath] = false
		at.HostPath, at.HostPhase = "", ""
	}
}

func settled(t *rapid.T, f Facts) {
	if len(f.Wanted) == 0 {
		if f.Record != nil || f.InUse {
			t.Fatalf("not wanted and not gone: %+v", f)
		}
		return
	}
	served, ask := 0, f.fitting()
	for _, c := range f.Wanted {
		if at := f.Record.Target(c.Path); at != nil && at.Phase == Published && (c.HostPath == "" || at.HostPhase == Bound) {
			served++
		}
	}
	if served != ask && !f.SinglePod || served == 0 {
		t.Fatalf("settled with %d of %d served: %+v", served, ask, f)
	}
}

// fitting is how many Pods want the volume as it is labelled, or have it.
func (f Facts) fitting() int {
	n := 0
	for _, c := range f.Wanted {
		if f.Record.Target(c.Path) != nil || c.Label == f.Record.Label {
			n++
		}
	}
	return n
}

func TestDoubtful(t *testing.T) {
	lost := map[string]Loss{"/c": Died}
	r := &Record{Stage: Staged, StagingMounted: true, Filesystem: "ext4 /dev/a", Boot: "1", Lost: lost, Targets: []Target{
		{
			Path: "/a", Phase: Published, Filesystem: "ext4 /dev/a", HostPath: "/x", HostPhase: Bound, HostDevice: "8:1",
		},
		{Path: "/b", Phase: Unpublishing},
	}}
	want := &Record{Stage: Staging, Boot: "1", Targets: []Target{
		{Path: "/a", Phase: Publishing, HostPath: "/x", HostPhase: Binding}, {Path: "/b", Phase: Unpublishing},
	}}
	if diff := cmp.Diff(want, r.Uncertain()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if key := (&Record{Driver: "d", Handle: "h"}).Key(); key != "d^h" || key != volume.Key("d", "h") {
		t.Error("the record is kept under", key)
	}
	if r.Stage != Staged || r.Targets[0].Phase != Published {
		t.Error("the old record changed")
	}
}

// TestBlocks: what fails for one Pod blocks what rests on it, and no other Pod.
func TestBlocks(t *testing.T) {
	all := []Action{{Stage, ""}, {Publish, "a"}, {
		Publish, "b",
	}, {Bind, "a"}, {Expand, "a"}, {Unpublish, "a"}, {Unpublish, "b"}, {Unstage, ""}, {UnmarkInUse, ""}, {Drop, ""}}
	for failed, want := range map[Action]string{
		{Stage, ""}: "stage publish:a publish:b bind:a grow:a unpublish:a unpublish:b unstage unmark in use " +
			"drop journal",
		{Publish, "a"}:   "publish:a bind:a grow:a unpublish:a",
		{Bind, "a"}:      "publish:a bind:a unpublish:a",
		{Republish, "a"}: "",
		{Expand, "a"}:    "",
		{Unpublish, "a"}: "publish:a bind:a grow:a unpublish:a unstage unmark in use drop journal",
		{Unbind, "b"}:    "publish:b unpublish:b unstage unmark in use drop journal",
	} {
		var got []string
		for _, next := range all {
			if Blocks(failed, next) {
				got = append(got, strings.TrimSuffix(string(next.Verb)+":"+next.Path, ":"))
			}
		}
		if text := strings.Join(got, " "); text != want {
			t.Errorf("%v blocks %s, wanted %s", failed, text, want)
		}
	}
}
