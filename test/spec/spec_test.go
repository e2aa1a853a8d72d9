package spec

import (
	"errors"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"volplane.dev/volplane/internal/sidecar"
)

// root is the folder of the repository.
const root = "../.."

// row is one line of the table.
type row struct {
	id, requirement, how string
	proofs               []string
}

// verdict is the first word of how a requirement is met.
func (r row) verdict() string { return strings.TrimSuffix(strings.Fields(r.how + " ?")[0], ":") }

// rows reads the table.
func rows(t *testing.T) []row {
	t.Helper()
	data, err := os.ReadFile("requirements.tsv")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
	if lines[0] != "id\trequirement\thow\tproof" {
		t.Fatalf("the columns are %q", lines[0])
	}
	var all []row
	for i, line := range lines[1:] {
		f := strings.Split(line, "\t")
		if len(f) != 4 {
			t.Fatalf("line %d has %d columns", i+2, len(f))
		}
		all = append(all, row{id: f[0], requirement: f[1], how: f[2], proofs: strings.Fields(f[3])})
	}
	return all
}

// TestEveryRequirementHasARow, and one only.
func TestEveryRequirementHasARow(t *testing.T) {
	want := map[string]int{"S1": 127, "S3": 32, "S4": 70, "F": 60, "B": 50}
	id := regexp.MustCompile(`^(S1|S3|S4|F|B)-([0-9]{3})$`)
	seen := map[string]bool{}
	for _, r := range rows(t) {
		m := id.FindStringSubmatch(r.id)
		if m == nil {
			t.Errorf("%q is no id", r.id)
			continue
		}
		if n, err := strconv.Atoi(m[2]); err != nil || n < 1 || n > want[m[1]] {
			t.Errorf("there is no requirement %s", r.id)
		}
		if seen[r.id] {
			t.Errorf("%s has two rows", r.id)
		}
		seen[r.id] = true
		if r.requirement == "" {
			t.Errorf("%s says nothing", r.id)
		}
	}
	total := 0
	for _, n := range want {
		total += n
	}
	if len(seen) != total {
		t.Errorf("%d requirements have a row, there are %d", len(seen), total)
	}
}

// TestEveryRequirementIsProved: every requirement has a proof unless its work has not begun.
func TestEveryRequirementIsProved(t *testing.T) {
	all := readTests(t)
	how := regexp.MustCompile(`^(same|later|(differs|missing): .+)$`)
	count := map[string]int{}
	for _, r := range rows(t) {
		count[r.verdict()]++
		switch {
		case !how.MatchString(r.how):
			t.Errorf("%s is met %q: write same, later, differs: WHY or missing: WHAT", r.id, r.how)
		case r.verdict() == "missing":
			t.Logf("%s is %s", r.id, r.how)
		case len(r.proofs) == 0 && r.verdict() != "later":
			t.Errorf("%s has no proof", r.id)
		}
		for _, p := range r.proofs {
			if wrong := all.wrong(p); wrong != "" {
				t.Errorf("%s is proved by %s, which %s", r.id, p, wrong)
			}
		}
	}
	t.Logf("same %d, differs %d, later %d, missing %d", count["same"], count["differs"], count["later"], count["missing"])
}

// TestFlagsOfRows: a row that says that there is no flag names the one that is missing, and the sidecars' table of
// flags does not have it. Any other flag that a row names is in the table, or belongs to a command of volplane.
func TestFlagsOfRows(t *testing.T) {
	known := []string{"--root-dir"}
	for _, f := range sidecar.Flags() {
		known = append(known, "--"+f.Name)
	}
	flag, missing := regexp.MustCompile(`--[a-z][a-z-]*`), regexp.MustCompile(`\bno flag\b( --[a-z-]+)?`)
	for _, r := range rows(t) {
		for _, m := range missing.FindAllStringSubmatch(r.how, -1) {
			name := strings.TrimSpace(m[1])
			if name == "" || slices.Contains(known, name) {
				t.Errorf("%s says %q: name a flag that is not there", r.id, m[0])
			}
		}
		for _, name := range flag.FindAllString(missing.ReplaceAllString(r.how, ""), -1) {
			if !slices.Contains(known, name) {
				t.Errorf("%s speaks of %s, and there is no such flag", r.id, name)
			}
		}
	}
}

// TestReportsArePlayed: the tests exist that play the bug reports which test/e2e/reports does not play itself.
func TestReportsArePlayed(t *testing.T) {
	all := readTests(t)
	data, err := os.ReadFile(filepath.Join(root, "test/e2e/reports/testdata/elsewhere.txt"))
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for line := range strings.Lines(string(data)) {
		proof, is := strings.CutPrefix(strings.TrimSpace(line), "Proof: ")
		if !is {
			continue
		}
		seen++
		if wrong := all.wrong(proof); wrong != "" {
			t.Errorf("a report is played by %s, which %s", proof, wrong)
		}
	}
	if seen == 0 {
		t.Error("no report is played elsewhere")
	}
}

// goFiles visits the Go files of all modules, by their paths below root.
func goFiles(t *testing.T, visit func(path string)) {
	t.Helper()
	seen := 0
	err := fs.WalkDir(os.DirFS(root), ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (path == ".git" || path == "bin"):
			return fs.SkipDir
		case d.Type().IsRegular() && strings.HasSuffix(path, ".go"):
			seen++
			visit(path)
		}
		return nil
	})
	if err != nil || seen < 100 {
		t.Fatal(seen, "files of Go are there;", err)
	}
}

// TestCitedRequirementsExist: every requirement cited in a comment exists.
func TestCitedRequirementsExist(t *testing.T) {
	known := map[string]bool{}
	for _, r := range rows(t) {
		known[r.id] = true
	}
	id := regexp.MustCompile(`\b(S[0-9]|F|B)-[0-9]{3}\b`)
	goFiles(t, func(path string) {
		data, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		for _, cited := range id.FindAllString(string(data), -1) {
			if !known[cited] {
				t.Errorf("%s cites %s, which is no requirement", path, cited)
			}
		}
	})
}

// TestWhoCallsDrivers: the work of Kubernetes' own controllers is done here without drivers as well (S1-019).
func TestWhoCallsDrivers(t *testing.T) {
	theirs := []string{"attachdetach", "binder", "ephemeral", "nodelife", "placement", "protection"}
	seen := map[string]bool{}
	goFiles(t, func(path string) {
		name, below := strings.CutPrefix(filepath.ToSlash(filepath.Dir(path)), "internal/controller/")
		if !below || strings.HasSuffix(path, "_test.go") || !slices.Contains(theirs, name) {
			return
		}
		seen[name] = true
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, path), nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range file.Imports {
			if strings.HasPrefix(i.Path.Value, `"volplane.dev/volplane/internal/csi`) ||
				strings.Contains(i.Path.Value, "container-storage-interface") {
				t.Errorf("%s imports %s", path, i.Path.Value)
			}
		}
	})
	if len(seen) != len(theirs) {
		t.Errorf("of %v only %v are there", theirs, seen)
	}
}

// TestNoLibrary: Go does not let another module import what it would need for its own attacher (S3-032).
func TestNoLibrary(t *testing.T) {
	top, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	version, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	language := regexp.MustCompile(`(?m)^go .*$`).FindString(string(version))
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.work":        language + "\n\nuse (\n\t.\n\t" + top + "\n)\n",
		"go.mod":         "module example.com/stranger\n\n" + language + "\n",
		"attach/main.go": "package main\n\nimport _ \"" + module + "internal/controller/attacher\"\n\nfunc main() {}\n",
		"main/main.go":   "package main\n\nimport _ \"" + module + "cmd/volplane\"\n\nfunc main() {}\n",
	} {
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o750), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for folder, want := range map[string]string{
		"./attach": "use of internal package " + module + "internal/controller/attacher not allowed",
		"./main":   "is a program, not an importable package",
	} {
		list := exec.CommandContext(t.Context(), "go", "list", "-e", "-deps", "-f", "{{with .Error}}{{.}}{{end}}", folder)
		list.Dir, list.Env = dir, append(os.Environ(), "GOWORK="+filepath.Join(dir, "go.work"), "GOFLAGS=-buildvcs=false")
		if out, err := list.CombinedOutput(); err != nil || !strings.Contains(string(out), want) {
			t.Errorf("go says of %s: %v %s", folder, err, out)
		}
	}
	goFiles(t, func(path string) {
		first, _, _ := strings.Cut(path, "/")
		apart := []string{"internal", "standalone", "test", "release"}
		if strings.HasSuffix(path, "_test.go") || slices.Contains(apart, first) {
			return
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, path), nil, parser.PackageClauseOnly)
		if err != nil {
			t.Fatal(err)
		}
		if file.Name.Name != "main" {
			t.Errorf("%s can be imported from outside", path)
		}
	})
}
