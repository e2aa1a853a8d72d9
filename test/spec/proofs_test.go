package spec

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// module is the path of the repository's modules, which is that of its folders.
const module = "volplane.dev/volplane/"

// source is a function of the tests' code, and the imports of its file.
type source struct {
	*ast.FuncDecl
	imports map[string]string
}

// tests is the tests' code of all modules: by folder, the functions by their
// names, methods behind a dot.
type tests map[string]map[string][]source

// story is what a test does, with all that it calls.
type story struct {
	// table: it has subtests, scripts, a golden file, or rows with a field "argues".
	table bool
	// names are the words in it: the names of its rows are among them.
	names map[string]bool
	seen  map[*ast.FuncDecl]bool
}

// readTests reads all files of tests, and others that import testing.
func readTests(t *testing.T) tests {
	t.Helper()
	all := tests{}
	goFiles(t, func(path string) {
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, path), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		imports := map[string]string{}
		for _, i := range file.Imports {
			imported, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			name := imported[strings.LastIndex(imported, "/")+1:]
			if i.Name != nil {
				name = i.Name.Name
			}
			imports[name] = imported
		}
		if imports["testing"] != "" || strings.HasSuffix(path, "_test.go") {
			all.add(filepath.ToSlash(filepath.Dir(path)), file, imports)
		}
	})
	return all
}

// add adds the functions of a file.
func (all tests) add(folder string, file *ast.File, imports map[string]string) {
	if all[folder] == nil {
		all[folder] = map[string][]source{}
	}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Body == nil {
			continue
		}
		name := f.Name.Name
		if f.Recv != nil {
			name = "." + name
		}
		all[folder][name] = append(all[folder][name], source{f, imports})
	}
}

// TestProofs: an invalid proof is reported, with the reason.
func TestProofs(t *testing.T) {
	all := readTests(t)
	for proof, want := range map[string]string{
		"internal/decide/attach.TestAttachments/what_is_attached_is_left_alone": "",
		"internal/controller/resizer.TestSteps/by_itself/the_wish_comes_last":   "",
		"internal/controller/resizer.TestSteps/by_itself/renamed":               "has no such row",
		"test/crash.TestEveryStep/a_claim_comes_and_goes":                       "",
		"test/kubelets.TestFlexCalls/nothing_but_init/unmount":                  "",
		"internal/cli.TestScripts/programs":                                     "",
		"internal/cli.TestScripts/*":                                            "",
		"test/integration.TestProvision":                                        "",
		"TestProvision":                                                         "is no FOLDER.TestName",
		"test/integration.TestProvisioning":                                     "does not exist",
		"internal/cli.TestScripts": "is a table: name the row, or /* if the proof is the " +
			"whole of it",
		"internal/decide/attach.TestAttachments": "is a table: name the row, or /* if the proof is the " +
			"whole of it",
		"test/integration.TestProvision/*":                                   "is no table",
		"internal/cli.TestScripts/renamed":                                   "has no such row",
		"test/kubelets.TestFlexCalls/nothing_but_init/renamed":               "has no such row",
		"internal/decide/attach.TestAttachments/a_wanted_volume_is_attached": "has no such row",
	} {
		if got := all.wrong(proof); got != want {
			t.Errorf("%s %q, want %q", proof, got, want)
		}
	}
}

// wrong returns what is wrong with a proof, spelled FOLDER.TestName, FOLDER.TestName/SUBTEST as in go test, or
// FOLDER.TestName/* for a whole table.
func (all tests) wrong(proof string) string {
	at := strings.LastIndex(proof, ".Test")
	if at < 0 {
		return "is no FOLDER.TestName"
	}
	folder, path := proof[:at], proof[at+1:]
	name, sub, below := strings.Cut(path, "/")
	if len(all[folder][name]) == 0 {
		return "does not exist"
	}
	s := story{names: map[string]bool{}, seen: map[*ast.FuncDecl]bool{}}
	all.read(&s, folder, name)
	switch {
	case !below && s.table:
		return "is a table: name the row, or /* if the proof is the whole of it"
	case !below:
		return ""
	case sub == "*" && !s.table:
		return "is no table"
	case sub == "*" || s.has(folder, sub):
		return ""
	}
	return "has no such row"
}

// read walks through a function, and those that it calls.
func (all tests) read(s *story, folder, name string) {
	for _, f := range all[folder][name] {
		if s.seen[f.FuncDecl] {
			continue
		}
		s.seen[f.FuncDecl] = true
		ast.Inspect(f.Body, func(n ast.Node) bool {
			s.note(n)
			switch n := n.(type) {
			case *ast.Ident:
				all.read(s, folder, n.Name)
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && f.imports[x.Name] != "" {
					all.read(s, strings.TrimPrefix(f.imports[x.Name], module), n.Sel.Name)
					return false
				}
				all.read(s, folder, "."+n.Sel.Name)
			}
			return true
		})
	}
}

// note records a word of the test, and features of tables: rows with a field "argues" make a table as well.
func (s *story) note(n ast.Node) {
	switch n := n.(type) {
	case *ast.BasicLit:
		if word, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
			s.names[spelled(word)] = true
		}
	case *ast.CallExpr:
		s.table = s.table || makesTable(n)
	case *ast.StructType:
		for _, f := range n.Fields.List {
			s.table = s.table || len(f.Names) > 0 && f.Names[0].Name == "argues"
		}
	}
}

// makesTable says whether a call is one that only tables make.
func makesTable(call *ast.CallExpr) bool {
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	x, ok := f.X.(*ast.Ident)
	return ok && len(call.Args) > 1 &&
		slices.Contains([]string{"t.Run", "testscript.Run", "golden.Equal"}, x.Name+"."+f.Sel.Name)
}

// has says whether a row has the name: it is a word of the test, or a file of its testdata. A nested subtest has both
// names.
func (s *story) has(folder, sub string) bool {
	known := func(name string) bool {
		return s.names[name] || s.table && inTestdata(folder, name)
	}
	if known(sub) {
		return true
	}
	for _, part := range strings.Split(sub, "/") {
		if !known(part) {
			return false
		}
	}
	return true
}

// inTestdata says whether a file has the name, with its ending or without.
func inTestdata(folder, name string) bool {
	found := false
	_ = fs.WalkDir(os.DirFS(filepath.Join(root, folder)), "testdata", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && (d.Name() == name || strings.TrimSuffix(d.Name(), filepath.Ext(d.Name())) == name ||
			entitles(filepath.Join(root, folder, path), name)) {
			found = true
		}
		return nil
	})
	return found
}

// entitles says whether a paragraph of a text file has the name as its title, "# TITLE: WHY".
func entitles(file, name string) bool {
	text, err := os.ReadFile(file)
	if err != nil || filepath.Base(filepath.Dir(file)) != "steps" {
		return false
	}
	for line := range strings.Lines(string(text)) {
		title, isTitle := strings.CutPrefix(strings.TrimSpace(line), "# ")
		title, _, _ = strings.Cut(title, ":")
		if isTitle && spelled(title) == name {
			return true
		}
	}
	return false
}

// spelled is how go writes the name of a subtest.
func spelled(name string) string { return strings.ReplaceAll(name, " ", "_") }
