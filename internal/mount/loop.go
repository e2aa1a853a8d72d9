package mount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// loopTries is how often attaching is retried after another process has taken the free loop device.
const loopTries = 100

// LoopAttach returns the loop device of a file, and creates it if there is none. It may be
// repeated.
func LoopAttach(file string, readOnly bool) (string, error) {
	if found, err := LoopFind(file); err != nil || found != "" {
		return found, err
	}
	flags := os.O_RDWR
	if readOnly {
		flags = os.O_RDONLY
	}
	backing, err := os.OpenFile(file, flags|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return "", fmt.Errorf("loop device over %s: %w", file, err)
	}
	defer backing.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fail("loop device over", file, err)
	}
	defer control.Close()
	for range loopTries {
		device, err := loopTake(control, backing, file, readOnly)
		if err == nil {
			return device, nil
		}
		if !errors.Is(err, unix.EBUSY) {
			return "", err
		}
	}
	return "", fmt.Errorf("loop device over %s: %w", file, ErrNoLoop)
}

// loopTake attaches the file to the device that the kernel reports as free; the error is EBUSY if
// another process was faster.
func loopTake(control, backing *os.File, file string, readOnly bool) (string, error) {
	n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return "", fmt.Errorf("loop device over %s: %w: %w", file, ErrNoLoop, err)
	}
	path := fmt.Sprint("/dev/loop", n)
	if err := loopNode(path, n); err != nil {
		return "", err
	}
	device, err := os.OpenFile(path, os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fail("open", path, err)
	}
	defer device.Close()
	config := unix.LoopConfig{Fd: uint32(backing.Fd())}
	if readOnly {
		config.Info.Flags |= unix.LO_FLAGS_READ_ONLY
	}
	copy(config.Info.File_name[:len(config.Info.File_name)-1], file)
	if err := unix.IoctlLoopConfigure(int(device.Fd()), &config); err != nil {
		return "", fail("configure loop device over", file, err)
	}
	return path, nil
}

// loopNode creates the device node if there is no udev, as in containers.
func loopNode(path string, n int) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	err := unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(7, uint32(n))))
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fail("make", path, err)
	}
	return nil
}

// LoopFind returns the loop device of a file, or "".
func LoopFind(file string) (string, error) {
	want, err := os.Stat(file)
	if err != nil {
		return "", fmt.Errorf("loop device over %s: %w", file, err)
	}
	backing, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return "", fmt.Errorf("list loop devices: %w", err)
	}
	for _, b := range backing {
		name, err := os.ReadFile(b)
		if err != nil {
			continue // it was detached meanwhile
		}
		// A new file may have the name of a deleted one.
		path := strings.TrimSuffix(string(name), "\n")
		got, err := os.Stat(path)
		if err != nil || !os.SameFile(got, want) {
			continue
		}
		return filepath.Join("/dev", filepath.Base(filepath.Dir(filepath.Dir(b)))), nil
	}
	return "", nil
}

// LoopDetach releases the loop device of a file; the kernel does so when its last user has closed
// it. It may be repeated.
func LoopDetach(file string) error {
	path, err := LoopFind(file)
	if err != nil || path == "" {
		return err
	}
	device, err := os.OpenFile(path, os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail("open", path, err)
	}
	defer device.Close()
	if err := unix.IoctlSetInt(int(device.Fd()), unix.LOOP_CLR_FD, 0); err != nil && !errors.Is(err, unix.ENXIO) {
		return fail("detach", path, err)
	}
	return nil
}

// LoopResize sets the size of a loop device to that of its file. It may be repeated.
func LoopResize(path string) error {
	device, err := os.OpenFile(path, os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail("open", path, err)
	}
	defer device.Close()
	if err := unix.IoctlSetInt(int(device.Fd()), unix.LOOP_SET_CAPACITY, 0); err != nil {
		return fail("resize", path, err)
	}
	return nil
}

// The ioctls FIFREEZE and FITHAW, which x/sys does not define.
const (
	ioctlFreeze = 0xC0045877
	ioctlThaw   = 0xC0045878
)

// Freeze blocks all writes to the filesystem at target until the returned function is called. The
// freeze survives the process: call Thaw after a restart.
func Freeze(target string) (thaw func() error, err error) {
	dir, err := openTop(target)
	if err != nil {
		return nil, fail("freeze", target, err)
	}
	if err := unix.IoctlSetInt(dir, ioctlFreeze, 0); err != nil {
		return nil, errors.Join(fail("freeze", target, err), unix.Close(dir))
	}
	// The open directory reaches the filesystem also when something else is mounted at the path by then.
	return func() error {
		defer unix.Close(dir)
		if err := unix.IoctlSetInt(dir, ioctlThaw, 0); err != nil {
			return fail("thaw", target, err)
		}
		return nil
	}, nil
}

// Thaw ends a freeze of the filesystem at target, if there is one. It may be repeated.
func Thaw(target string) {
	if dir, err := openTop(target); err == nil {
		_ = unix.IoctlSetInt(dir, ioctlThaw, 0)
		_ = unix.Close(dir)
	}
}

// openTop opens the top directory of the filesystem that is mounted at target, and no other one.
func openTop(target string) (int, error) {
	dir, err := open(target, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return -1, err
	}
	if _, top, err := mountAt(dir, ""); err != nil || !top {
		return -1, errors.Join(ErrMoved, err, unix.Close(dir))
	}
	return dir, nil
}
