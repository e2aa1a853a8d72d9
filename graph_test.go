package volplane_test

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/flex"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/node"
	"volplane.dev/volplane/internal/testkit/golden"
)

// Pages with generated tables.
const (
	layersPage = "docs/reference/layers.md"
	rightsPage = "docs/reference/rights.md"
)

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

// TestPageShowsTheLayers wants the floors and the table of their page to be those of the table of layers.
func TestPageShowsTheLayers(t *testing.T) {
	g := graphOf(t)
	generated(t, layersPage, "floors", g.floors())
	generated(t, layersPage, "layers", g.table())
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

// TestEveryImportIsUsed refuses what a layer may import and does not: the table says what is.
func TestEveryImportIsUsed(t *testing.T) {
	g := graphOf(t)
	for i := range g.rows {
		row := &g.rows[i]
		for _, may := range row.may {
			if !slices.ContainsFunc(g.imports[row.prefix], func(name string) bool { return allows(may, name) }) {
				t.Errorf("%s may import %s and does not: remove it from the table", row.prefix, may)
			}
		}
	}
}

// graph is the table of layers with the packages that there are.
type graph struct {
	rows []layer
	// imports are the packages of this repository that those of a row import, by its prefix.
	imports map[string][]string
	// below are the rows that a row may import from.
	below map[string][]string
	// floor of a row is higher than those of all that it may import.
	floor map[string]int
}

func graphOf(t *testing.T) graph {
	t.Helper()
	g := graph{imports: map[string][]string{}, below: map[string][]string{}, floor: map[string]int{}}
	packages := map[string][]string{}
	for _, p := range listPackages(t) {
		packages[strings.TrimPrefix(p.ImportPath, module)] = p.Imports
	}
	maps.Copy(packages, standaloneImports(t))
	all := append(layers(), standaloneLayers()...)
	g.rows = slices.DeleteFunc(slices.Clone(all), func(l layer) bool { return l.reason == forTests })
	for name, imports := range packages {
		if row := rowOf(all, name); row != nil && row.reason != forTests {
			g.add(name, row, imports)
		}
	}
	for _, row := range g.rows {
		g.climb(t, row.prefix, nil)
	}
	return g
}

// add notes what a package of a row imports, and who may import the package.
func (g *graph) add(name string, row *layer, imports []string) {
	for _, i := range imports {
		if own, ok := strings.CutPrefix(i, module); ok {
			g.imports[row.prefix] = append(g.imports[row.prefix], own)
		}
	}
	for _, from := range g.rows {
		may := slices.ContainsFunc(from.may, func(m string) bool { return allows(m, name) })
		if may && from.prefix != row.prefix && !slices.Contains(g.below[from.prefix], row.prefix) {
			g.below[from.prefix] = append(g.below[from.prefix], row.prefix)
		}
	}
}

// climb sets the floor of a row and of all below it.
func (g *graph) climb(t *testing.T, prefix string, from []string) int {
	t.Helper()
	if from = append(from, prefix); slices.Contains(from[:len(from)-1], prefix) {
		t.Fatalf("layers may import each other: %s", strings.Join(from, " > "))
	}
	if floor, ok := g.floor[prefix]; ok {
		return floor
	}
	floor := 0
	for _, b := range g.below[prefix] {
		floor = max(floor, 1+g.climb(t, b, from))
	}
	g.floor[prefix] = floor
	return floor
}

// floors draws the house, the highest floor first, with a column for each wing.
func (g *graph) floors() string {
	wings := []string{"", "internal/cli/", "internal/explain/", "internal/node/", "internal/flex/", "standalone/"}
	lines := [][]string{{"floor", "", "cli/", "explain/", "node/", "flex/", "standalone/"}}
	for floor := slices.Max(slices.Collect(maps.Values(g.floor))); floor >= 0; floor-- {
		rooms := make([][]string, len(wings))
		for prefix, on := range g.floor {
			if on != floor {
				continue
			}
			wing := max(0, slices.IndexFunc(wings, func(w string) bool { return w != "" && strings.HasPrefix(prefix, w) }))
			rooms[wing] = append(rooms[wing], shown(strings.TrimPrefix(prefix, wings[wing])))
		}
		line := []string{strconv.Itoa(floor)}
		for _, in := range rooms {
			slices.Sort(in)
			line = append(line, strings.Join(in, " "))
		}
		lines = append(lines, line)
	}
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 3, ' ', 0)
	for _, line := range lines {
		fmt.Fprintln(w, strings.Join(line, "\t"))
	}
	w.Flush()
	return "```\n" + regexp.MustCompile(` +\n`).ReplaceAllString(out.String(), "\n") + "```\n"
}

// table has a row for each layer, the highest first.
func (g *graph) table() string {
	rows := slices.Clone(g.rows)
	slices.SortFunc(rows, func(a, b layer) int {
		return cmp.Or(g.floor[b.prefix]-g.floor[a.prefix], strings.Compare(shown(a.prefix), shown(b.prefix)))
	})
	var out strings.Builder
	out.WriteString("| Floor | Packages | May import | Rule |\n|---|---|---|---|\n")
	for _, row := range rows {
		var may []string
		for _, m := range row.may {
			may = append(may, "`"+shown(m)+"`")
		}
		slices.Sort(may)
		fmt.Fprintf(&out, "| %d | `%s` | %s | %s |\n", g.floor[row.prefix], shown(row.prefix), strings.Join(may, ", "),
			row.reason)
	}
	return out.String()
}

// shown is the name of a package, or of all in a folder, as people read it.
func shown(prefix string) string {
	name := strings.TrimPrefix(prefix, anyInternal)
	if strings.HasSuffix(name, "/") {
		name += "*"
	}
	return name
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
