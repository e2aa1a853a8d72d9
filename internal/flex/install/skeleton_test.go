package install

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/flex/check"
	"volplane.dev/volplane/internal/workshop/finding"
)

// TestSkeleton: what is written works, by its own test, in each language and in both kinds.
func TestSkeleton(t *testing.T) {
	for language, shells := range map[string][]string{Shell: {"dash", "bash"}, Python: {"sh"}, Go: {"sh"}} {
		for _, attach := range []bool{false, true} {
			name := language + " that mounts"
			if attach {
				name = language + " that attaches"
			}
			t.Run(name, func(t *testing.T) {
				Skeleton{Name: "corp.example.org/files", Language: language, Attach: attach}.works(t, shells)
			})
		}
	}
	if _, err := (Skeleton{Name: "files", Language: "perl"}).Write(t.TempDir()); err == nil ||
		!strings.Contains(err.Error(), "sh, python") {
		t.Error(err)
	}
}

func (s Skeleton) works(t *testing.T, shells []string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "new")
	paths, err := s.Write(dir)
	if err != nil || filepath.Base(paths[len(paths)-1]) != "test.sh" {
		t.Fatal(paths, err)
	}
	runsTest(t, dir, shells)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil || strings.Contains(string(text), "skeleton") || strings.Contains(string(text), "[end]") {
			t.Errorf("%s speaks of a skeleton, %v", path, err)
		}
	}
	name := decide.Name{Vendor: "corp.example.org", Driver: "files"}
	c := check.Driver(t.Context(), name, filepath.Join(dir, "files"), true)
	if finding.Worst(c.Findings) != finding.Pass || c.Capabilities.Attach != s.Attach {
		t.Errorf("%+v", c)
	}
	if _, err := s.Write(dir); err == nil {
		t.Error("it is overwritten")
	}
}

// runsTest runs the test of a skeleton.
func runsTest(t *testing.T, dir string, shells []string) {
	t.Helper()
	for _, shell := range shells {
		out, err := exec.CommandContext(t.Context(), shell, filepath.Join(dir, "test.sh"), shell).CombinedOutput()
		if err != nil || string(out) != "PASS\n" {
			t.Errorf("%s: %v\n%s", shell, err, out)
		}
	}
}
