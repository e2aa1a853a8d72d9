package volplane_test

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/flex"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/node"
	"volplane.dev/volplane/internal/testkit/golden"
)

const rightsPage = "docs/reference/rights.md"

// TestArchitectureNamesEachFolder wants ARCHITECTURE.md to say what each folder below internal/ is.
func TestArchitectureNamesEachFolder(t *testing.T) {
	text := readText(t, "ARCHITECTURE.md")
	folders, err := os.ReadDir("internal")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range folders {
		if !regexp.MustCompile("`" + f.Name() + "[`/]").MatchString(text) {
			t.Errorf("ARCHITECTURE.md does not name the folder internal/%s", f.Name())
		}
	}
}

// TestPageShowsTheRights wants the table of rights in their page to be what identities declare.
func TestPageShowsTheRights(t *testing.T) {
	var out strings.Builder
	out.WriteString("| Identity | Watches | Asks for | Writes |\n|---|---|---|---|\n")
	for _, d := range app.Declarations() {
		out.WriteString(rightsRow(d.Name, slices.Concat(d.Inputs, d.Outputs)))
	}
	out.WriteString(rightsRow("node agents", node.Rights()))
	generated(t, rightsPage, "rights", out.String())
}

func rightsRow(name string, rights []kube.Access) string {
	var watches, asks, writes []string
	for _, r := range rights {
		what := "`" + r.Resource + "`"
		reads, changes := []string{}, []string{}
		for _, verb := range slices.Sorted(slices.Values(r.Verbs)) {
			if slices.Contains([]string{"get", "list", "watch"}, verb) {
				reads = append(reads, verb)
			} else {
				changes = append(changes, verb)
			}
		}
		switch {
		case slices.Contains(reads, "watch"):
			watches = append(watches, what)
		case len(reads) > 0:
			asks = append(asks, what)
		}
		if len(changes) > 0 {
			writes = append(writes, what+" ("+strings.Join(changes, ", ")+")")
		}
	}
	return fmt.Sprintf("| %s | %s | %s | %s |\n", name, strings.Join(watches, ", "), strings.Join(asks, ", "),
		strings.Join(writes, ", "))
}

// TestOneWriter wants each field to have one writer, or all of its writers to say why it has several.
func TestOneWriter(t *testing.T) {
	all := writers()
	for i, a := range all {
		several := false
		for j, b := range all {
			same := a.kind == b.kind && (kubetest.Covers(a.Path, b.Path) || kubetest.Covers(b.Path, a.Path))
			if i == j || !same || a.who == b.who {
				continue
			}
			several = true
			if a.Shared == "" {
				t.Errorf("%s of %s is written by %s and by %s: have one of them write it, or declare with Shared why it is safe",
					a.Path, a.kind, a.who, b.who)
			}
		}
		if !several && a.Shared != "" {
			t.Errorf("%s of %s is written by %s only: declare it with Only", a.Path, a.kind, a.who)
		}
	}
}

// TestPageShowsTheWriters wants the table of writers in the page of rights to be what identities declare.
func TestPageShowsTheWriters(t *testing.T) {
	byField := map[[2]string][]string{}
	for _, w := range writers() {
		text := w.who
		if w.Shared != "" {
			text += " (" + w.Shared + ")"
		}
		field := [2]string{w.kind, w.Path}
		byField[field] = append(byField[field], text)
	}
	byWriters := map[[2]string][]string{}
	for field, who := range byField {
		row := [2]string{field[0], strings.Join(who, ", ")}
		byWriters[row] = append(byWriters[row], "`"+field[1]+"`")
	}
	rows := slices.SortedFunc(maps.Keys(byWriters), func(a, b [2]string) int { return slices.Compare(a[:], b[:]) })
	var out strings.Builder
	out.WriteString("| Of | Fields | Writer |\n|---|---|---|\n")
	for _, row := range rows {
		paths := slices.Sorted(slices.Values(byWriters[row]))
		fmt.Fprintf(&out, "| `%s` | %s | %s |\n", row[0], strings.Join(paths, ", "), row[1])
	}
	generated(t, rightsPage, "writers", out.String())
}

// writer is an identity that writes a field.
type writer struct {
	who, kind string
	kube.Field
}

// writers returns who declares what; the creation and the deletion of an object count as fields.
func writers() []writer {
	var out []writer
	add := func(who string, rights []kube.Access) {
		for _, r := range rights {
			kind, part, _ := strings.Cut(r.Resource, "/")
			fields := slices.Clone(r.Fields)
			for verb, path := range map[string]string{"create": "creation", "delete": "deletion"} {
				named := slices.ContainsFunc(fields, func(f kube.Field) bool { return f.Path == path })
				if part == "" && slices.Contains(r.Verbs, verb) && !named {
					fields = append(fields, kube.Field{Path: path})
				}
			}
			for _, f := range fields {
				if w := (writer{who, kind, f}); !slices.Contains(out, w) {
					out = append(out, w)
				}
			}
		}
	}
	for _, d := range app.Declarations() {
		add(d.Name, d.Outputs)
	}
	add("node agent", node.Writes())
	add("FlexVolume host", flex.Writes())
	return out
}

// TestEveryWriteNamesFields wants each right to change objects to declare the fields.
func TestEveryWriteNamesFields(t *testing.T) {
	for _, d := range app.Declarations() {
		for _, r := range d.Outputs {
			changes := slices.Contains(r.Verbs, "update") || slices.Contains(r.Verbs, "patch")
			if changes && len(r.Fields) == 0 {
				t.Errorf("%s may change %s, and declares no field of it", d.Name, r.Resource)
			}
		}
	}
}

// generated wants a text between the marks of its name in a page; UPDATE_GOLDEN=1 writes it there.
func generated(t *testing.T, page, name, want string) {
	t.Helper()
	begin, end := "<!-- "+name+": UPDATE_GOLDEN=1 go test . writes this -->\n", "<!-- end of "+name+" -->\n"
	before, rest, found := strings.Cut(readText(t, page), begin)
	_, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("%s has no %q with its end", page, strings.TrimSpace(begin))
	}
	golden.Equal(t, page, before+begin+want+end+after)
}
