package whytest

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/explain/statefile"
	"volplane.dev/volplane/internal/explain/survey"
	"volplane.dev/volplane/internal/explain/why"
	"volplane.dev/volplane/internal/testkit/golden"
)

// Row is one scene and the object in question.
type Row struct {
	Name   string
	Ask    string
	Change func(*Scene)
}

// All returns the rows of all kinds of objects.
func All() []Row {
	return slices.Concat(ClaimRows(), AttachmentRows(), ConsumerRows(), GrowthRows(), VolumeRows(), NodeRows(),
		AbsentRows(), MoveRows(), KindRows())
}

// AnyRow is a Row of a type that a test has itself.
type AnyRow interface {
	~struct {
		Name   string
		Ask    string
		Change func(*Scene)
	}
}

// usually is the state of a link that is as it is before a row changes something.
const usually chain.State = "as usual"

// Written explains each row, after a change that is the same for all. A link that does not change with the row is only
// named: it is shown once, in the explanation of the same object, or else of the claim, without a row. The test fails
// when the answer from a state file is another one.
func Written[R AnyRow](t *testing.T, rows []R, first func(*Scene)) string {
	t.Helper()
	var b strings.Builder
	shown := map[string]bool{}
	for _, row := range rows {
		r := Row(row)
		usual, s := New(), New()
		first(usual)
		first(s)
		r.Change(s)
		told, ok := Ask(s.All, r.Ask)
		if !ok {
			t.Fatalf("%s: there is no %s", r.Name, r.Ask)
		}
		text := rendered(t, told)
		isNarrow(t, r.Name, text)
		fromFile, _ := Ask(filed(t, s.All), r.Ask)
		if diff := cmp.Diff(text, rendered(t, fromFile)); diff != "" {
			t.Errorf("%s: what a state file leaves out changes the answer (-live +from the file):\n%s", r.Name, diff)
		}
		before, ok := Ask(usual.All, r.Ask)
		if !ok {
			before, _ = Ask(usual.All, "pvc/data")
		}
		few := changed(told, before)
		if !shown[before.Subject] && slices.ContainsFunc(few.Links, isUsual) {
			shown[before.Subject] = true
			b.WriteString("# " + before.Subject + " as usual\n" + rendered(t, before) + "\n")
		}
		headline, _, _ := strings.Cut(text, "\n\n")
		_, links, _ := strings.Cut(rendered(t, few), "\n\n")
		b.WriteString("# " + r.Name + "\n" + headline + "\n" + strings.ReplaceAll(links, "usual  \n", "usual\n") + "\n")
	}
	return b.String()
}

func isUsual(l chain.Link) bool { return l.State == usually }

// changed returns a chain with the names of links that are as usual. What the headline says is not said again.
func changed(told, usual chain.Chain) chain.Chain {
	few := chain.Chain{Subject: told.Subject}
	for _, l := range told.Links {
		last := len(few.Links) - 1
		switch {
		case slices.Contains(usual.Links, l) && last >= 0 && isUsual(few.Links[last]):
			few.Links[last].Subject += ", " + l.Subject
			continue
		case slices.Contains(usual.Links, l):
			l = chain.Link{Subject: l.Subject, State: usually}
		case l.Because == told.Answer().Because:
			l.Because.Reason, l.Because.Message = l.Because.Reason+", as above", ""
		}
		few.Links = append(few.Links, l)
	}
	return few
}

func rendered(t *testing.T, c chain.Chain) string {
	t.Helper()
	var b strings.Builder
	if err := chain.Render(&b, c, nil); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// filed returns a state as it is read from a file.
func filed(t *testing.T, o state.Objects) state.Objects {
	t.Helper()
	data, err := json.Marshal(statefile.Clean(o))
	var read state.Objects
	if err == nil {
		err = json.Unmarshal(data, &read)
	}
	if err != nil {
		t.Fatal(err)
	}
	return read
}

// Ask explains an object; a1 stands for the long name of the attachment to n1.
func Ask(o state.Objects, subject string) (chain.Chain, bool) {
	c, ok := Explain(o, strings.Replace(subject, "/a1", "/"+AttachmentName(), 1))
	short := strings.NewReplacer(AttachmentName(), "a1")
	c.Subject = short.Replace(c.Subject)
	for i := range c.Links {
		l := &c.Links[i]
		l.Subject, l.Because.Message = short.Replace(l.Subject), short.Replace(l.Because.Message)
	}
	return c, ok
}

// Explain explains an object by its name.
func Explain(o state.Objects, subject string) (chain.Chain, bool) {
	w := why.Of(o)
	switch kind, name, _ := strings.Cut(subject, "/"); kind {
	case "pvc":
		return w.Claim("ns", name)
	case "pv":
		return w.Volume(name)
	case "pod":
		return w.Pod("ns", name)
	case "volumeattachment":
		return w.Attachment(name)
	case "storageclass":
		return survey.Class(w, name)
	case "csidriver":
		return survey.Driver(w, name)
	case "csinode":
		return survey.CSINode(w, name)
	case "namespace":
		return survey.Namespace(w, name)
	case "volumesnapshot":
		return w.Snapshot("ns", name)
	case "volumegroupsnapshot":
		return w.Group("ns", name)
	default:
		return survey.Node(w, name)
	}
}

// Equal compares the text with a file, and each line with the width of a
// terminal.
func Equal(t *testing.T, file, got string) {
	t.Helper()
	golden.Equal(t, "testdata/"+file, got)
	isNarrow(t, file, got)
}

// isNarrow compares each line with the width of a terminal. Titles are wider, and the names of what is as usual.
func isNarrow(t *testing.T, name, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if len([]rune(line)) > 80 && !strings.HasPrefix(line, "# ") && !strings.HasSuffix(line, string(usually)) {
			t.Errorf("%s: line of more than 80 columns: %s", name, line)
		}
	}
}
