package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// mostBytes is how large an image may be, compressed.
const mostBytes = 20 << 20

// checkSkopeo requires that skopeo reads each image of the layout and of docker's archive, with its own entry point and
// user.
func checkSkopeo(t *testing.T, r *release) {
	layout, docker := only(t, r, "volplane-v*.oci.tar"), only(t, r, "volplane-v*.docker.tar")
	node, nodeDocker := only(t, r, "volplane-node-*.oci.tar"), only(t, r, "volplane-node-*.docker.tar")
	names := append([]string{volplane}, sidecars()...)
	for _, name := range names {
		ref := r.repository + "/" + name + ":" + r.tag()
		a, b := inspect(t, "oci-archive:"+layout+":"+ref), inspect(t, "docker-archive:"+docker+":"+ref)
		a.starts(t, name)
		b.starts(t, name)
		if !slices.Equal(a.RootFS.DiffIDs, b.RootFS.DiffIDs) || len(a.RootFS.DiffIDs) != 1 {
			t.Errorf("%s has the layers %v in one and %v in the other", name, a.RootFS.DiffIDs, b.RootFS.DiffIDs)
		}
	}
	if s, err := os.Stat(docker); err != nil || s.Size() > mostBytes {
		t.Errorf("the images have %d bytes, error %v, %d are allowed", s.Size(), err, mostBytes)
	}
	ref := r.repository + "/" + nodeImage + ":" + r.tag()
	for _, from := range []string{"oci-archive:" + node, "docker-archive:" + nodeDocker} {
		if i := inspect(t, from+":"+ref); len(i.RootFS.DiffIDs) != 2 || i.Config.User != "0:0" {
			t.Errorf("the node's image has %d layers and the user %s", len(i.RootFS.DiffIDs), i.Config.User)
		}
	}
}

type inspected struct {
	OS, Architecture string
	Config           struct {
		Entrypoint []string
		User       string
	}
	RootFS struct {
		DiffIDs []string `json:"diff_ids"`
	}
}

// starts requires an image for this machine that starts the program of that name: as nobody, or in the place of
// upstream's image as the same user.
func (i inspected) starts(t *testing.T, name string) {
	t.Helper()
	user := ""
	if name == volplane {
		user = unprivileged
	}
	if !slices.Equal(i.Config.Entrypoint, []string{"/" + name}) || i.Config.User != user {
		t.Errorf("%s starts %v as %s", name, i.Config.Entrypoint, i.Config.User)
	}
	if i.OS != "linux" || i.Architecture != runtime.GOARCH {
		t.Errorf("%s is for %s/%s", name, i.OS, i.Architecture)
	}
}

// inspect copies an image, so that all of it is read, and returns its configuration.
func inspect(t *testing.T, ref string) inspected {
	t.Helper()
	to := filepath.Join(t.TempDir(), "image")
	shell(t, "skopeo", "--insecure-policy", "copy", "--quiet", ref, "dir:"+to)
	var i inspected
	if err := json.Unmarshal([]byte(shell(t, "skopeo", "inspect", "--config", "dir:"+to)), &i); err != nil {
		t.Fatal(err)
	}
	return i
}

// checkContainerd imports the images into a containerd as a node has it, and runs each of them.
func checkContainerd(t *testing.T, r *release) {
	ctr := startContainerd(t)
	for _, archive := range []string{only(t, r, "volplane-v*.oci.tar"), only(t, r, "volplane-node-*.docker.tar")} {
		ctr("images", "import", archive)
	}
	for _, name := range sidecars() {
		ref := r.repository + "/" + name + ":" + r.tag()
		if out := ctr(run("version", ref, "/"+name, "--version")...); !strings.Contains(out, r.version) {
			t.Errorf("%s --version: %q", name, out)
		}
		out := ctr(run("help", ref, "/"+name, "--help")...)
		// This one has no driver.
		if !strings.Contains(out, "csi-address") && name != "snapshot-controller" || !strings.Contains(out, name) {
			t.Errorf("%s --help:\n%s", name, out)
		}
	}
	ref := r.repository + "/" + nodeImage + ":" + r.tag()
	for _, tool := range []string{
		"mkfs.ext4 -V", "mkfs.xfs -V", "btrfs --version", "mount --version", "volplane version",
	} {
		ctr(run("tool", ref, strings.Fields(tool)...)...)
	}
}

// run returns the arguments that run a command in a container and remove it.
func run(id, image string, command ...string) []string {
	return append([]string{"run", "--rm", "--net-host", "--read-only", image, id}, command...)
}

// startContainerd starts a separate containerd, and returns a function that runs ctr with it.
func startContainerd(t *testing.T) func(args ...string) string {
	t.Helper()
	dir, err := os.MkdirTemp("/run", "volplane-containerd-")
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "config.toml")
	text := "version = 2\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "containerd.sock")
	cmd := exec.CommandContext(t.Context(), "containerd", "--config", config, "--address", socket,
		"--root", filepath.Join(t.TempDir(), "root"), "--state", filepath.Join(dir, "state"))
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	// It unmounts its mounts when it is asked to stop.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Wait()
		if t.Failed() {
			if data, err := os.ReadFile(log.Name()); err == nil {
				t.Logf("containerd:\n%s", data)
			}
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	client := []string{"--address", socket, "--namespace", "k8s.io"}
	// It answers, or ends: the client waits for the socket.
	shell(t, "ctr", append(client, "--connect-timeout", "60s", "version")...)
	return func(args ...string) string {
		t.Helper()
		return shell(t, "ctr", append(slices.Clone(client), args...)...)
	}
}
