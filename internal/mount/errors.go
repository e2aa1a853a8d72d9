package mount

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Reasons that a caller tells apart.
var (
	// ErrNotPermitted says that the process may not mount.
	ErrNotPermitted = errors.New("not permitted: mounting needs root (CAP_SYS_ADMIN); start volplane as root")
	// ErrGrowLater says that a filesystem cannot grow while it is mounted; it
	// grows when it is mounted the next time.
	ErrGrowLater = errors.New("ext4 grows while it is mounted only with CAP_SYS_RESOURCE, which this process does not " +
		"have; it grows when it is mounted the next time")
	// ErrUnknownFS says that a filesystem type is not supported or its tools
	// are not installed.
	ErrUnknownFS = errors.New("filesystem not supported")
	// ErrNotBlank says that a device holds data of another kind; it is never
	// formatted.
	ErrNotBlank = errors.New("device is not blank")
	// ErrNeedsPerson says that a filesystem has errors of which no program may
	// decide what becomes of the data. The same call fails until a person has
	// mended them.
	ErrNeedsPerson = errors.New("has errors that need a person")
	// ErrHeld says that a program that is neither the kernel nor this one has
	// taken a device. It is worth trying again.
	ErrHeld = errors.New("another program works on it; try again when that has ended")
	// ErrNoLoop says that no loop device is free.
	ErrNoLoop = errors.New("no loop device is free: unmount some volumes, or load the loop module with a larger max_loop")
	// ErrOccupied says that something else is mounted at the target.
	ErrOccupied = errors.New("something else is mounted there")
	// ErrHidden says that a mount cannot be reached by its path any more:
	// something was mounted above it later, a directory over itself for one.
	ErrHidden = errors.New("what is mounted there is hidden by another mount above it")
	// ErrNotFree says that something is where nothing but an empty directory
	// may be.
	ErrNotFree = errors.New("something else is there")
	// ErrNotPlain says that a path is a symbolic link or passes one.
	ErrNotPlain = errors.New("path is a symbolic link or passes one")
	// ErrMoved says that somebody moves the directories of a path while something
	// is mounted or unmounted there. Nothing was done elsewhere.
	ErrMoved = errors.New("somebody moves the directories above it; end that")
	// ErrUnbindable says that something is mounted below that the kernel shows in
	// no second place.
	ErrUnbindable = errors.New("what is mounted below it cannot be bound (mount --make-unbindable)")
	// ErrOldKernel says that the kernel cannot bind with all that is below.
	ErrOldKernel = errors.New("the kernel is too old: Linux 5.12 is the oldest that will do")
)

// fail names the deed and the object of an error of the kernel.
func fail(deed, object string, err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return fmt.Errorf("%s %s: %w", deed, object, ErrNotPermitted)
	}
	if errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("%s %s: %w", deed, object, ErrOldKernel)
	}
	return fmt.Errorf("%s %s: %w", deed, object, err)
}
