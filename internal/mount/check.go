package mount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

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

// unmounted says whether something is a block device whose filesystem is not mounted anywhere, in
// any mount namespace.
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
