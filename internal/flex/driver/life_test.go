package driver_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/flex/driver"
	"volplane.dev/volplane/internal/flex/host"
)

func TestMain(m *testing.M) {
	if root := os.Getenv(lifeMode); root != "" {
		fmt.Println(life(root))
		return
	}
	if path := os.Getenv(driver.HostMode); path != "" {
		d, err := driver.Probe(context.Background(), decide.Name{Driver: "t"}, path, driver.Options{})
		if err == nil {
			_, err = d.Mount(context.Background(), filepath.Join(filepath.Dir(path), "target"), "", decide.Volume{})
		}
		fmt.Println(err)
		return
	}
	os.Exit(m.Run())
}

// lifeMode, in the environment, makes this binary a Host over a directory, which
// mounts a volume and then waits to be killed; cgroupMode is its drivers' cgroup.
const lifeMode, cgroupMode = "FLEX_TEST_LIFE", "FLEX_TEST_CGROUP"

// lefty is the driver of these tests.
func lefty() decide.Name { return decide.Name{Vendor: "example.com", Driver: "t"} }

// hostAt is a host over a directory.
func hostAt(root, cgroup string) *host.Host {
	return &host.Host{
		Dir: filepath.Join(root, "plugins"), StateDir: filepath.Join(root, "state"), Log: slog.New(slog.DiscardHandler),
		Options: func(decide.Name) driver.Options { return driver.Options{Cgroup: cgroup} },
	}
}

// get waits for the driver of a host.
func get(ctx context.Context, h *host.Host) (*driver.Driver, error) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		if d, err := h.Get(lefty()); err == nil || ctx.Err() != nil {
			return d, err
		}
	}
	return nil, ctx.Err()
}

func targetIn(root string) string { return filepath.Join(root, "pods/u/volumes/t/pv") }

func life(root string) error {
	ctx := context.Background()
	h := hostAt(root, os.Getenv(cgroupMode))
	go func() { _ = h.Run(ctx) }()
	d, err := get(ctx, h)
	if err != nil {
		return err
	}
	if _, err := d.Mount(ctx, targetIn(root), "", decide.Volume{}); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, "mounted"), nil, 0o600); err != nil {
		return err
	}
	select {}
}

// writes is what the driver starts to write to the volume: it notes when another
// one does already.
const writes = `#!/bin/sh
exec 9>"$1/one"
flock -n 9 || echo two >>"$1/overlaps"
echo $$ >>"$1/daemons"
exec sleep 1000
`

// lives begins a life of a host, kills it when so, and waits for its end.
func lives(t *testing.T, root, cgroup string, so func() bool) {
	t.Helper()
	killed := exec.CommandContext(t.Context(), os.Args[0])
	killed.Env = append(os.Environ(), lifeMode+"="+root, cgroupMode+"="+cgroup)
	if err := killed.Start(); err != nil {
		t.Fatal(err)
	}
	driver.Eventually(t, "the time to kill the host has come", so)
	if err := killed.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = killed.Wait()
}

// cgroupOf creates a cgroup for a test; "" where the host has no cgroup v2.
func cgroupOf(t *testing.T, label string) string {
	t.Helper()
	name := decide.Name{Vendor: "volplane.test", Driver: label + strconv.Itoa(os.Getpid())}
	dir, err := driver.Cgroup(name)
	if err != nil && !errors.Is(err, driver.ErrNoCgroup) {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if dir != "" {
			driver.Eventually(t, "the cgroup can be removed", func() bool {
				calls, _ := filepath.Glob(filepath.Join(dir, "*-*"))
				for _, call := range calls {
					_ = unix.Rmdir(call)
				}
				return unix.Rmdir(dir) == nil
			})
			_ = unix.Rmdir(filepath.Dir(dir)) // unless others are there
		}
	})
	return dir
}

// TestNeverTwoWriters: what a call of a killed host has started, in its session,
// in another one or without our environment, ends before the next host calls the
// driver again; what a call left behind that had ended lives on.
func TestNeverTwoWriters(t *testing.T) {
	for name, how := range map[string]string{
		"child": "", "session": "setsid ", "environment": "env -i ",
	} {
		for _, grouped := range []bool{true, false} {
			t.Run(name+" "+strconv.FormatBool(grouped), func(t *testing.T) {
				t.Parallel()
				cgroup := ""
				if grouped {
					cgroup = cgroupOf(t, name)
				}
				neverTwo(t, how, cgroup)
			})
		}
	}
}

func neverTwo(t *testing.T, how, cgroup string) {
	t.Helper()
	root := driver.Place(t)
	driver.Install(t, filepath.Join(root, "writer"), writes)
	driver.Install(t, filepath.Join(root, "plugins/example.com~t/t"), driver.Script(root, driver.Ready+`
mount) `+how+`"$root/writer" "$root" & if [ -e "$root/calm" ]; then while ! grep -q $! "$root/daemons"; do :; done; `+
		driver.MountsOne+`; else wait; fi ;;
`+driver.Unmounts))
	const kills = 3
	for n := range kills {
		lives(t, root, cgroup, func() bool { return len(driver.Lines(root, "daemons")) == n+1 })
	}
	if err := os.WriteFile(filepath.Join(root, "calm"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	lives(t, root, cgroup, func() bool {
		_, err := os.Stat(filepath.Join(root, "mounted"))
		return err == nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	h := hostAt(root, cgroup)
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx) }()
	d, err := get(ctx, h)
	if err != nil {
		t.Fatal(err)
	}
	if overlaps := driver.Lines(root, "overlaps"); len(overlaps) > 0 {
		t.Errorf("two writers, %d times", len(overlaps))
	}
	if now := slices.DeleteFunc(driver.Lines(root, "daemons"),
		func(pid string) bool { return !driver.Running(pid) }); len(now) != 1 {
		t.Errorf("writers that live: %v, want the one of the call that had ended", now)
	}
	if _, err := d.Unmount(ctx, targetIn(root)); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(root, "state/calls/*/*")); len(left) > 0 {
		t.Errorf("written down still: %v", left)
	}
}
