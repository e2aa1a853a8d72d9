package flex

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"volplane.dev/volplane/internal/flex"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/testkit"
	"volplane.dev/volplane/test/internal/plane"
	"volplane.dev/volplane/test/internal/planetest"
)

// flexPlane is a running control plane, and the command beside it.
type flexPlane struct {
	*testing.T
	*plane.Plane
	dir string
}

func newFlexPlane(t *testing.T) *flexPlane {
	t.Helper()
	dir, err := os.MkdirTemp("", "vp-")
	if err != nil {
		t.Fatal(err)
	}
	p, err := plane.Start(t.Context(), filepath.Join(dir, "data"))
	if err != nil {
		t.Fatal(err)
	}
	f := &flexPlane{t, p, dir}
	t.Cleanup(func() {
		p.Stop()
		if !t.Failed() {
			_ = os.RemoveAll(flex.Root(p.Dir))
			_ = os.RemoveAll(dir)
		}
	})
	return f
}

// run runs a command of volplane and returns its output and whether it succeeded.
func (f *flexPlane) run(args ...string) (string, bool) {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.Context(), planetest.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, plane.Bin("volplane"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+f.Kubeconfig(), "HOME="+f.dir)
	out, err := cmd.CombinedOutput()
	return string(out), err == nil
}

// want runs a command that must succeed and print all words.
func (f *flexPlane) want(args []string, words ...string) {
	f.Helper()
	out, ok := f.run(args...)
	for _, w := range words {
		ok = ok && strings.Contains(out, w)
	}
	if !ok {
		f.Fatalf("volplane %s prints\n%s\nwant %q", strings.Join(args, " "), out, words)
	}
}

// eventually runs a command until it prints a word.
func (f *flexPlane) eventually(args []string, word string) {
	f.Helper()
	testkit.Eventually(f, planetest.Patience, func() string {
		out, ok := f.run(args...)
		if ok && strings.Contains(out, word) {
			return ""
		}
		return fmt.Sprintf("volplane %s prints\n%s\nwant %q", strings.Join(args, " "), out, word)
	})
}

// flex returns the arguments of a command for the drivers of this control plane, since other control planes
// may run here.
func (f *flexPlane) flex(args ...string) []string {
	return append([]string{"flex"}, append(args, "--dir", filepath.Join(f.Dir, "volumeplugins"))...)
}

// pooled writes an example driver with a pool of its own.
func (f *flexPlane) pooled(name, variable string) string {
	f.Helper()
	text, err := os.ReadFile(example(name, name))
	path := filepath.Join(f.dir, name)
	if err == nil {
		err = os.WriteFile(path,
			append([]byte("#!/bin/sh\nexport "+variable+"="+filepath.Join(f.dir, "pool")+"\n"), text...), 0o755)
	}
	if err != nil {
		f.Fatal(err)
	}
	return path
}

// ofOurs is the vendor of this test's drivers. A mount of another test's driver with the same name would
// count as a volume of this test.
const ofOurs = "e2e.example.com"

// applied applies an example with this test's vendor.
func (f *flexPlane) applied(file string) {
	f.Helper()
	text, err := os.ReadFile(example(file))
	path := filepath.Join(f.dir, file)
	if err == nil {
		err = os.WriteFile(path, bytes.ReplaceAll(text, []byte("driver: example.com/"), []byte("driver: "+ofOurs+"/")), 0o600)
	}
	if err != nil {
		f.Fatal(err)
	}
	f.want([]string{"apply", "-f", path})
}

// TestFlexOnOneHost: drivers that are installed while the control plane runs can be used immediately, are
// listed with their users, upgraded while in use, and not uninstalled while in use. The examples work.
func TestFlexOnOneHost(t *testing.T) {
	f := newFlexPlane(t)
	lofs, scratch := f.pooled("lofs", "LOFS_POOL"), f.pooled("scratch", "SCRATCH_SHARES")
	f.want(f.flex("install", ofOurs+"/lofs", lofs), "is ready")
	f.want(f.flex("install", ofOurs+"/scratch", scratch), "is ready")
	f.applied("lofs.yaml")
	f.applied("scratch.yaml")
	for _, pod := range []string{"lofs", "scratch"} {
		f.eventually([]string{"get", "pod", pod}, "Mounted")
		f.eventually(f.flex("list", ofOurs+"/"+pod, "-o", "yaml"), "inUse: 1")
		if out, ok := f.run(f.flex("uninstall", ofOurs+"/"+pod)...); ok || !strings.Contains(out, "it is in use") {
			t.Errorf("uninstall %s: %s", pod, out)
		}
	}
	f.want(f.flex("list", "-o", "yaml"), "running: true")

	// This is a newer version of a driver in use, which performs the unmount.
	data, err := os.ReadFile(scratch)
	if err != nil || os.WriteFile(scratch, append(data, "# newer\n"...), 0o755) != nil {
		t.Fatal(err)
	}
	f.want(f.flex("upgrade", ofOurs+"/scratch", scratch), "is ready")
	f.want([]string{"delete", "pod", "lofs", "scratch"})
	for _, driver := range []string{ofOurs + "/lofs", ofOurs + "/scratch"} {
		f.eventually(f.flex("list", driver, "-o", "yaml"), "inUse: 0")
		f.want(f.flex("uninstall", driver), "uninstalled")
	}
	f.nothingLeft()
}

// nothingLeft requires that no mount, driver or loop device of this control plane exists.
func (f *flexPlane) nothingLeft() {
	f.Helper()
	for _, dir := range []string{f.Dir, flex.Root(f.Dir)} {
		if points, err := mount.Below(dir); len(points) > 0 || err != nil {
			f.Errorf("left mounted: %v, %v", points, err)
		}
	}
	if left, err := os.ReadDir(filepath.Join(f.Dir, "volumeplugins")); len(left) > 0 || err != nil {
		f.Errorf("left: %v, %v", left, err)
	}
	if loops, err := exec.Command("losetup", "--noheadings", "--output", "BACK-FILE").Output(); err != nil ||
		bytes.Contains(loops, []byte(f.dir)) {
		f.Errorf("left attached: %s, %v", loops, err)
	}
}
