package flex

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/flex/driver"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/test/internal/plane"
)

// example returns the path of a file of the examples.
func example(parts ...string) string {
	return filepath.Join(append([]string{"..", "..", "examples", "flex"}, parts...)...)
}

// TestFlexExamples runs the tests of the example drivers with each shell that is /bin/sh on some system.
func TestFlexExamples(t *testing.T) {
	for _, name := range []string{"lofs", "scratch"} {
		for _, shell := range []string{"dash", "bash"} {
			t.Run(name+"/"+shell, func(t *testing.T) {
				t.Parallel()
				out, err := exec.CommandContext(t.Context(), shell, example(name, "test.sh"), shell).CombinedOutput()
				if err != nil || string(out) != "PASS\n" {
					t.Errorf("%v\n%s", err, out)
				}
			})
		}
	}
}

// TestShellcheck checks all scripts of drivers if shellcheck is installed.
func TestShellcheck(t *testing.T) {
	program, err := exec.LookPath("shellcheck")
	if err != nil {
		t.Logf("scripts are not checked: %v", err)
		return
	}
	var all []string
	for _, pattern := range []string{
		example("*", "*"), filepath.Join("..", "..", "internal", "flex", "install", "skeleton", "*.sh"),
	} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) < 2 {
			t.Fatalf("%s: %v, %v", pattern, found, err)
		}
		all = append(all, found...)
	}
	if out, err := exec.CommandContext(t.Context(), program, all...).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestFlexExamplesAreWell: the doctor finds no problem in the example drivers.
func TestFlexExamplesAreWell(t *testing.T) {
	lofs, scratch := host(t, "lofs", "LOFS_POOL"), host(t, "scratch", "SCRATCH_SHARES")
	for _, args := range [][]string{
		{lofs.Path, "--option", "file=try", "--option", "size=400Mi", "--fstype", "xfs", "--grow-to", "500Mi"},
		{scratch.Path},
		{scratch.Path, "--option", "share=logs"},
	} {
		out, err := exec.CommandContext(t.Context(), plane.Bin("volplane"),
			append([]string{"flex", "doctor"}, args...)...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), ": pass, ") {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
}

// hosted is an example driver in volplane's host, with a pool of its own.
type hosted struct {
	*testing.T
	*driver.Driver
	dir string
}

// host installs an example driver. A host passes no environment on, so the variable that names the driver's
// pool is written into the script.
func host(t *testing.T, name, variable string) *hosted {
	t.Helper()
	h := &hosted{T: t, dir: t.TempDir()}
	text, err := os.ReadFile(example(name, name))
	if err != nil {
		t.Fatal(err)
	}
	home := filepath.Join(h.dir, "exec", "example.com~"+name)
	path := filepath.Join(home, name)
	script := "#!/bin/sh\nexport " + variable + "=" + filepath.Join(h.dir, "pool") + "\n" + string(text)
	if err := os.MkdirAll(home, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	if h.Driver, err = driver.Probe(t.Context(), decide.Name{Vendor: "example.com", Driver: name}, path,
		driver.Options{}); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *hosted) try(errs ...error) {
	h.Helper()
	for _, err := range errs {
		if err != nil {
			h.Fatal(err)
		}
	}
}

// at returns a path for mounts as drivers know it.
func (h *hosted) at(parts ...string) string {
	h.Helper()
	dir := filepath.Join(append([]string{h.dir}, parts...)...)
	h.Cleanup(func() { _ = mount.Unmount(dir) })
	return dir
}

// TestLofsInHost attaches, mounts, expands and detaches a volume through the host, which does the bind
// mounts that lofs leaves to it.
func TestLofsInHost(t *testing.T) {
	h := host(t, "lofs", "LOFS_POOL")
	device := h.at("plugins", "kubernetes.io", "flexvolume", "example.com", "lofs", "mounts", "pv1")
	pod := h.at("pods", "8d2f", "volumes", "example.com~lofs", "pv1")
	v := decide.Volume{Name: "pv1", FSType: "xfs", Options: map[string]string{"file": "db", "size": "320Mi"}}
	ctx := t.Context()

	name, err := h.VolumeName(ctx, v)
	h.try(err)
	if name != "db" {
		t.Errorf("the volume's name is %s", name)
	}
	_, err = h.Attach(ctx, v, "node1")
	h.try(err)
	if attached, known, err := h.IsAttached(ctx, v, "node1"); !attached || !known || err != nil {
		t.Errorf("attached %v, known %v, %v", attached, known, err)
	}
	path, err := h.WaitForAttach(ctx, "", v)
	h.try(err)
	_, err = h.MountDevice(ctx, device, path, v)
	h.try(err)
	_, err = h.Mount(ctx, pod, device, v)
	h.try(err)
	h.try(os.WriteFile(filepath.Join(pod, "file"), []byte("kept"), 0o600))
	const before, after = 320 << 20, 512 << 20
	size, err := h.ExpandVolume(ctx, v, device, after, before)
	h.try(err, h.ExpandFS(ctx, v, path, device, after, before))
	if size != after {
		t.Errorf("the new size is %d", size)
	}
	_, err = h.Unmount(ctx, pod)
	h.try(err)
	_, err = h.UnmountDevice(ctx, device)
	h.try(err, h.Detach(ctx, name, "node1"))
	if left, err := mount.LoopFind(filepath.Join(h.dir, "pool", "db.img")); left != "" || err != nil {
		t.Errorf("the device %s is left, %v", left, err)
	}
	if points, err := mount.Below(h.dir); len(points) > 0 || err != nil {
		t.Errorf("left mounted: %v, %v", points, err)
	}
}

// TestScratchInHost mounts and unmounts both kinds of scratch volumes.
func TestScratchInHost(t *testing.T) {
	h := host(t, "scratch", "SCRATCH_SHARES")
	pod := h.at("pods", "8d2f", "volumes", "example.com~scratch", "data")
	for _, options := range []map[string]string{{"size": "8Mi"}, {"share": "logs"}} {
		v := decide.Volume{Name: "data", Options: options}
		_, err := h.Mount(t.Context(), pod, "", v)
		h.try(err)
		if _, mounted, err := mount.At(pod); !mounted || err != nil {
			t.Errorf("%v: mounted %v, %v", options, mounted, err)
		}
		_, err = h.Unmount(t.Context(), pod)
		h.try(err)
	}
	if points, err := mount.Below(h.dir); len(points) > 0 || err != nil {
		t.Errorf("left mounted: %v, %v", points, err)
	}
}
