//go:build linux

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// checkLeftovers waits until no object, file, mount or loop device of a volume
// exists, and fails after ten seconds.
func (d *demo) checkLeftovers(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		left, err := d.leftovers(ctx)
		if err != nil {
			return "", err
		}
		if len(left) == 0 {
			return "no object, volume file, mount or loop device", nil
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("left: %s", strings.Join(left, ", "))
		case <-tick.C:
		}
	}
}

// leftovers returns the names of all objects, files, mounts and loop devices of
// volumes.
func (d *demo) leftovers(ctx context.Context) ([]string, error) {
	left, err := d.leftoverObjects(ctx)
	if err != nil {
		return nil, err
	}
	for _, kind := range []string{"volumes", "snapshots"} {
		files, err := os.ReadDir(filepath.Join(d.pool(), kind))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("look into the pool: %w", err)
		}
		for _, f := range files {
			left = append(left, "file "+kind+"/"+f.Name())
		}
	}
	for _, m := range mountsBelow(d.dir) {
		left = append(left, "mount "+m)
	}
	for _, l := range loopsBelow(d.dir) {
		left = append(left, "loop device "+l)
	}
	return left, nil
}

func (d *demo) leftoverObjects(ctx context.Context) ([]string, error) {
	r := newFacts(d.client)
	err := r.Overview(ctx)
	return slices.Concat(named("pod ", r.Pods), named("claim ", r.Claims), named("volume ", r.Volumes),
		named("attachment ", r.Attachments)), err
}

// named returns the names of objects, with the prefix.
func named[T metav1.Object](prefix string, objects []T) []string {
	var out []string
	for _, o := range objects {
		out = append(out, prefix+o.GetName())
	}
	return out
}

// stop ends the processes, the second node first.
func (d *demo) stop() error {
	return errors.Join(d.node.stop(), d.plane.stop())
}

// cleanUp undoes a run. After an interruption it first deletes the objects, so
// that the control plane unmounts and deletes the volumes; then it stops the
// processes and removes leftover mounts and loop devices itself.
func (d *demo) cleanUp(ctx context.Context, interrupted bool) error {
	if interrupted && d.client != nil && d.plane.running() {
		limited, cancel := context.WithTimeout(ctx, cleanupTime)
		// An error is ignored, because the code below removes leftovers.
		_, _ = d.remove(limited)
		cancel()
	}
	err := d.stop()
	mounts := mountsBelow(d.dir)
	slices.Reverse(mounts)
	for _, m := range mounts {
		if e := unix.Unmount(m, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); e != nil {
			err = errors.Join(err, fmt.Errorf("unmount %s: %w", m, e))
		}
	}
	for _, l := range loopsBelow(d.dir) {
		err = errors.Join(err, detachLoop("/dev/"+l))
	}
	return err
}

func detachLoop(device string) error {
	f, err := os.OpenFile(device, os.O_RDONLY, 0)
	if err != nil {
		return fmt.Errorf("open loop device: %w", err)
	}
	defer f.Close()
	if err := unix.IoctlSetInt(int(f.Fd()), unix.LOOP_CLR_FD, 0); err != nil && !errors.Is(err, unix.ENXIO) {
		return fmt.Errorf("detach %s: %w", device, err)
	}
	return nil
}

// mountsBelow returns the mount points below dir in the order of mounting.
func mountsBelow(dir string) []string {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	var out []string
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			out = append(out, f[4])
		}
	}
	return out
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
