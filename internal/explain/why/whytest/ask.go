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

// Written explains each row, after a change that is the same for all. The test fails when
// the answer from a state file is another one.
func Written[R AnyRow](t *testing.T, rows []R, first func(*Scene)) string {
	t.Helper()
	var b strings.Builder
	for _, row := range rows {
		r := Row(row)
		s := New()
		first(s)
		r.Change(s)
		told, ok := Ask(s.All, r.Ask)
		if !ok {
			t.Fatalf("%s: there is no %s", r.Name, r.Ask)
		}
		text := rendered(t, told)
		fromFile, _ := Ask(filed(t, s.All), r.Ask)
		if diff := cmp.Diff(text, rendered(t, fromFile)); diff != "" {
			t.Errorf("%s: what a state file leaves out changes the answer (-live +from the file):\n%s", r.Name, diff)
		}
		b.WriteString("# " + r.Name + "\n" + text + "\n")
	}
	return b.String()
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
	for line := range strings.Lines(got) {
		if len([]rune(strings.TrimSuffix(line, "\n"))) > 80 && !strings.HasPrefix(line, "# ") {
			t.Errorf("%s: line of more than 80 columns: %s", file, line)
		}
	}
}
