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

// toolLimit bounds mount, mkfs and the like; it is generous because a slow
// disk is no reason to kill a mkfs.
const toolLimit = 5 * time.Minute

// Device mounts the filesystem on a block device at target, an existing
// directory. Options are those of mount(8). A filesystem of ext2, ext3 or ext4
// that is mounted nowhere, and is not to be mounted read-only, is checked
// before; one that e2fsck cannot mend by itself is refused with ErrNeedsPerson,
// one that somebody else works on with ErrHeld.
func Device(ctx context.Context, device, target, fsType string, options []string) error {
	dir, err := open(target, unix.O_PATH)
	if err != nil {
		return fail("mount "+device+" at", target, err)
	}
	place := os.NewFile(uintptr(dir), target)
	defer place.Close()
	at, mounted, err := At(target)
	if err != nil {
		return err
	}
	if mounted {
		if at.Source == device {
			return nil
		}
		return fmt.Errorf("mount %s at %s: %w: %s", device, target, ErrOccupied, at.Source)
	}
	if !readOnly(options) {
		if err := check(ctx, device, fsType); err != nil {
			return err
		}
	}
	return mountAtPlace(ctx, device, place, fsType, options)
}

// inherited is the path of the first file that a program inherits, and what is
// mounted there: without the dot mount(8) would not follow the link.
const inherited = "/proc/self/fd/3/."

// mountAtPlace mounts at a directory that is open, wherever its path leads by
// now, and takes that away if it is elsewhere.
func mountAtPlace(ctx context.Context, device string, place *os.File, fsType string, options []string) error {
	args := []string{"--no-canonicalize", "-t", fsType}
	if len(options) > 0 {
		args = append(args, "-o", strings.Join(options, ","))
	}
	target := place.Name()
	if err := toolAt(ctx, place, "mount", append(args, "--", device, inherited)...); err != nil {
		return err
	}
	if at, mounted, err := At(target); err != nil || !mounted || at.Source != device {
		return fail("mount "+device+" at", target,
			errors.Join(ErrMoved, err, unix.Unmount(self(int(place.Fd()))+"/.", unix.MNT_DETACH)))
	}
	return nil
}

// tool runs a program of the host with bounded time and output.
func tool(ctx context.Context, name string, args ...string) error {
	return toolAt(ctx, nil, name, args...)
}

// toolAt has the program inherit a place, which the program's words are shown
// with the name of; nil is none.
func toolAt(ctx context.Context, place *os.File, name string, args ...string) error {
	_, err := output(ctx, place, name, args...)
	if errors.Is(err, exec.ErrWaitDelay) {
		// It has ended well, and somebody still has its output open: a daemon that
		// it started, or what another part of ours is starting just now.
		return nil
	}
	return err
}

// maxOutput bounds what of a program's output is kept.
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
	named := func(text string) string { return text }
	if place != nil {
		cmd.ExtraFiles = []*os.File{place}
		named = func(text string) string { return strings.ReplaceAll(text, inherited, place.Name()) }
	}
	if err := cmd.Run(); err != nil {
		said := strings.Join(strings.Fields(string(out.kept)), " ")
		if strings.Contains(said, "must be superuser") || strings.Contains(said, "ermission denied") {
			err = fmt.Errorf("%w: %w", ErrNotPermitted, err)
		}
		return string(out.kept), fmt.Errorf("%s: %w: %s", named(call), err, named(said))
	}
	return string(out.kept), nil
}

// head keeps the first bytes written to it and swallows the rest.
type head struct{ kept []byte }

// Write never fails.
func (h *head) Write(p []byte) (int, error) {
	h.kept = append(h.kept, p[:min(len(p), maxOutput-len(h.kept))]...)
	return len(p), nil
}

func splitOptions(s string) []string { return strings.Split(s, ",") }
