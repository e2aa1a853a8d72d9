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

// check mends what a filesystem can mend by itself before it is mounted to be
// written to, and refuses one that needs a person (ErrNeedsPerson). xfs and
// btrfs mend themselves when they are mounted, and their fsck does nothing
// (fsck.xfs(8), fsck.btrfs(8)).
func check(ctx context.Context, device, fsType string) error {
	if !slices.Contains([]string{"ext2", "ext3", "ext4"}, fsType) || !unmounted(device) {
		return nil
	}
	return fsck(ctx, device, "-p")
}

// fsck runs e2fsck, which holds the device so that nobody mounts it meanwhile.
// What it cannot look at, and what there is no e2fsck for, the kernel decides.
func fsck(ctx context.Context, device string, options ...string) error {
	// Who asks may have less time than a large filesystem takes. Ended early,
	// the next one would begin anew, for ever.
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
		// As by a check that outlived the process that began it.
		return fmt.Errorf("check the filesystem on %s: %w", device, ErrHeld)
	}
	return nil
}

// unmounted says whether something is a block device whose filesystem the
// kernel does not serve, at whatever path and in whatever mount namespace.
func unmounted(device string) bool {
	var st unix.Stat_t
	if err := unix.Stat(device, &st); err != nil {
		return false
	}
	name, err := os.Readlink(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev)))
	if err != nil {
		// It is no block device: what to do with it, mount will say.
		return false
	}
	_, err = os.Stat(filepath.Join("/sys/fs/ext4", filepath.Base(name)))
	return errors.Is(err, os.ErrNotExist)
}

// readOnly says whether options of mount(8) ask for a read-only mount.
func readOnly(options []string) bool {
	return slices.Contains(splitOptions(strings.Join(options, ",")), "ro")
}
