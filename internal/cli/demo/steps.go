//go:build linux

package demo

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/doors"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/volume"
)

// Names and sizes of what the demo makes.
const (
	claimName  = "demo"
	firstSize  = "320Mi"
	grownSize  = "640Mi"
	firstNode  = "node1"
	secondNode = "node2"
	fileName   = "greeting"
	fileBytes  = 4 << 20
)

// step is one step of the demo. Its function run returns details to print.
type step struct {
	name string
	run  func(ctx context.Context) (string, error)
}

func (d *demo) steps() []step {
	return []step{
		{"start a control plane", d.start},
		{"claim a volume", d.claim},
		{"mount it on " + firstNode, func(ctx context.Context) (string, error) { return "", d.mount(ctx, firstNode) }},
		{"write a file", d.write},
		{"unmount it", func(ctx context.Context) (string, error) { return "", d.umount(ctx, firstNode) }},
		{"join a second node", func(ctx context.Context) (string, error) { return "", d.join(ctx) }},
		{"mount it on " + secondNode, func(ctx context.Context) (string, error) { return "", d.mount(ctx, secondNode) }},
		{"read the file back", d.read},
		{"expand the claim", d.grow},
		{"see the mounted filesystem expanded", d.checkGrown},
		{"delete everything", func(ctx context.Context) (string, error) {
			return "", errors.Join(d.umount(ctx, secondNode), d.run(ctx, "delete", "pvc", claimName))
		}},
		{"check that nothing is left", d.checkLeftovers},
		{"stop the control plane", func(context.Context) (string, error) { return "", d.stop() }},
	}
}

func (d *demo) data() string { return filepath.Join(d.dir, "data") }
func (d *demo) pool() string { return filepath.Join(d.data(), "pool") }

// path is where the volume is mounted by a node.
func (d *demo) path(node string) string { return filepath.Join(d.dir, "mounted-by-"+node) }

// run runs a verb as a user of the demo's control plane.
func (d *demo) run(ctx context.Context, args ...string) error {
	return d.verb(ctx, append(args, "--data-dir", d.data())...)
}

func (d *demo) start(ctx context.Context) (string, error) {
	var err error
	d.plane, err = start(ctx, d.dir, "plane.log", d.standalone, "up", "--data-dir", d.data(), "--listen", "127.0.0.1:0",
		"--name", firstNode)
	if err != nil {
		return "", err
	}
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(d.data(), "admin.kubeconfig"))
	if err != nil {
		return "", fmt.Errorf("read kubeconfig: %w", err)
	}
	config.QPS = -1
	if d.client, err = kubernetes.NewForConfig(config); err != nil {
		return "", fmt.Errorf("client: %w", err)
	}
	return config.Host, nil
}

// claim creates the claim, of the default class if this process can expand its
// volumes while they are mounted, or else of one with xfs. The expansion of mounted
// ext4 needs CAP_SYS_RESOURCE, which some containers and virtual machines withhold
// even from root.
func (d *demo) claim(ctx context.Context) (string, error) {
	create := []string{"create", claimName, "--size", firstSize}
	if mayGrowExt4() {
		return firstSize + " of the default class", d.run(ctx, create...)
	}
	c := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "demo-xfs"}, Provisioner: volume.LocalDriver,
		Parameters:           map[string]string{"csi.storage.k8s.io/fstype": "xfs"},
		AllowVolumeExpansion: ptr.To(true), VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
	}
	if _, err := doors.Create(ctx, d.client.StorageV1().StorageClasses().Create, c); err != nil {
		return "", err
	}
	return firstSize + " of class " + c.Name + " (ext4 cannot be expanded online: CAP_SYS_RESOURCE is missing here)",
		d.run(ctx, append(create, "--class", c.Name)...)
}

// mayGrowExt4 says whether this process, and so its children, has
// CAP_SYS_RESOURCE.
func mayGrowExt4() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	err := unix.Capget(&header, &caps[0])
	return err == nil && caps[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

// mount has a node mount the claim, and looks into the mount table.
func (d *demo) mount(ctx context.Context, node string) error {
	at := d.path(node)
	if err := os.Mkdir(at, 0o700); err != nil {
		return fmt.Errorf("create the directory to mount at: %w", err)
	}
	if err := d.run(ctx, "mount", claimName, at, "--node", node); err != nil {
		return err
	}
	_, mounted, err := mount.At(at)
	if err == nil && !mounted {
		err = fmt.Errorf("the node reports a mount at %q, but the mount table has none", at)
	}
	return err
}

func (d *demo) umount(ctx context.Context, node string) error {
	return d.run(ctx, "umount", d.path(node), "--node", node)
}

func (d *demo) write(context.Context) (string, error) {
	content := make([]byte, fileBytes)
	_, _ = rand.Read(content)
	d.sum = checksum(content)
	file, err := os.OpenFile(filepath.Join(d.path(firstNode), fileName), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return "", err
	}
	defer file.Close()
	if _, err := file.Write(content); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d MiB, sha256 %s...", fileBytes>>20, d.sum[:12]), file.Sync()
}

func checksum(content []byte) string { return fmt.Sprintf("%x", sha256.Sum256(content)) }

// join starts a second node agent with the same pool, like another host with shared
// storage.
func (d *demo) join(ctx context.Context) error {
	identity, err := exec.CommandContext(ctx, d.standalone, "invite", secondNode, "--data-dir", d.data()).Output()
	if err != nil {
		return fmt.Errorf("invite %s: %w", secondNode, err)
	}
	file := filepath.Join(d.dir, "node2.kubeconfig")
	if err := os.WriteFile(file, identity, 0o600); err != nil {
		return fmt.Errorf("write identity: %w", err)
	}
	own, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	d.node, err = start(ctx, d.dir, "node2.log", own, "node", "--join", file, "--root-dir", filepath.Join(d.dir, "node2"),
		"--pool", d.pool())
	return err
}

func (d *demo) read(context.Context) (string, error) {
	content, err := os.ReadFile(filepath.Join(d.path(secondNode), fileName))
	if err == nil && checksum(content) != d.sum {
		err = errors.New("the checksum differs from that of the written file")
	}
	return "the checksum is the same", err
}

func (d *demo) grow(ctx context.Context) (string, error) {
	has, err := mount.Stat(d.path(secondNode))
	if err != nil {
		return "", err
	}
	d.size = has.Total
	return firstSize + " to " + grownSize, d.run(ctx, "resize", claimName, grownSize)
}

func (d *demo) checkGrown(context.Context) (string, error) {
	has, err := mount.Stat(d.path(secondNode))
	if err == nil && has.Total < d.size+d.size/2 {
		err = fmt.Errorf("the claim has %s, but the mounted filesystem was expanded only from %d to %d bytes", grownSize,
			d.size, has.Total)
	}
	return fmt.Sprintf("%d to %d MiB for files", d.size>>20, has.Total>>20), err
}

// checkLeftovers waits until no object, file, mount or loop device of a volume
// exists.
func (d *demo) checkLeftovers(ctx context.Context) (string, error) {
	var left []string
	err := wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		now, err := d.leftovers(ctx)
		if err == nil {
			left = now
		}
		return len(left) == 0, err
	})
	if wait.Interrupted(err) && len(left) > 0 {
		err = fmt.Errorf("left: %s", strings.Join(left, ", "))
	}
	return "no object, volume file, mount or loop device", err
}

// leftovers returns the names of all objects, files, mounts and loop devices of
// volumes.
func (d *demo) leftovers(ctx context.Context) ([]string, error) {
	r := shell.Facts(d.client)
	if err := r.Overview(ctx); err != nil {
		return nil, err
	}
	left := slices.Concat(shell.Named("pod ", r.Pods), shell.Named("claim ", r.Claims), shell.Named("volume ", r.Volumes),
		shell.Named("attachment ", r.Attachments))
	for _, kind := range []string{"volumes", "snapshots"} {
		files, err := os.ReadDir(filepath.Join(d.pool(), kind))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("read the pool: %w", err)
		}
		for _, f := range files {
			left = append(left, "file "+kind+"/"+f.Name())
		}
	}
	mounts, err := mount.Below(d.dir)
	for _, m := range mounts {
		left = append(left, "mount "+m.Path)
	}
	for _, device := range loopsBelow(d.dir) {
		left = append(left, "loop device "+device)
	}
	return left, err
}

// stop ends the processes, the second node first.
func (d *demo) stop() error { return errors.Join(d.node.stop(), d.plane.stop()) }

// cleanUp undoes a run. After an interruption it first deletes the objects, so
// that the control plane unmounts and deletes the volumes; then it stops the
// processes and removes leftover mounts and loop devices itself.
func (d *demo) cleanUp(ctx context.Context, interrupted bool) error {
	if interrupted && d.client != nil && d.plane.running() {
		limited, cancel := context.WithTimeout(ctx, cleanupTime)
		// Errors are ignored, because the code below removes leftovers.
		_ = errors.Join(d.umount(limited, firstNode), d.umount(limited, secondNode),
			d.run(limited, "delete", "pvc", claimName))
		cancel()
	}
	err := d.stop()
	mounts, unread := mount.Below(d.dir)
	err = errors.Join(err, unread)
	for _, m := range slices.Backward(mounts) {
		err = errors.Join(err, mount.UnmountTop(m.Path, true))
	}
	for _, device := range loopsBelow(d.dir) {
		err = errors.Join(err, detachLoop("/dev/"+device))
	}
	return err
}

func detachLoop(device string) error {
	f, err := os.Open(device)
	if err != nil {
		return fmt.Errorf("open loop device: %w", err)
	}
	defer f.Close()
	if err := unix.IoctlSetInt(int(f.Fd()), unix.LOOP_CLR_FD, 0); err != nil && !errors.Is(err, unix.ENXIO) {
		return fmt.Errorf("detach %s: %w", device, err)
	}
	return nil
}

// loopsBelow returns the loop devices over files below dir.
func loopsBelow(dir string) []string {
	var out []string
	backing, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, b := range backing {
		if data, err := os.ReadFile(b); err == nil && strings.HasPrefix(string(data), dir+"/") {
			out = append(out, filepath.Base(filepath.Dir(filepath.Dir(b))))
		}
	}
	return out
}
