package mount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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
	if err := plain(target); err != nil {
		return err
	}
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
	args := []string{"-t", fsType}
	if len(options) > 0 {
		args = append(args, "-o", strings.Join(options, ","))
	}
	return tool(ctx, "mount", append(args, "--", device, target)...)
}

// Bind shows source at target as well; both are directories or both are not.
func Bind(source, target string, readOnly bool) error {
	if err := plain(target); err != nil {
		return err
	}
	same, err := shows(source, target)
	if err != nil {
		return err
	}
	if !same {
		if _, mounted, err := At(target); err != nil || mounted {
			return errors.Join(err, fmt.Errorf("bind %s to %s: %w", source, target, ErrOccupied))
		}
		if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
			return fail("bind "+source+" to", target, err)
		}
	}
	if !readOnly {
		return nil
	}
	// The kernel takes the read-only flag of a bind in a second step only. A
	// bind that cannot be made read-only must not stay.
	var st unix.Statfs_t
	err = unix.Statfs(target, &st)
	if err == nil {
		err = unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|uintptr(st.Flags)&keptFlags, "")
	}
	if err != nil {
		return errors.Join(fail("make read-only", target, err), Unmount(target))
	}
	return nil
}

// keptFlags are what a mount forbids or leaves out, in the numbers that mount and
// statfs share: a remount that does not name them takes them away.
const keptFlags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NOATIME | unix.MS_NODIRATIME

// shows says whether a mount at target already shows source.
func shows(source, target string) (bool, error) {
	if _, mounted, err := At(target); err != nil || !mounted {
		return false, err
	}
	a, err := os.Stat(source)
	if err != nil {
		return false, fmt.Errorf("look at %s: %w", source, err)
	}
	b, err := os.Stat(target)
	if err != nil {
		return false, fmt.Errorf("look at %s: %w", target, err)
	}
	return os.SameFile(a, b), nil
}

// busyTries and busyPause are how often, and how far apart, something that is
// in use is tried to be unmounted.
const (
	busyTries = 5
	busyPause = 20 * time.Millisecond
)

// Unmount takes away every mount at target, topmost first. It does not touch
// mounts below it and fails while somebody uses it, or hides it.
func Unmount(target string) error { return takeAll("unmount", target, unmountOnce) }

// takeAll takes away what is mounted at a path, one after the other.
func takeAll(deed, target string, take func(string) error) error {
	if err := plain(target); err != nil {
		return err
	}
	for last := 0; ; {
		at, mounted, err := At(target)
		if err != nil || !mounted {
			return err
		}
		// EINVAL is what a mount gives that somebody else was quicker with.
		if err := take(target); err != nil && (!errors.Is(err, unix.EINVAL) || at.ID == last) {
			return fail(deed, target, err)
		}
		last = at.ID
	}
}

// unmountOnce takes one mount away. A process that is being started shares the
// open files of the one that starts it for a moment, also those that it closes:
// so who is busy is asked a few times.
func unmountOnce(target string) error {
	pause := time.NewTicker(busyPause)
	defer pause.Stop()
	for try := 1; ; try++ {
		err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW)
		if !errors.Is(err, unix.EBUSY) || try == busyTries {
			return err
		}
		<-pause.C
	}
}

// plain refuses relative paths and paths through symbolic links, which could
// lead a mount or an unmount elsewhere (CVE-2021-25741). What does not exist
// passes.
func plain(path string) error {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return fmt.Errorf("%s: %w: it is not absolute and clean", path, ErrNotPlain)
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS})
	switch {
	case err == nil:
		return unix.Close(fd)
	case errors.Is(err, unix.ELOOP):
		return fmt.Errorf("%s: %w", path, ErrNotPlain)
	default:
		// What is wrong otherwise shows when the path is used.
		return nil
	}
}

// tool runs a program of the host with bounded time and output.
func tool(ctx context.Context, name string, args ...string) error {
	_, err := toolOutput(ctx, name, args...)
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
	ctx, cancel := context.WithTimeout(ctx, toolLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	cmd.WaitDelay = time.Second
	out := &head{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		said := strings.Join(strings.Fields(string(out.kept)), " ")
		if strings.Contains(said, "must be superuser") || strings.Contains(said, "ermission denied") {
			err = fmt.Errorf("%w: %w", ErrNotPermitted, err)
		}
		return string(out.kept), fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, said)
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
