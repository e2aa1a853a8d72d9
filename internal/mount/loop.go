package mount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// loopTries is how often attaching is retried after another process has taken the free loop device.
const loopTries = 100

// Loops finds the loop devices of files, and remembers where it has seen them last: to ask that device is far cheaper
// than to ask all. What is remembered is never believed without that. The zero value is ready, and safe for concurrent
// use.
type Loops struct {
	// seen has paths of devices by the fileID of their files.
	seen sync.Map
}

type fileID struct{ device, inode uint64 }

// LoopFind is Find of a Loops that remembers nothing.
func LoopFind(file string) (string, error) { return new(Loops).Find(file) }

// LoopDetach is Detach of a Loops that remembers nothing.
func LoopDetach(file string) error { return new(Loops).Detach(file) }

// Attach returns the loop device of a file, and creates it if there is none. It may be repeated.
func (l *Loops) Attach(file string, readOnly bool) (string, error) {
	if found, err := l.Find(file); err != nil || found != "" {
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

// Find returns the loop device of a file, or "". A device that cannot be looked at is an error only if it may be
// that of the file.
func (l *Loops) Find(file string) (string, error) {
	want, err := os.Stat(file)
	if err != nil {
		return "", fmt.Errorf("loop device over %s: %w", file, err)
	}
	var id fileID
	if stat, ok := want.Sys().(*syscall.Stat_t); ok {
		id = fileID{stat.Dev, stat.Ino}
	}
	if seen, known := l.seen.Load(id); known {
		if same, err := loopIsOf(seen.(string), want); same && err == nil {
			return seen.(string), nil
		}
	}
	device, err := loopSearch(file, want)
	if device == "" {
		l.seen.Delete(id)
	} else {
		l.seen.Store(id, device)
	}
	return device, err
}

// loopSearch asks all loop devices whether they are of a file.
func loopSearch(file string, want os.FileInfo) (string, error) {
	disks, err := os.ReadDir("/sys/block")
	if err != nil {
		return "", fmt.Errorf("list loop devices: %w", err)
	}
	var failed error
	for _, disk := range disks {
		if !strings.HasPrefix(disk.Name(), "loop") {
			continue
		}
		device := filepath.Join("/dev", disk.Name())
		name, err := os.ReadFile(filepath.Join("/sys/block", disk.Name(), "loop/backing_file"))
		if err != nil {
			continue // it is not attached
		}
		// A new file may have the name of a deleted one.
		got, err := os.Stat(strings.TrimSuffix(string(name), "\n"))
		if err == nil && os.SameFile(got, want) {
			return device, nil
		}
		// The name is that in the mounts of who has attached the device, such as an earlier container of the driver.
		same, unread := loopIsOf(device, want)
		switch {
		case same:
			return device, nil
		case unread != nil && err != nil && !isOthers(string(name), unread):
			failed = errors.Join(failed, fmt.Errorf("loop device over %s: %w", file, unread))
		}
	}
	return "", failed
}

// isOthers says whether a loop device that could not be looked at is not that of a file which exists here: its own file
// was deleted or is lost, or the caller may attach none and so has not attached it.
func isOthers(name string, unread error) bool {
	return strings.HasSuffix(strings.TrimSuffix(name, "\n"), " (deleted)") || errors.Is(unread, unix.ESTALE) ||
		os.Geteuid() != 0 && errors.Is(unread, ErrNotPermitted)
}

// loopIsOf says whether a loop device is one of a file.
func loopIsOf(path string, file os.FileInfo) (bool, error) {
	n, err := strconv.Atoi(strings.TrimPrefix(path, "/dev/loop"))
	if err == nil {
		err = loopNode(path, n)
	}
	if err != nil {
		return false, err
	}
	device, err := os.OpenFile(path, os.O_RDONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENXIO) {
		return false, nil // it was removed meanwhile
	}
	if err != nil {
		return false, fail("open", path, err)
	}
	defer device.Close()
	info, err := unix.IoctlLoopGetStatus64(int(device.Fd()))
	if errors.Is(err, unix.ENXIO) {
		return false, nil // it was detached meanwhile
	}
	if err != nil {
		return false, fail("look at", path, err)
	}
	stat, ok := file.Sys().(*syscall.Stat_t)
	return ok && info.Device == stat.Dev && info.Inode == stat.Ino, nil
}

// Detach releases the loop device of a file; the kernel does so when its last user has closed
// it. It may be repeated.
func (l *Loops) Detach(file string) error {
	path, err := l.Find(file)
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
