package doors

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/testkit"
	"volplane.dev/volplane/test/internal/plane"
)

const (
	// patience bounds each wait.
	patience = 2 * time.Minute
	// grace is how long a container without any mount counts: longer than docker takes to start one. shortGrace is for
	// running containers.
	grace      = 30 * time.Second
	shortGrace = 6 * time.Second
	image      = "lab/busybox:1"
	// docker is Debian's: the PATH may have another program with that name.
	docker, dockerd = "/usr/bin/docker", "/usr/sbin/dockerd"
)

// dockerHost is a control plane, the plugin beside it, and engines.
type dockerHost struct {
	t     *testing.T
	dir   string
	plane *plane.Plane
	// flags are those of the control plane.
	flags  []string
	client kubernetes.Interface
	plugin *plane.Process
	// driver is the plugin's name, and that of its socket.
	driver, socket string
	engine         *plane.Process
	// over are the volumes of the rows that are over.
	over []string
}

// newDockerHost starts a control plane, and the program volplane with the arguments that serve the plugin; without any,
// the control plane serves it.
func newDockerHost(t *testing.T, serve func(w *dockerHost) []string) *dockerHost {
	t.Helper()
	dir, err := os.MkdirTemp("", "vp-")
	if err != nil {
		t.Fatal(err)
	}
	w := &dockerHost{t: t, dir: dir, driver: filepath.Base(dir)}
	w.flags = []string{"--listen", plane.FreeAddress("127.0.0.1")}
	w.socket = filepath.Join("/run/docker/plugins", w.driver+".sock")
	t.Cleanup(w.close)
	if serve == nil {
		w.flags = append(w.flags, "--docker="+w.socket)
	}
	w.startPlane()
	w.writeImage()
	if serve == nil {
		return w
	}
	if w.plugin, err = plane.Run(filepath.Join(dir, "plugin.log"), "volplane", serve(w)...); err != nil {
		t.Fatal(err)
	}
	return w
}

// ownProgram serves the plugin from a program that does nothing else.
func ownProgram(w *dockerHost) []string { return w.pluginArgs(grace) }

func (w *dockerHost) pluginArgs(grace time.Duration) []string {
	return []string{
		"docker-plugin", "--kubeconfig", w.plane.Kubeconfig(), "--socket", w.socket, "--node", "node1", "--grace",
		grace.String(),
	}
}

func (w *dockerHost) startPlane() {
	w.t.Helper()
	var err error
	if w.plane, err = plane.Start(w.t.Context(), filepath.Join(w.dir, "plane"), w.flags...); err != nil {
		w.t.Fatal(err)
	}
	if w.client, err = w.plane.Client(); err != nil {
		w.t.Fatal(err)
	}
}

// startDocker starts a dockerd of this test only. It may have more flags than the usual ones.
func (w *dockerHost) startDocker(flags ...string) {
	w.t.Helper()
	args := append([]string{
		"--data-root", w.path("docker"), "--exec-root", w.path("exec"), "--pidfile", w.path("dockerd.pid"), "-H",
		"unix://" + w.path("docker.sock"), "--iptables=false", "--ip6tables=false", "--bridge=none",
		"--ip-forward=false",
	}, flags...)
	var err error
	if w.engine, err = plane.Run(w.path("dockerd.log"), dockerd, args...); err != nil {
		w.t.Fatal(err)
	}
	w.waitForDocker()
}

// killDocker ends docker between any two of its instructions, and waits for its containerd to end with it.
func (w *dockerHost) killDocker() {
	w.t.Helper()
	pid, err := os.ReadFile(w.path("exec/containerd/containerd.pid"))
	if err != nil {
		w.t.Fatal(err)
	}
	w.engine.Kill()
	testkit.Eventually(w.t, patience, func() string {
		if _, err := os.Stat("/proc/" + strings.TrimSpace(string(pid))); err == nil {
			return "containerd runs"
		}
		return ""
	})
}

func (w *dockerHost) restartDocker() {
	w.t.Helper()
	if err := w.engine.Restart(); err != nil {
		w.t.Fatal(err)
	}
	w.waitForDocker()
}

func (w *dockerHost) waitForDocker() {
	w.t.Helper()
	testkit.Eventually(w.t, patience, func() string {
		if out, err := w.tryDocker("info"); err != nil {
			return out
		}
		return ""
	})
}

func (w *dockerHost) path(name string) string { return filepath.Join(w.dir, name) }

// writeImage writes the image of all containers: Debian's static busybox, and a file in /seed.
func (w *dockerHost) writeImage() {
	w.t.Helper()
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		w.t.Fatal(err)
	}
	var b bytes.Buffer
	archive := tar.NewWriter(&b)
	for _, h := range []tar.Header{
		{Name: "bin/busybox", Mode: 0o755, Size: int64(len(busybox))},
		{Name: "seed/file", Mode: 0o644, Size: 5},
		{Name: "bin/sh", Linkname: "busybox", Typeflag: tar.TypeSymlink},
		{Name: "tmp", Mode: 0o777, Typeflag: tar.TypeDir},
	} {
		content := busybox
		if h.Name == "seed/file" {
			content = []byte("seed\n")
		}
		if err := archive.WriteHeader(&h); err != nil {
			w.t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := archive.Write(content); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	if err := errors.Join(archive.Close(), os.WriteFile(w.path("image.tar"), b.Bytes(), 0o600)); err != nil {
		w.t.Fatal(err)
	}
}

func run(ctx context.Context, env []string, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s %s: %w", filepath.Base(program), strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), err
}

func (w *dockerHost) tryDocker(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.t.Context()), patience)
	defer cancel()
	return run(ctx, []string{"DOCKER_CONFIG=" + w.dir}, docker, append([]string{"-H", "unix://" + w.path("docker.sock")},
		args...)...)
}

func (w *dockerHost) docker(args ...string) string {
	w.t.Helper()
	out, err := w.tryDocker(args...)
	if err != nil {
		w.t.Fatalf("%v: %s", err, out)
	}
	return out
}

// volume creates a volume with a file in it.
func (w *dockerHost) volume(name string) {
	w.t.Helper()
	w.docker("volume", "create", "-d", w.driver, "-o", "size=16Mi", name)
	w.docker("run", "--rm", "--network", "none", "-v", name+":/data", image, "/bin/sh", "-c", "echo "+name+" > /data/file")
}

// sleeps starts a container that has a volume, and sleeps.
func (w *dockerHost) sleeps(name, volume string, flags ...string) {
	w.t.Helper()
	args := append([]string{
		"run", "-d", "--init=false", "--stop-timeout", "1", "--network", "none", "--name", name, "-v",
		volume + ":/data",
	}, flags...)
	w.docker(append(args, image, "/bin/busybox", "sleep", "3600")...)
}

// intact checks the file of a volume in a container that runs.
func (w *dockerHost) intact(container, volume string) {
	w.t.Helper()
	if got := w.docker("exec", container, "/bin/busybox", "cat", "/data/file"); got != volume {
		w.t.Errorf("the file in volume %s is %q", volume, got)
	}
}

// unused waits until no Pod of a volume is left.
func (w *dockerHost) unused(volume string) {
	w.t.Helper()
	testkit.Eventually(w.t, patience, func() string {
		left, err := w.users(volume)
		return strings.Join(left, "\n") + errorText(err)
	})
}

// users are the Pods of a volume, or of all if it is empty.
func (w *dockerHost) users(volume string) (names []string, err error) {
	pods, err := w.client.CoreV1().Pods("").List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, p := range pods.Items {
		if volume == "" || p.Spec.Volumes[0].PersistentVolumeClaim.ClaimName == volume {
			names = append(names, fmt.Sprint("pod ", p.Name, " ", p.Annotations))
		}
	}
	return names, nil
}

// nothingUses waits until no Pod, mount or loop device of any volume is left.
func (w *dockerHost) nothingUses() {
	w.t.Helper()
	testkit.Eventually(w.t, patience, func() string {
		left, err := w.users("")
		if err != nil {
			return err.Error()
		}
		left = append(left, w.plane.Loops()...)
		mounts, err := w.plane.Mounts()
		if err != nil {
			return err.Error()
		}
		return strings.Join(append(left, mounts...), "\n")
	})
}

// gone marks a row as finished: nothing uses its volume after a while; see end.
func (w *dockerHost) gone(volume string) { w.over = append(w.over, volume) }

// end waits until nothing uses the volumes of all rows, removes the volumes, whose files must be unchanged, and waits
// until nothing is left.
func (w *dockerHost) end() {
	w.t.Helper()
	w.nothingUses()
	for _, volume := range w.over {
		w.remove(volume)
	}
	testkit.Eventually(w.t, patience, func() string {
		left, err := w.plane.Leftovers(w.t.Context(), w.client)
		return strings.Join(left, "\n") + errorText(err)
	})
}

func (w *dockerHost) remove(volume string) {
	w.t.Helper()
	got := w.docker("run", "--rm", "--network", "none", "-v", volume+":/data", image, "/bin/busybox", "cat", "/data/file")
	if got != volume {
		w.t.Errorf("the file in volume %s is %q", volume, got)
	}
	w.unused(volume)
	w.docker("volume", "rm", volume)
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// holdingThreads returns the threads that have loop devices mounted in a mount namespace of their own, with their
// names: an engine that never ends such a thread keeps its volume in use.
func holdingThreads() map[string]string {
	own, _ := os.Readlink("/proc/self/ns/mnt")
	tables, _ := filepath.Glob("/proc/[0-9]*/task/[0-9]*/mountinfo")
	out := map[string]string{}
	for _, table := range tables {
		thread := filepath.Dir(table)
		// Threads end all the time.
		ns, err := os.Readlink(filepath.Join(thread, "ns", "mnt"))
		mounts, unread := os.ReadFile(table)
		if err == nil && unread == nil && ns != own && bytes.Contains(mounts, []byte(" /dev/loop")) {
			name, _ := os.ReadFile(filepath.Join(thread, "comm"))
			out[thread] = strings.TrimSpace(string(name))
		}
	}
	return out
}

func (w *dockerHost) close() {
	if w.engine != nil {
		if w.t.Failed() {
			w.t.Logf("volumes are mounted in other namespaces for %q", holdingThreads())
			all, _ := w.tryDocker("ps", "-aq")
			_, _ = w.tryDocker(append([]string{"rm", "-f"}, strings.Fields(all)...)...)
		}
		w.engine.Stop()
	}
	if w.plugin != nil {
		w.plugin.Stop()
	}
	if w.plane != nil {
		w.plane.Stop()
	}
	if err := os.Remove(w.socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.t.Error(err)
	}
	if w.t.Failed() {
		w.t.Logf("kept %s", w.dir)
		return
	}
	// An engine leaves bind mounts of its own directories.
	table, _ := os.ReadFile("/proc/self/mountinfo")
	lines := strings.Split(string(table), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if f := strings.Fields(lines[i]); len(f) > 4 && strings.HasPrefix(f[4], w.dir+"/") {
			_ = syscall.Unmount(f[4], syscall.MNT_DETACH)
		}
	}
	if err := os.RemoveAll(w.dir); err != nil {
		w.t.Error(err)
	}
}
