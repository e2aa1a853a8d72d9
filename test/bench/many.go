package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"golang.org/x/sync/errgroup"

	"volplane.dev/volplane/internal/node/volumes"
	"volplane.dev/volplane/test/internal/plane"
)

// measureMany creates and mounts n claims and their Pods in parallel, and before and after that does by hand to n
// images what the driver does: a device, a filesystem and a mount, with as many in parallel as in the node agent.
func measureMany(ctx context.Context, figures map[string]any, n int) error {
	dir, err := os.MkdirTemp("", "volplane-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	before, err := measureBare(ctx, filepath.Join(dir, "before"), n)
	if err != nil {
		return err
	}
	if err := measureManyClaims(ctx, filepath.Join(dir, "plane"), figures, n); err != nil {
		return err
	}
	after, err := measureBare(ctx, filepath.Join(dir, "after"), n)
	if err != nil {
		return err
	}
	bare := (before + after).Seconds() / 2
	figures["bare_mounted_s"] = bare
	figures["storm_times_bare"] = figures["storm_mounted_s"].(float64) / bare
	return nil
}

func measureManyClaims(ctx context.Context, dir string, figures map[string]any, n int) error {
	p, err := plane.Start(ctx, dir)
	if err != nil {
		return err
	}
	defer p.Stop()
	client, err := p.Client()
	if err != nil {
		return err
	}
	before, err := readUsage(p.PID())
	if err != nil {
		return err
	}
	if err := measureStorm(ctx, client, figures, n); err != nil {
		return err
	}
	after, err := readUsage(p.PID())
	if err != nil {
		return err
	}
	figures["storm_life_cpu_ms_each"] = milliseconds(after.cpu-before.cpu) / float64(n)
	return measureWrites(ctx, p.PID(), client, figures, 10*n)
}

// measureWrites creates n objects that no controller watches, which shows the cost of a request in the API server and
// etcd alone. A claim and its Pod are two such requests before any other work.
func measureWrites(ctx context.Context, pid int, client kubernetes.Interface, figures map[string]any, n int) error {
	before, err := readUsage(pid)
	if err != nil {
		return err
	}
	var all errgroup.Group
	all.SetLimit(volumes.DriverLimit)
	for i := range n {
		all.Go(func() error {
			_, err := client.CoordinationV1().Leases(metav1.NamespaceDefault).Create(ctx,
				&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("written-", i)}}, metav1.CreateOptions{})
			return err
		})
	}
	if err := all.Wait(); err != nil {
		return err
	}
	after, err := readUsage(pid)
	figures["bare_write_cpu_ms"] = milliseconds(after.cpu-before.cpu) / float64(n)
	return err
}

// measureBare mounts n new images with the programs that a user would use, and undoes that.
func measureBare(ctx context.Context, dir string, n int) (time.Duration, error) {
	devices := make([]string, n)
	at := func(i int, name string) string { return filepath.Join(dir, fmt.Sprint(i), name) }
	each := func(f func(i int) error) error {
		var all errgroup.Group
		all.SetLimit(volumes.DriverLimit)
		for i := range n {
			all.Go(func() error { return f(i) })
		}
		return all.Wait()
	}
	took, err := timed(func() error {
		return each(func(i int) (err error) {
			if err := os.MkdirAll(at(i, "mount"), 0o700); err != nil {
				return err
			}
			devices[i], err = mountBare(ctx, at(i, "image"), at(i, "mount"))
			return err
		})
	})
	undone := each(func(i int) error {
		if devices[i] == "" {
			return nil
		}
		// An image that was not mounted has only a device.
		_, unmounted := output(ctx, "umount", at(i, "mount"))
		_, detached := output(ctx, "losetup", "-d", devices[i])
		if err != nil {
			unmounted = nil
		}
		return errors.Join(unmounted, detached)
	})
	return took, errors.Join(err, undone)
}

// mountBare makes an image with a filesystem and mounts it, and returns its device.
func mountBare(ctx context.Context, image, target string) (device string, err error) {
	f, err := os.Create(image)
	if err != nil {
		return "", err
	}
	if err := errors.Join(f.Truncate(64<<20), f.Close()); err != nil {
		return "", err
	}
	if device, err = output(ctx, "losetup", "--find", "--show", image); err != nil {
		return "", err
	}
	if _, err := output(ctx, "mkfs.ext4", "-q", "-F", "-m", "0", "-E",
		"lazy_itable_init=1,lazy_journal_init=1,nodiscard", device); err != nil {
		return device, err
	}
	_, err = output(ctx, "mount", "-t", "ext4", device, target)
	return device, err
}

// output runs a program, and returns what it has printed.
func output(ctx context.Context, name string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out)), nil
}
