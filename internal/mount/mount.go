package mount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// toolLimit is the time limit of mount, mkfs and other tools. It is long, because mkfs on a slow
// disk must not be killed.
const toolLimit = 5 * time.Minute

// Device mounts the filesystem of a block device at target, an existing directory. Options are those of mount(8). An
// ext2, ext3 or ext4 filesystem that is not mounted anywhere yet, and will be writable, is checked first; the error is
// ErrNeedsPerson if e2fsck cannot repair it automatically, and ErrHeld if another process uses the device. It may be
// repeated.
func Device(ctx context.Context, device, target, fsType string, options []string) error {
	return mountDevice(ctx, device, target, fsType, options, !readOnly(options))
}

// NewDevice is Device for a filesystem that the caller has just created, which needs no check.
func NewDevice(ctx context.Context, device, target, fsType string, options []string) error {
	return mountDevice(ctx, device, target, fsType, options, false)
}

func mountDevice(ctx context.Context, device, target, fsType string, options []string, checks bool) error {
	dir, err := open(target, unix.O_PATH)
	if err != nil {
		return fail("mount "+device+" at", target, err)
	}
	place := os.NewFile(uintptr(dir), target)
	defer place.Close()
	at, mounted, err := Look(target)
	if err != nil {
		return err
	}
	if mounted {
		if at.Source == device {
			return nil
		}
		return fmt.Errorf("mount %s at %s: %w: %s", device, target, ErrOccupied, at.Source)
	}
	if checks {
		if err := check(ctx, device, fsType); err != nil {
			return err
		}
	}
	return mountAtDir(ctx, device, place, fsType, options)
}

// inherited is the path of the first inherited file, or of what is mounted there. Without the dot, mount(8) would not
// follow the link.
const inherited = "/proc/self/fd/3/."

// mountAtDir mounts at an open directory, wherever its path leads by now, and unmounts that if it
// is not at the path any more.
func mountAtDir(ctx context.Context, device string, place *os.File, fsType string, options []string) error {
	args := []string{"--no-canonicalize", "-t", fsType}
	if len(options) > 0 {
		args = append(args, "-o", strings.Join(options, ","))
	}
	target := place.Name()
	if err := toolAt(ctx, place, "mount", append(args, "--", device, inherited)...); err != nil {
		return err
	}
	if at, mounted, err := Look(target); err != nil || !mounted || at.Source != device {
		return fail("mount "+device+" at", target,
			errors.Join(ErrMoved, err, unix.Unmount(fdPath(int(place.Fd()))+"/.", unix.MNT_DETACH)))
	}
	return nil
}

// tool runs a program of the host with a limit of time and output.
func tool(ctx context.Context, name string, args ...string) error {
	return toolAt(ctx, nil, name, args...)
}

// toolAt runs a program that inherits an open directory, or nil. Errors show the directory's path instead of the
// inherited one.
func toolAt(ctx context.Context, place *os.File, name string, args ...string) error {
	_, err := output(ctx, place, name, args...)
	if errors.Is(err, exec.ErrWaitDelay) {
		// The program has succeeded, but its output is still open: in a daemon that it has started, or in another child that
		// this process is starting at the same time.
		return nil
	}
	return err
}

// maxOutput is how many bytes of a program's output are kept.
const maxOutput = 4 << 10

func toolOutput(ctx context.Context, name string, args ...string) (string, error) {
	return output(ctx, nil, name, args...)
}

func output(ctx context.Context, place *os.File, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, toolLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	cmd.WaitDelay = time.Second
	out := &head{}
	cmd.Stdout, cmd.Stderr = out, out
	call := name + " " + strings.Join(args, " ")
	withPath := func(text string) string { return text }
	if place != nil {
		cmd.ExtraFiles = []*os.File{place}
		withPath = func(text string) string { return strings.ReplaceAll(text, inherited, place.Name()) }
	}
	if err := cmd.Run(); err != nil {
		text := strings.Join(strings.Fields(string(out.kept)), " ")
		if strings.Contains(text, "must be superuser") || strings.Contains(text, "ermission denied") {
			err = fmt.Errorf("%w: %w", ErrNotPermitted, err)
		}
		return string(out.kept), fmt.Errorf("%s: %w: %s", withPath(call), err, withPath(text))
	}
	return string(out.kept), nil
}

// head keeps the first bytes that are written to it and drops the rest.
type head struct{ kept []byte }

// Write never fails.
func (h *head) Write(p []byte) (int, error) {
	h.kept = append(h.kept, p[:min(len(p), maxOutput-len(h.kept))]...)
	return len(p), nil
}

func splitOptions(s string) []string { return strings.Split(s, ",") }
