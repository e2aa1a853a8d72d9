package spec

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"volplane.dev/volplane/internal/controller/provisioner"
	"volplane.dev/volplane/internal/kube"
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
	want := map[string]int{"S1": 127, "S3": 32, "S4": 70, "F": 60}
	id := regexp.MustCompile(`^(S1|S3|S4|F)-([0-9]{3})$`)
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

// TestEveryRequirementIsProved unless its work has not begun.
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

// TestCitedRequirementsExist: what a comment calls a requirement is one.
func TestCitedRequirementsExist(t *testing.T) {
	known := map[string]bool{}
	for _, r := range rows(t) {
		known[r.id] = true
	}
	id := regexp.MustCompile(`\b(S[0-9]|F)-[0-9]{3}\b`)
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

// TestWhoCallsDrivers: what Kubernetes' own controllers do is done here without
// drivers as well (S1-019).
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
			if strings.HasPrefix(i.Path.Value, `"volplane.dev/volplane/internal/csi`) || strings.Contains(i.Path.Value, "container-storage-interface") {
				t.Errorf("%s imports %s", path, i.Path.Value)
			}
		}
	})
	if len(seen) != len(theirs) {
		t.Errorf("of %v only %v are there", theirs, seen)
	}
}

// TestProvisionerReadsNodesFromItsCache: it is told of all Nodes and asks for
// none (S1-031).
func TestProvisionerReadsNodesFromItsCache(t *testing.T) {
	told := func(a kube.Access) bool { return a.Resource == "nodes" && slices.Contains(a.Verbs, "watch") }
	if !slices.ContainsFunc(provisioner.Declaration().Inputs, told) {
		t.Error("the provisioner is not told of Nodes")
	}
	goFiles(t, func(path string) {
		if strings.HasSuffix(path, "_test.go") || filepath.ToSlash(filepath.Dir(path)) != "internal/controller/provisioner" {
			return
		}
		data, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(data), "CoreV1().Nodes()") {
			t.Errorf("%s asks for Nodes", path)
		}
	})
}

// TestNoLibrary: what is to be installed has no package that another module could
// import (S3-032).
func TestNoLibrary(t *testing.T) {
	goFiles(t, func(path string) {
		top, _, _ := strings.Cut(path, "/")
		if strings.HasSuffix(path, "_test.go") || slices.Contains([]string{"internal", "standalone", "test"}, top) {
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
