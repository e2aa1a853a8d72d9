package doors

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/testkit"
	"volplane.dev/volplane/test/internal/plane"
)

// storageGrace is how long an unused volume stays. A row takes less from its call to its use. When all others are in
// use, the unused volume need not stay as long.
const (
	storageGrace      = 20 * time.Second
	storageShortGrace = 5 * time.Second
)

// TestStorageProvider: a volume that was acquired stays as long as it is in use in any way, even if its provider and
// volplaned are killed, and no longer. No systemd with storage volumes is available here: the test handles descriptors
// as mount.storage does.
func TestStorageProvider(t *testing.T) {
	t.Parallel()
	w := newStorageHost(t)
	uses := map[string]func() (end func()){
		"directory": func() func() { return w.mountDirectory("directory") },
		"descriptor": func() func() {
			fd := w.acquire("descriptor", `"createSizeBytes":16777216`)
			return func() { _ = fd.Close() }
		},
		"disk": func() func() { return w.mountDisk("disk") },
		"loop": func() func() { return w.loop("loop") },
		"container": func() func() {
			fd := w.acquire("container", `"createSizeBytes":16777216`)
			defer fd.Close()
			return w.holds(fd, "unshare", "--mount", "sh", "-c", "mount --bind /proc/self/fd/3 /mnt && exec 3<&- && "+
				"echo ready && read x")
		},
	}
	var ends []func()
	for name, use := range uses {
		ends = append(ends, use())
		w.over = append(w.over, name)
	}
	w.plugin.Kill()
	w.startProvider(storageShortGrace)
	w.onlyUnusedGoes("probe")
	w.plane.Kill()
	w.startPlane()
	w.onlyUnusedGoes("again")
	for _, end := range ends {
		end()
	}
	w.nothingUses()
	w.endStorage()
}

func newStorageHost(t *testing.T) *dockerHost {
	t.Helper()
	dir, err := os.MkdirTemp("", "vp-")
	if err != nil {
		t.Fatal(err)
	}
	w := &dockerHost{t: t, dir: dir, flags: []string{"--listen", plane.FreeAddress("127.0.0.1")}}
	w.socket = filepath.Join(dir, "providers", "volplane")
	t.Cleanup(w.close)
	w.startPlane()
	w.startProvider(storageGrace)
	return w
}

// startProvider starts a provider with a grace.
func (w *dockerHost) startProvider(grace time.Duration) {
	w.t.Helper()
	var err error
	if w.plugin, err = plane.Run(w.path("provider.log"), "volplane", "storage-provider", "--kubeconfig",
		w.plane.Kubeconfig(), "--socket", w.socket, "--node", "node1", "--grace", grace.String()); err != nil {
		w.t.Fatal(err)
	}
	w.listens()
}

// listens waits until the provider takes calls.
func (w *dockerHost) listens() {
	w.t.Helper()
	testkit.Eventually(w.t, patience, func() string {
		c, err := net.Dial("unix", w.socket)
		if err == nil {
			err = c.Close()
		}
		return errorText(err)
	})
}

// acquire returns the descriptor of a volume.
func (w *dockerHost) acquire(name, parameters string) *os.File {
	w.t.Helper()
	if parameters != "" {
		parameters = "," + parameters
	}
	fd, err := acquire(w.socket, `{"name":"`+name+`"`+parameters+"}")
	if err != nil {
		w.t.Fatalf("%s: %v", name, err)
	}
	return fd
}

func acquire(socket, parameters string) (*os.File, error) {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	q := `{"method":"io.systemd.StorageProvider.Acquire","parameters":` + parameters + "}\x00"
	if _, err := c.Write([]byte(q)); err != nil {
		return nil, err
	}
	text, control := make([]byte, 4096), make([]byte, 128)
	n, nc, _, _, err := c.ReadMsgUnix(text, control)
	if err != nil {
		return nil, err
	}
	var answer struct {
		Error      string
		Parameters struct{ FileDescriptorIndex *int }
	}
	if err := json.Unmarshal([]byte(strings.TrimSuffix(string(text[:n]), "\x00")), &answer); err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(control[:nc])
	if err != nil || len(messages) != 1 || answer.Parameters.FileDescriptorIndex == nil {
		return nil, fmt.Errorf("%s: %s, %w", q, text[:n], err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fds[*answer.Parameters.FileDescriptorIndex]), "volume"), nil
}

// mountDirectory mounts a clone of a volume, with the users of the volume as those of the host, as mount.storage does.
func (w *dockerHost) mountDirectory(name string) (end func()) {
	w.t.Helper()
	fd := w.acquire(name, `"requestAs":"dir","createSizeBytes":16777216,"readOnly":false`)
	defer fd.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(fd.Fd()), &st); err != nil || st.Uid != 0 || st.Gid != 0 {
		w.t.Fatal(st.Uid, st.Gid, err)
	}
	clone, err := unix.OpenTree(int(fd.Fd()), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		w.t.Fatal(err)
	}
	defer unix.Close(clone)
	dir := w.path(name)
	err = errors.Join(os.Mkdir(dir, 0o700),
		unix.MoveMount(clone, "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH),
		os.WriteFile(filepath.Join(dir, "file"), []byte(name), 0o600))
	if err != nil {
		w.t.Fatal(err)
	}
	return func() { w.must(nil, "umount", dir) }
}

// mountDisk makes a filesystem on a block device, and mounts it.
func (w *dockerHost) mountDisk(name string) (end func()) {
	w.t.Helper()
	fd := w.acquire(name, `"requestAs":"blk","createSizeBytes":16777216`)
	defer fd.Close()
	dir := w.path(name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		w.t.Fatal(err)
	}
	w.must(fd, "mkfs.ext4", "-q", "/proc/self/fd/3")
	w.must(fd, "mount", "-t", "ext4", "/proc/self/fd/3", dir)
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte(name), 0o600); err != nil {
		w.t.Fatal(err)
	}
	return func() { w.must(nil, "umount", dir) }
}

// loop has a loop device on a block device.
func (w *dockerHost) loop(name string) (end func()) {
	w.t.Helper()
	fd := w.acquire(name, `"requestAs":"blk","createSizeBytes":16777216`)
	defer fd.Close()
	device := w.must(fd, "losetup", "--find", "--show", "--read-only", "/proc/self/fd/3")
	return func() { w.must(nil, "losetup", "--detach", device) }
}

// must runs a program with a file as its descriptor 3.
func (w *dockerHost) must(file *os.File, program string, args ...string) string {
	w.t.Helper()
	cmd := exec.Command(program, args...)
	cmd.ExtraFiles = []*os.File{file}
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.t.Fatalf("%s %v: %v: %s", program, args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// holds starts a program that has a file as its descriptor 3, says when it is ready, and ends with its input.
func (w *dockerHost) holds(file *os.File, program string, args ...string) (end func()) {
	w.t.Helper()
	cmd := exec.Command(program, args...)
	cmd.ExtraFiles, cmd.Stderr = []*os.File{file}, os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		w.t.Fatalf("%q, %v", line, err)
	}
	return func() {
		_ = in.Close()
		_ = cmd.Wait()
	}
}

// onlyUnusedGoes waits until an unused volume is removed, and checks that all others still exist.
func (w *dockerHost) onlyUnusedGoes(name string) {
	w.t.Helper()
	_ = w.acquire(name, `"createSizeBytes":16777216`).Close()
	w.unused(name)
	for _, used := range w.over {
		if left, err := w.users(used); err != nil || len(left) != 1 {
			w.t.Errorf("volume %s is used by %v, %v", used, left, err)
		}
	}
	for _, mounted := range []string{"directory", "disk"} {
		if text, err := os.ReadFile(w.path(mounted + "/file")); err != nil || string(text) != mounted {
			w.t.Errorf("the file in volume %s is %q, %v", mounted, text, err)
		}
	}
}

// endStorage checks the content of a volume, deletes all volumes, and waits until nothing is left.
func (w *dockerHost) endStorage() {
	w.t.Helper()
	fd := w.acquire("directory", `"readOnly":true`)
	if text, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d/file", fd.Fd())); err != nil || string(text) != "directory" {
		w.t.Errorf("the file is %q, %v", text, err)
	}
	err := os.WriteFile(fmt.Sprintf("/proc/self/fd/%d/file", fd.Fd()), nil, 0o600)
	if !errors.Is(err, unix.EROFS) {
		w.t.Errorf("a volume that can only be read was written: %v", err)
	}
	_ = fd.Close()
	w.nothingUses()
	claims := w.client.CoreV1().PersistentVolumeClaims("default")
	if err := claims.DeleteCollection(w.t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		w.t.Fatal(err)
	}
	testkit.Eventually(w.t, patience, func() string {
		left, err := w.plane.Leftovers(w.t.Context(), w.client)
		return strings.Join(left, "\n") + errorText(err)
	})
}
