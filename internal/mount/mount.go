package mount

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
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

// Errors that callers distinguish.
var (
	// ErrNotPermitted says that the process may not mount.
	ErrNotPermitted = errors.New("not permitted: mounting needs root (CAP_SYS_ADMIN); start volplane as root")
	// ErrExpandLater says that a mounted filesystem cannot be expanded; it is expanded when it is mounted the next time.
	ErrExpandLater = errors.New("ext4 cannot be expanded while it is mounted if it has errors, or if this process does " +
		"not have CAP_SYS_RESOURCE; it is expanded when it is next mounted")
	// ErrUnknownFS says that a filesystem type is not supported or its tools are not installed.
	ErrUnknownFS = errors.New("filesystem not supported")
	// ErrNotBlank says that a device holds data of another kind; it is never formatted.
	ErrNotBlank = errors.New("device is not blank")
	// ErrNeedsPerson says that a filesystem has errors whose repair could lose data, so a user has to decide. The error
	// repeats until the filesystem is repaired.
	ErrNeedsPerson = errors.New("has errors that have to be repaired manually")
	// ErrHeld says that another process has the device open exclusively. The call may be repeated.
	ErrHeld = errors.New("another program is using it; try again after that has ended")
	// ErrNoLoop says that no loop device is free.
	ErrNoLoop = errors.New("no loop device is available: unmount some volumes, or load the loop module with a larger " +
		"max_loop")
	// ErrOccupied says that something else is mounted at the target.
	ErrOccupied = errors.New("another filesystem is mounted there")
	// ErrHidden says that a mount cannot be reached by its path any more, because something was mounted above it later.
	ErrHidden = errors.New("what is mounted there is hidden by another mount above it")
	// ErrNotFree says that a path has something other than an empty directory or file.
	ErrNotFree = errors.New("another file is there")
	// ErrNotPlain says that a path is or contains a symbolic link.
	ErrNotPlain = errors.New("path is a symbolic link or passes through one")
	// ErrMoved says that directories of a path were moved while something was mounted or
	// unmounted there. Nothing was changed elsewhere.
	ErrMoved = errors.New("another process is moving directories of the path; stop it")
	// ErrUnbindable says that there is an unbindable mount below the source.
	ErrUnbindable = errors.New("what is mounted below it cannot be bound (mount --make-unbindable)")
	// ErrOldKernel says that the kernel cannot bind a tree of mounts (mount_setattr).
	ErrOldKernel = errors.New("the kernel is too old: Linux 5.12 or later is required")
)

// fail adds the operation and its object to an error of the kernel.
func fail(operation, object string, err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return fmt.Errorf("%s %s: %w", operation, object, ErrNotPermitted)
	}
	if errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("%s %s: %w", operation, object, ErrOldKernel)
	}
	return fmt.Errorf("%s %s: %w", operation, object, err)
}

// Bits of the exit code of e2fsck (e2fsck(8)).
const (
	fsckUncorrected = 4
	fsckCancelled   = 32
)

// check repairs a filesystem, as far as that needs no decision, before it is mounted read-write, and refuses one that
// needs a user's decision (ErrNeedsPerson). xfs and btrfs repair themselves when they are mounted, and their fsck does
// nothing (fsck.xfs(8), fsck.btrfs(8)).
func check(ctx context.Context, device, fsType string) error {
	if !slices.Contains([]string{"ext2", "ext3", "ext4"}, fsType) || !unmounted(device) {
		return nil
	}
	return fsck(ctx, device, "-p")
}

// fsck runs e2fsck, which opens the device exclusively, so that it cannot be mounted at the same
// time. If e2fsck cannot read the device, or is not installed, mounting it is left to the kernel.
func fsck(ctx context.Context, device string, options ...string) error {
	// The caller's deadline is not used: a check of a large filesystem that is interrupted would
	// start over each time, forever.
	err := tool(context.WithoutCancel(ctx), "e2fsck", append(options, device)...)
	var exit *exec.ExitError
	switch {
	case err == nil, errors.Is(err, exec.ErrNotFound):
		return nil
	case !errors.As(err, &exit):
		return err
	case !exit.Exited(), exit.ExitCode()&fsckCancelled != 0:
		return fmt.Errorf("check of the filesystem on %s was ended before its end, as it is after %s: %w", device,
			toolLimit, err)
	case exit.ExitCode()&fsckUncorrected != 0:
		return fmt.Errorf("the filesystem on %s %w: run e2fsck -f %s", device, ErrNeedsPerson, device)
	case strings.Contains(err.Error(), device+" is in use."):
		// For example a check that has outlived the process that started it.
		return fmt.Errorf("check the filesystem on %s: %w", device, ErrHeld)
	}
	return nil
}

// unmounted says whether something is a block device whose filesystem is not mounted anywhere, in any mount namespace.
func unmounted(device string) bool {
	var st unix.Stat_t
	if err := unix.Stat(device, &st); err != nil {
		return false
	}
	name, err := os.Readlink(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev)))
	if err != nil {
		// It is not a block device: mount will report the error.
		return false
	}
	_, err = os.Stat(filepath.Join("/sys/fs/ext4", filepath.Base(name)))
	return errors.Is(err, os.ErrNotExist)
}

// readOnly says whether options of mount(8) request a read-only mount.
func readOnly(options []string) bool {
	return slices.Contains(splitOptions(strings.Join(options, ",")), "ro")
}

// CgroupRoot returns where a hierarchy of cgroup v2 is mounted writable; "" if none is.
func CgroupRoot() (string, error) {
	found, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup2"))
	found = slices.DeleteFunc(found, func(m *mountinfo.Info) bool {
		return slices.Contains(strings.Split(m.Options, ","), "ro")
	})
	if err != nil || len(found) == 0 {
		return "", err
	}
	// Bind mounts of the hierarchy, in the directories of containers for example, have longer paths.
	return slices.MinFunc(found, func(a, b *mountinfo.Info) int {
		return cmp.Or(len(a.Mountpoint)-len(b.Mountpoint), cmp.Compare(a.Mountpoint, b.Mountpoint))
	}).Mountpoint, nil
}
