package doors

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"volplane.dev/volplane/internal/testkit"
)

// podman is a podman of this test only.
func (w *dockerHost) tryPodman(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	env := []string{"CONTAINERS_CONF=" + w.path("containers.conf"), "CONTAINERS_STORAGE_CONF=" + w.path("storage.conf")}
	return run(ctx, env, "/usr/bin/podman",
		append([]string{"--tmpdir", w.path("tmp"), "--log-level", "error"}, args...)...)
}

func (w *dockerHost) podman(args ...string) string {
	w.t.Helper()
	out, err := w.tryPodman(args...)
	if err != nil {
		w.t.Fatalf("%v: %s", err, out)
	}
	return out
}

func (w *dockerHost) podmanRun(args ...string) (string, error) {
	return w.tryPodman(append([]string{"run", "--network", "none", "--security-opt", "seccomp=unconfined"}, args...)...)
}

// configurePodman writes the settings that podman needs here: without the right to raise limits, and without systemd.
func (w *dockerHost) configurePodman() {
	w.t.Helper()
	for name, text := range map[string]string{
		"containers.conf": "[engine]\ncgroup_manager=\"cgroupfs\"\nevents_logger=\"file\"\nruntime=\"runc\"\n" +
			"[engine.volume_plugins]\n" + fmt.Sprintf("%q=%q\n", w.driver, w.socket) +
			"[containers]\ndefault_ulimits=[\"nofile=1000:1000\",\"nproc=1000:1000\"]\n",
		"storage.conf": fmt.Sprintf("[storage]\ndriver=\"overlay\"\ngraphroot=%q\nrunroot=%q\n", w.path("graph"),
			w.path("runroot")),
	} {
		if err := os.WriteFile(w.path(name), []byte(text), 0o600); err != nil {
			w.t.Fatal(err)
		}
	}
}

const podmanImage = "localhost/" + image

// TestPodman: podman counts its containers itself, and mounts under one id for all. It waits for five seconds: a mount
// that takes longer is ready at the next try.
func TestPodman(t *testing.T) {
	t.Parallel()
	w := newDockerHost(t, nil)
	w.configurePodman()
	w.podman("import", w.path("image.tar"), podmanImage)
	w.podman("volume", "create", "--driver", w.driver, "-o", "size=16Mi", "data")
	if out, err := w.podmanRun("--rm", "-v", "data:/data", podmanImage, "/bin/sh", "-c",
		"echo data > /data/file"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	w.nothingUses()
	for _, name := range []string{"a", "b"} {
		if out, err := w.podmanRun("-d", "--name", name, "-v", "data:/data", podmanImage, "/bin/busybox", "sleep",
			"3600"); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	w.podman("kill", "a")
	w.podman("rm", "-f", "a")
	if got := w.podman("exec", "b", "/bin/busybox", "cat", "/data/file"); got != "data" {
		t.Errorf("the file is %q", got)
	}
	if out, err := w.tryPodman("volume", "rm", "data"); err == nil {
		t.Errorf("a volume in use was removed: %s", out)
	}
	w.podman("rm", "-f", "-t", "0", "b")
	w.nothingUses()
	w.slowPlane()
	w.podman("volume", "rm", "data")
	testkit.Eventually(t, patience, func() string {
		left, err := w.plane.Leftovers(t.Context(), w.client)
		return strings.Join(left, "\n") + errorText(err)
	})
}

// TestQuadletGuard: podman recreates a volume that was removed as a local one, which the guard of our Quadlet refuses.
func TestQuadletGuard(t *testing.T) {
	t.Parallel()
	w := newDockerHost(t, nil)
	w.configurePodman()
	w.podman("import", w.path("image.tar"), podmanImage)
	script := "#!/bin/sh\nexec /usr/bin/podman --tmpdir '" + w.path("tmp") + "' --log-level error \"$@\"\n"
	if err := errors.Join(os.Mkdir(w.path("bin"), 0o700),
		os.WriteFile(w.path("bin/podman"), []byte(script), 0o700)); err != nil {
		t.Fatal(err)
	}
	_, guard, found := strings.Cut(examples(t, "ini")[1], "ExecStartPre=/bin/sh -c '")
	guard, _, closed := strings.Cut(guard, "'\n")
	if !found || !closed {
		t.Fatal("db.container has no guard")
	}
	guard = strings.ReplaceAll(guard, "volplane", w.driver)
	env := []string{
		"CONTAINERS_CONF=" + w.path("containers.conf"), "CONTAINERS_STORAGE_CONF=" + w.path("storage.conf"),
		"PATH=" + w.path("bin") + ":" + os.Getenv("PATH"),
	}
	passes := func(want bool, when string) {
		t.Helper()
		if out, err := run(t.Context(), env, "/bin/sh", "-c", guard); (err == nil) != want {
			t.Errorf("%s, the guard says %v: %s", when, err, out)
		}
	}
	passes(false, "before there is a volume")
	w.podman("volume", "create", "--driver", w.driver, "-o", "size=16Mi", "data")
	passes(true, "with its volume")
	w.podman("volume", "rm", "data")
	passes(false, "when the volume was removed")
	if out, err := w.podmanRun("--rm", "-v", "data:/data", podmanImage, "/bin/sh", "-c", "true"); err != nil {
		t.Errorf("podman refuses by itself, and the guard may go: %v: %s", err, out)
	}
	if got := w.podman("volume", "inspect", "-f", "{{.Driver}}", "data"); got != "local" {
		t.Errorf("podman has made a volume of driver %q", got)
	}
	passes(false, "with a local volume")
}

// slowPlane stops the control plane until podman has given up, and then continues it.
func (w *dockerHost) slowPlane() {
	w.t.Helper()
	if err := syscall.Kill(w.plane.PID(), syscall.SIGSTOP); err != nil {
		w.t.Fatal(err)
	}
	out, err := w.podmanRun("--rm", "-v", "data:/data", podmanImage, "/bin/busybox", "cat", "/data/file")
	if err == nil {
		w.t.Errorf("a container started without a control plane: %s", out)
	}
	if err := syscall.Kill(w.plane.PID(), syscall.SIGCONT); err != nil {
		w.t.Fatal(err)
	}
	testkit.Eventually(w.t, patience, func() string {
		out, err := w.podmanRun("--rm", "-v", "data:/data", podmanImage, "/bin/busybox", "cat", "/data/file")
		if err != nil || out != "data" {
			return out + errorText(err)
		}
		return ""
	})
	w.nothingUses()
}
