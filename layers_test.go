package volplane_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
)

const (
	module     = "volplane.dev/volplane/"
	layersPage = "docs/reference/layers.md"
)

// TestRules refuses imports that the table of rules does not allow. Test files are not looked at: they may join what
// they test.
func TestRules(t *testing.T) {
	packages := listPackages(t)
	for _, r := range rules() {
		met := map[string]bool{}
		for _, p := range packages {
			for _, of := range r.of {
				met[of] = met[of] || covers(of, p.name)
			}
			if coversAny(r.of, p.name) && !coversAny(r.but, p.name) {
				r.check(t, p)
			}
		}
		for _, of := range r.of {
			if !met[of] {
				t.Errorf("no package is at %s: remove it from the rule %q", of, r.because)
			}
		}
	}
}

func (r rule) check(t *testing.T, p listed) {
	t.Helper()
	for _, i := range p.imports {
		name, own := strings.CutPrefix(i, module)
		if own && r.only != nil && !coversAny(r.only, name) || coversAny(r.never, name) {
			t.Errorf("%s imports %s: %s", p.name, name, r.because)
		}
	}
	for _, d := range p.deps {
		if slices.ContainsFunc(r.never, func(n string) bool { return isModule(n) && covers(n+"/", d+"/") }) {
			t.Errorf("%s reaches %s: %s", p.name, d, r.because)
		}
	}
}

// covers says whether a path of a rule means a package.
func covers(path, name string) bool {
	return name == path || strings.HasSuffix(path, "/") && strings.HasPrefix(name, path)
}

func coversAny(paths []string, name string) bool {
	return slices.ContainsFunc(paths, func(path string) bool { return covers(path, name) })
}

// isModule says whether a path is one of another module, not of this repository or of the standard library.
func isModule(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return strings.Contains(first, ".")
}

// TestWing keeps what is about FlexVolume drivers behind one door: other packages about volumes, nodes and Pods use
// what is recorded about a driver on a Node (decide/driverstatus), and no such name.
func TestWing(t *testing.T) {
	knows := []string{
		"internal/flex", "internal/flex/", "internal/decide/flex", "internal/decide/driverstatus", "internal/decide/migrate",
		"internal/volume", "internal/sidecar/manifest", "internal/app", "internal/app/", "internal/explain/why/whytest",
		"internal/cli/flex",
	}
	for _, f := range goFiles(t) {
		dir := filepath.ToSlash(filepath.Dir(f.path))
		verb := strings.HasPrefix(dir, "internal/cli") && strings.HasPrefix(filepath.Base(f.path), "flex")
		if !covers(anyInternal, dir) || f.test || verb || coversAny(knows, dir) {
			continue
		}
		for _, name := range flexNames(f) {
			if dir == "internal/cli" && (name == "flex" || strings.HasSuffix(name, `/internal/cli/flex"`)) {
				continue // joins its verbs to the others
			}
			t.Errorf("%s says %s: what it has to know of such drivers is in internal/decide/driverstatus", f.path, name)
		}
	}
}

// flexNames returns the imports and identifiers of a file that are about FlexVolumes.
func flexNames(f goFile) []string {
	var out []string
	ast.Inspect(f.syntax, func(n ast.Node) bool {
		name := ""
		switch n := n.(type) {
		case *ast.ImportSpec:
			name = n.Path.Value
		case *ast.Ident:
			name = n.Name
		}
		if strings.Contains(strings.ToLower(name), "flex") {
			out = append(out, name)
		}
		return true
	})
	return out
}

// TestPageShowsTheLayers wants the page of layers to show what is imported, and the rules.
func TestPageShowsTheLayers(t *testing.T) {
	generated(t, layersPage, "floors", floors(listPackages(t)))
	var out strings.Builder
	out.WriteString("| Packages | Import only | Never import | Why |\n|---|---|---|---|\n")
	for _, r := range rules() {
		of := shown(r.of)
		if len(r.but) > 0 {
			of += ", but " + shown(r.but)
		}
		only := shown(r.only)
		if r.only != nil && only == "" {
			only = "nothing of this repository"
		}
		fmt.Fprintf(&out, "| %s | %s | %s | %s |\n", of, only, shown(r.never), r.because)
	}
	generated(t, layersPage, "rules", out.String())
}

// shown names packages as people read them. Those that are for tests are left out.
func shown(paths []string) string {
	var out []string
	for _, p := range paths {
		if !slices.Contains(forTests(), p) {
			if strings.HasSuffix(p, "/") {
				p += "*"
			}
			out = append(out, "`"+strings.TrimPrefix(p, anyInternal)+"`")
		}
	}
	if out == nil && len(paths) > 0 {
		return "what is for tests"
	}
	return strings.Join(out, ", ")
}

// roomOf returns the name of a package, or of a folder, in the picture of floors.
func roomOf(path string) string {
	for _, folder := range []string{decidePrefix, "internal/controller/", "standalone/apiserver/"} {
		if strings.HasPrefix(path, folder) && path != "internal/controller/contents" {
			path = folder
		}
	}
	if strings.HasSuffix(path, "/") {
		path += "*"
	}
	return strings.TrimPrefix(path, anyInternal)
}

// floors draws the house, the highest floor first, with a column for each wing. A room stands one floor above the
// highest one of those that it imports.
func floors(packages []listed) string {
	below := map[string][]string{}
	for _, p := range packages {
		if coversAny(forTests(), p.name) {
			continue
		}
		room := roomOf(p.name)
		below[room] = append(below[room], p.own()...)
	}
	heights := map[string]int{}
	var climb func(room string) int
	climb = func(room string) int {
		if height, known := heights[room]; known {
			return height
		}
		height := 0
		for _, b := range below[room] {
			if to := roomOf(b); to != room {
				height = max(height, 1+climb(to))
			}
		}
		heights[room] = height
		return height
	}
	wings := []string{"", "cli/", "explain/", "node/", "flex/", "standalone/"}
	rooms := map[int]map[string][]string{}
	for _, room := range slices.Sorted(maps.Keys(below)) {
		wing := wings[max(0, slices.IndexFunc(wings, func(w string) bool { return w != "" && strings.HasPrefix(room, w) }))]
		floor := climb(room)
		if rooms[floor] == nil {
			rooms[floor] = map[string][]string{}
		}
		rooms[floor][wing] = append(rooms[floor][wing], strings.TrimPrefix(room, wing))
	}
	var out bytes.Buffer
	w := tabwriter.NewWriter(&out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "floor\t"+strings.Join(wings, "\t"))
	for _, floor := range slices.Backward(slices.Sorted(maps.Keys(rooms))) {
		line := strconv.Itoa(floor)
		for _, wing := range wings {
			line += "\t" + strings.Join(rooms[floor][wing], " ")
		}
		fmt.Fprintln(w, line)
	}
	w.Flush()
	return "```\n" + regexp.MustCompile(` +\n`).ReplaceAllString(out.String(), "\n") + "```\n"
}

// listed is a package with what it imports, and what it reaches by that.
type listed struct {
	name          string
	imports, deps []string
}

// own returns the packages of this repository that a package imports.
func (p listed) own() []string {
	var out []string
	for _, i := range p.imports {
		if own, ok := strings.CutPrefix(i, module); ok {
			out = append(out, own)
		}
	}
	return out
}

// listPackages returns the packages of the modules at the top and in standalone/. Only direct imports are known of the
// latter, which go list, run here, does not see.
func listPackages(t *testing.T) []listed {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-e", "-json=ImportPath,Imports,Deps,Error",
		"./...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []listed
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var p struct {
			ImportPath    string
			Imports, Deps []string
			Error         *struct{ Err string }
		}
		if err := d.Decode(&p); err != nil {
			t.Fatal(err)
		}
		if p.Error != nil {
			t.Errorf("%s: %s", p.ImportPath, p.Error.Err)
		}
		if name, ok := strings.CutPrefix(p.ImportPath, module); ok {
			all = append(all, listed{name, p.Imports, p.Deps})
		}
	}
	byName := map[string][]string{}
	for _, f := range goFiles(t) {
		name := filepath.ToSlash(filepath.Dir(f.path))
		if f.test || !strings.HasPrefix(name, "standalone/") {
			continue
		}
		for _, spec := range f.syntax.Imports {
			path, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			byName[name] = append(byName[name], path)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		all = append(all, listed{name, byName[name], byName[name]})
	}
	return all
}
