package mount

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Errors that callers distinguish.
var (
	// ErrNotPermitted says that the process may not mount.
	ErrNotPermitted = errors.New("not permitted: mounting needs root (CAP_SYS_ADMIN); start volplane as root")
	// ErrGrowLater says that a mounted filesystem cannot be expanded; it is expanded when it is
	// mounted the next time.
	ErrGrowLater = errors.New("ext4 cannot be expanded while it is mounted if it has errors, or if this process does " +
		"not have CAP_SYS_RESOURCE; it is expanded when it is next mounted")
	// ErrUnknownFS says that a filesystem type is not supported or its tools
	// are not installed.
	ErrUnknownFS = errors.New("filesystem not supported")
	// ErrNotBlank says that a device holds data of another kind; it is never
	// formatted.
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
	// ErrHidden says that a mount cannot be reached by its path any more, because something was
	// mounted above it later.
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
