package local

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/testkit"
)

// TestLifeReadsTheTableOnce: however many other mounts there are, the mount table is read once in a volume's life,
// when its device is to be detached.
func TestLifeReadsTheTableOnce(t *testing.T) {
	// The calls are made here and not over a socket, so that this thread makes them.
	defer runtime.UnlockOSThread()
	runtime.LockOSThread()
	dir := newDir(t)
	p, err := openPool(filepath.Join(dir, "pool"), "n1")
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	n, c := &node{pool: p, id: "n1"}, &controller{pool: p, log: slog.New(slog.DiscardHandler)}
	few := lifeReads(t, c, n, "few", dir)
	others := filepath.Join(dir, "others")
	defer func() { _ = unix.Unmount(others, unix.MNT_DETACH) }()
	if err := errors.Join(os.Mkdir(others, 0o700), unix.Mount("others", others, "tmpfs", 0, "")); err != nil {
		t.Fatal(err)
	}
	before := testkit.BytesRead(t)
	table, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 300 {
		at := filepath.Join(others, fmt.Sprint(i))
		if err := errors.Join(os.Mkdir(at, 0o700), unix.Mount("other", at, "tmpfs", 0, "")); err != nil {
			t.Fatal(err)
		}
	}
	larger, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil || testkit.BytesRead(t)-before < len(table)+len(larger) {
		t.Fatalf("what is read of the table is not counted, %v", err)
	}
	grown := len(larger) - len(table)
	if many := lifeReads(t, c, n, "many", dir); many-few > grown*3/2 {
		t.Errorf("a life has read %d bytes more beside %d bytes more of the table", many-few, grown)
	}
}

// lifeReads plays the life of a volume and returns how many bytes this thread has read.
func lifeReads(t *testing.T, c *controller, n *node, name, dir string) int {
	t.Helper()
	ctx, before := t.Context(), testkit.BytesRead(t)
	made, err := c.CreateVolume(ctx, request(name, 16*mib, "ext4"))
	if err != nil {
		t.Fatal(err)
	}
	id, as := made.GetVolume().GetVolumeId(), capability("ext4")
	staging, target := filepath.Join(dir, "staging-"+name), filepath.Join(dir, "target-"+name)
	for _, step := range []func() error{
		func() error {
			_, err := c.ControllerPublishVolume(ctx, &csipb.ControllerPublishVolumeRequest{
				VolumeId: id, NodeId: "n1", VolumeCapability: as,
			})
			return err
		},
		func() error {
			_, err := n.NodeStageVolume(ctx, &csipb.NodeStageVolumeRequest{
				VolumeId: id, StagingTargetPath: staging, VolumeCapability: as,
			})
			return err
		},
		func() error {
			_, err := n.NodePublishVolume(ctx, &csipb.NodePublishVolumeRequest{
				VolumeId: id, StagingTargetPath: staging, TargetPath: target, VolumeCapability: as,
			})
			return err
		},
		func() error {
			_, err := n.NodeUnpublishVolume(ctx, &csipb.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target})
			return err
		},
		func() error {
			_, err := n.NodeUnstageVolume(ctx, &csipb.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: staging})
			return err
		},
		func() error {
			_, err := c.ControllerUnpublishVolume(ctx, &csipb.ControllerUnpublishVolumeRequest{VolumeId: id, NodeId: "n1"})
			return err
		},
		func() error {
			_, err := c.DeleteVolume(ctx, &csipb.DeleteVolumeRequest{VolumeId: id})
			return err
		},
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	return testkit.BytesRead(t) - before
}
