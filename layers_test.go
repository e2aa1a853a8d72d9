package volplane_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "volplane.dev/volplane/"

// TestLayers refuses imports that go upwards or sideways. Test files are not
// looked at: they may join what they test.
func TestLayers(t *testing.T) {
	for _, p := range listPackages(t) {
		name := strings.TrimPrefix(p.ImportPath, module)
		if name+"/" == module {
			continue // this package, which holds tests only
		}
		if p.Error != nil {
			t.Errorf("%s: %s", name, strings.TrimSpace(p.Error.Err))
		}
		row := rowOf(layers(), name)
		if row == nil {
			t.Errorf("%s has no row in the table of layers: add one with its first file", name)
			continue
		}
		row.check(t, name, p.Imports, p.Deps)
	}
}

// TestStandaloneLayers does the same for the module that go list, run here,
// does not see.
func TestStandaloneLayers(t *testing.T) {
	for name, imports := range standaloneImports(t) {
		if row := rowOf(standaloneLayers(), name); row == nil {
			t.Errorf("%s has no row in the table of layers", name)
		} else {
			row.check(t, name, imports, nil)
		}
	}
}

// standaloneImports returns what the packages of the heavy module import.
func standaloneImports(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for _, f := range goFiles(t) {
		name := filepath.ToSlash(filepath.Dir(f.path))
		if !strings.HasPrefix(name, "standalone/") || f.test || strings.HasSuffix(name, "test") {
			continue
		}
		for _, spec := range f.syntax.Imports {
			path, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			out[name] = append(out[name], path)
		}
	}
	return out
}

// TestWing keeps what is about FlexVolume drivers behind one door: other packages about volumes, nodes and Pods use
// what is recorded about a driver on a Node (decide/note), and no such name.
func TestWing(t *testing.T) {
	knows := []string{
		"internal/flex", "internal/decide/flex", "internal/decide/note", "internal/decide/migrate", "internal/volume",
		"internal/manifest", "internal/app", "internal/explain/why/whytest", "internal/cli/flex",
	}
	for _, f := range goFiles(t) {
		dir := filepath.ToSlash(filepath.Dir(f.path))
		verb := below("internal/cli", dir) && strings.HasPrefix(filepath.Base(f.path), "flex")
		if !below(anyInternal, dir) || f.test || verb ||
			slices.ContainsFunc(knows, func(p string) bool { return below(p, dir) }) {
			continue
		}
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			name := ""
			switch n := n.(type) {
			case *ast.ImportSpec:
				name = n.Path.Value
			case *ast.Ident:
				name = n.Name
			}
			if dir == "internal/cli" && (name == "flex" || strings.HasSuffix(name, `/internal/cli/flex"`)) {
				return true // joins its verbs to the others
			}
			if strings.Contains(strings.ToLower(name), "flex") {
				t.Errorf("%s says %s: what it has to know of such drivers is in internal/decide/note", f.path, name)
			}
			return true
		})
	}
}

// TestEveryLayerHasPackages refuses rows of packages that are gone.
func TestEveryLayerHasPackages(t *testing.T) {
	dirs := map[string]bool{}
	for _, f := range goFiles(t) {
		dirs[filepath.ToSlash(filepath.Dir(f.path))] = true
	}
	for _, row := range append(layers(), standaloneLayers()...) {
		found := false
		for dir := range dirs {
			found = found || below(row.prefix, dir)
		}
		if !found {
			t.Errorf("no package is below %s: remove the row", row.prefix)
		}
	}
}

func rowOf(rows []layer, name string) *layer {
	for i := range rows {
		if below(rows[i].prefix, name) {
			return &rows[i]
		}
	}
	return nil
}

// below says whether a package is at the prefix or below it; one that ends in
// a slash is a folder and no package itself.
func below(prefix, name string) bool {
	return name == prefix || strings.HasPrefix(name, strings.TrimSuffix(prefix, "/")+"/")
}

// allows says whether a package is one that may be imported: the path itself
// or, where that ends in a slash, any below it.
func allows(may, name string) bool {
	return name == may || strings.HasSuffix(may, "/") && strings.HasPrefix(name, may)
}

func (l *layer) check(t *testing.T, name string, imports, deps []string) {
	t.Helper()
	for _, i := range imports {
		own, ok := strings.CutPrefix(i, module)
		if ok && !slices.ContainsFunc(l.may, func(may string) bool { return allows(may, own) }) {
			t.Errorf("%s imports %s: %s", name, own, l.reason)
		}
		if slices.Contains(l.never, i) {
			t.Errorf("%s imports %s: %s", name, i, l.reason)
		}
	}
	for _, n := range l.never {
		reached := func(d string) bool { return d == n || strings.HasPrefix(d, n+"/") }
		if i := slices.IndexFunc(deps, reached); i >= 0 && isModule(n) {
			t.Errorf("%s reaches %s: %s", name, deps[i], l.reason)
		}
	}
}

// isModule says whether a path is one of a module, not of the standard
// library.
func isModule(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return strings.Contains(first, ".")
}

type listed struct {
	ImportPath    string
	Imports, Deps []string
	Error         *struct{ Err string }
}

func listPackages(t *testing.T) []listed {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-e", "-json=ImportPath,Imports,Deps,Error",
		"./...").Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		t.Fatalf("go list: %v", err)
	}
	var all []listed
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatalf("go list: %v", err)
		}
		all = append(all, p)
	}
}
