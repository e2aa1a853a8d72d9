package flex

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/flex/doctor"
	"volplane.dev/volplane/internal/flex/install"
	"volplane.dev/volplane/internal/workshop/finding"
)

// TestSkeletonsAreWell: the doctor finds nothing in any driver that is written to start from.
func TestSkeletonsAreWell(t *testing.T) {
	for _, language := range install.Languages() {
		for _, attach := range []bool{false, true} {
			kind := map[bool]string{false: "mounts", true: "attaches"}[attach]
			t.Run(language+" "+kind, func(t *testing.T) { wellSkeleton(t, language, attach) })
		}
	}
	if _, err := (install.Skeleton{Name: "Example.com/files", Language: install.Shell}).Write(t.TempDir()); err == nil {
		t.Error("a name that no driver has")
	}
}

// built writes a driver below a directory, and returns the path of its executable.
func built(t *testing.T, work, language string, attach bool) string {
	t.Helper()
	dir := filepath.Join(work, "example.com~files")
	paths, err := install.Skeleton{Name: "example.com/files", Language: language, Attach: attach}.Write(dir)
	if err != nil {
		t.Fatal(err)
	}
	// Nothing is kept in the usual place.
	text, err := os.ReadFile(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	moved := strings.ReplaceAll(string(text), "/var/lib/files-pool", filepath.Join(work, "pool"))
	if err := os.WriteFile(paths[0], []byte(moved), 0o755); err != nil || (moved != string(text)) != attach {
		t.Fatal(err)
	}
	if strings.HasSuffix(paths[0], ".go") {
		build := exec.CommandContext(t.Context(), "go", "build", "-o", "files", ".")
		build.Dir = dir
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	return filepath.Join(dir, "files")
}

func wellSkeleton(t *testing.T, language string, attach bool) {
	t.Helper()
	work := t.TempDir()
	path := built(t, work, language, attach)
	scratch := filepath.Join(work, "scratch")
	if err := os.Mkdir(scratch, 0o700); err != nil {
		t.Fatal(err)
	}
	r, err := (&doctor.Doctor{
		Path: path, Name: decide.Name{Vendor: "example.com", Driver: "files"}, Scratch: scratch,
	}).Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range r.Findings {
		// How long init takes depends on the machine.
		if f.Level != finding.Pass && f.Check != "init-time" {
			t.Errorf("%s %s: %s", f.Level, f.Check, f.Message)
		}
	}
	if !r.Works.Kubernetes || !r.Works.Volplane || r.Capabilities.Attach != attach {
		t.Errorf("%+v, %+v", r.Works, r.Capabilities)
	}
}
