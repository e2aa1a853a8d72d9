package driver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/testkit"
)

// hostMode, in the environment, makes this binary a host that calls a driver:
// what happens to a call when its host dies needs a host that can die.
const hostMode = "FLEX_TEST_HOST"

// bench is a driver, a place for its mounts and what was seen of its calls.
type bench struct {
	*Driver
	root string
	mu   sync.Mutex
	seen []decide.Operation
}

const (
	success   = `echo '{"status":"Success"}'`
	mountsOne = `mount -t tmpfs one "$2"; ` + success
	unmounts  = `unmount) umount "$2" && ` + success + ` ;;`
	// ready is an init without attach.
	ready = `init) echo '{"status":"Success","capabilities":{"attach":false}}' ;;`
	// attaches is one with it.
	attaches = `init) echo '{"status":"Success"}' ;;`
)

// script returns a driver with these branches; others are not supported. $root
// is bench.root; the arguments of each call go to $root/calls, one on a line.
func script(root, branches string) string {
	return `#!/bin/sh
root='` + root + `'
[ "$1" = init ] || printf '%s\n' "$#" "$@" >>"$root/calls"
case "$1" in
` + branches + `
*) echo '{"status":"Not supported"}'; exit 1 ;;
esac
`
}

// place creates a directory for a driver and its mounts. What is mounted in it at the end
// is unmounted.
func place(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	t.Cleanup(func() {
		points, err := mount.Below(root)
		if err != nil {
			t.Error(err)
		}
		for i := range points {
			if err := unix.Unmount(points[len(points)-1-i].Path, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		}
		// Daemons that a script left wrote their number down.
		b, err := os.ReadFile(filepath.Join(root, "daemons"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
		for _, pid := range strings.Fields(string(b)) {
			if n, err := strconv.Atoi(pid); err == nil {
				_ = unix.Kill(n, unix.SIGKILL)
			}
		}
	})
	return root
}

// install writes an executable as an installer does.
func install(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+".new", []byte(content), 0o700); err != nil { //nolint:gosec // it is to be run
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func options(limit time.Duration) Options {
	return Options{
		Settings: decide.Settings{Timeout: metav1.Duration{Duration: limit}, WaitTimeout: metav1.Duration{Duration: limit}},
	}
}

// newBench probes a driver with these branches.
func newBench(t *testing.T, branches string, o Options) *bench {
	t.Helper()
	b := &bench{root: place(t)}
	path := filepath.Join(b.root, "plugins", "example.com~t", "t")
	install(t, path, script(b.root, branches))
	o.ended = func(op decide.Operation) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.seen = append(b.seen, op)
	}
	// A limit is that of calls: it does not apply to init.
	limits := o.Settings
	o.Settings.Timeout.Duration = time.Minute
	var err error
	if b.Driver, err = Probe(t.Context(), decide.Name{Vendor: "example.com", Driver: "t"}, path, o); err != nil {
		t.Fatal(err)
	}
	b.o.Settings = limits
	t.Cleanup(b.o.Calls.Wait)
	return b
}

// dir is where a volume is to be mounted.
func (b *bench) dir() string {
	return filepath.Join(b.root, "pods", "u", "volumes", "example.com~t", "pv")
}

// ops are the operations that were called since init, without their arguments.
func (b *bench) ops() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []string
	for _, op := range b.seen[1:] {
		out = append(out, string(op))
	}
	return strings.Join(out, " ")
}

// mounted lists what is mounted in the place of the bench.
func (b *bench) mounted(t *testing.T) string {
	t.Helper()
	points, err := mount.Below(b.root)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, p := range points {
		out = append(out, p.Source+" at "+p.Path)
	}
	return strings.Join(out, ", ")
}

// eventually waits until something is so.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	testkit.Eventually(t, time.Minute, testkit.Unless(what, so))
}

// lines returns the lines of a file in the place of the bench, none if it is not
// there.
func (b *bench) lines(name string) []string {
	text, _ := os.ReadFile(filepath.Join(b.root, name))
	return strings.Fields(string(text))
}

func running(pid string) bool {
	n, err := strconv.Atoi(pid)
	if err != nil {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", n))
	return err == nil && !strings.Contains(string(stat), ") Z ") && !errors.Is(unix.Kill(n, 0), syscall.ESRCH)
}
