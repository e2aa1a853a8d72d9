package install

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	decide "volplane.dev/volplane/internal/decide/flex"
)

// TestSkeleton: what is written works, by its own test.
func TestSkeleton(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	name := decide.Name{Vendor: "corp.example.org", Driver: "files"}
	paths, err := Skeleton(name, dir)
	if err != nil || len(paths) != 2 {
		t.Fatal(paths, err)
	}
	for _, shell := range []string{"dash", "bash"} {
		if out, err := exec.CommandContext(t.Context(), shell, filepath.Join(dir, "test.sh"),
			shell).CombinedOutput(); err != nil || string(out) != "PASS\n" {
			t.Errorf("%s: %v\n%s", shell, err, out)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "files"))
	if err != nil || strings.Contains(string(text), "skeleton") {
		t.Errorf("the driver speaks of a skeleton, %v", err)
	}
	if c := Check(t.Context(), name, filepath.Join(dir, "files"), true); decide.Worst(c.Findings) != decide.Pass {
		t.Errorf("%+v", c.Findings)
	}
	if _, err := Skeleton(name, dir); err == nil {
		t.Error("it is overwritten")
	}
}
