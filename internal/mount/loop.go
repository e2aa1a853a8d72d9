package mount

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// loopTries is how often attaching is retried after another process has taken the free loop device.
const loopTries = 100

// Loops finds the loop devices of files, and remembers which file each device has: querying one device is far cheaper
// than querying all. A remembered file is never trusted without querying the device. The zero value is ready, and safe
// for concurrent use.
type Loops struct {
	mu sync.Mutex
	// known holds, by the names of devices below /sys/block, what was seen of them.
	known map[string]sighting
	// renumbers means that the kernel was seen to give a device another number with another file. Kernels before 5.15 have
	// no such numbers, and many before 6.5 keep them.
	renumbers atomic.Bool
}

// sighting is a device's file, and the number that the kernel gave to the device with it.
type sighting struct {
	file     fileID
	sequence string
}

type fileID struct{ device, inode uint64 }

// LoopFind is Find of a Loops that remembers nothing.
func LoopFind(file string) (string, error) { return new(Loops).Find(file) }

// LoopDetach is Detach of a Loops that remembers nothing.
func LoopDetach(file string) error { return new(Loops).Detach(file) }

// Attach returns the loop device of a file, and creates it if there is none. It may be repeated.
func (l *Loops) Attach(file string, readOnly bool) (string, error) {
	return l.AttachNoted(file, file, readOnly)
}

// AttachNoted is Attach, and leaves a note with a device that it creates: see Keep.
func (l *Loops) AttachNoted(file, note string, readOnly bool) (string, error) {
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
		device, err := l.take(control, backing, note, readOnly)
		if err == nil {
			return device, nil
		}
		if !errors.Is(err, unix.EBUSY) {
			return "", err
		}
	}
	return "", fmt.Errorf("loop device over %s: %w", file, ErrNoLoop)
}

// take attaches the file to the device that the kernel reports as free; the error is EBUSY if
// another process was faster.
func (l *Loops) take(control, backing *os.File, note string, readOnly bool) (string, error) {
	file := backing.Name()
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
	setNote(&config.Info, note)
	// While the device is open it is not removed, so nothing else can change its number.
	before := loopSequence(filepath.Base(path))
	if err := unix.IoctlLoopConfigure(int(device.Fd()), &config); err != nil {
		return "", fail("configure loop device over", file, err)
	}
	sequence := loopSequence(filepath.Base(path))
	if before != "" && before != sequence {
		l.renumbers.Store(true)
	}
	if has, err := unix.IoctlLoopGetStatus64(int(device.Fd())); err == nil {
		l.learn(filepath.Base(path), sighting{fileID{has.Device, has.Inode}, sequence})
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

// Find returns the loop device of a file, or "". A device that cannot be inspected is an error only if it may be
// that of the file.
func (l *Loops) Find(file string) (string, error) {
	want, err := os.Stat(file)
	if err != nil {
		return "", fmt.Errorf("loop device over %s: %w", file, err)
	}
	id := idOf(want)
	for _, disk := range l.seen(id) {
		if got, err := loopFile(disk); err == nil && got == id {
			return "/dev/" + disk, nil
		}
		l.forget(disk)
	}
	return l.search(file, id)
}

// search finds out which of the loop devices with a file has the given one, skipping those that are known to have
// another one.
func (l *Loops) search(file string, id fileID) (string, error) {
	disks, err := sizedLoops()
	if err != nil {
		return "", fmt.Errorf("list loop devices: %w", err)
	}
	var failed error
	for _, disk := range disks {
		if l.isOthers(disk, id) {
			continue
		}
		name, err := os.ReadFile(filepath.Join("/sys/block", disk, "loop/backing_file"))
		if err != nil {
			continue // it is not attached
		}
		switch is, err := l.ask(disk, strings.TrimSuffix(string(name), "\n"), id); {
		case is:
			return "/dev/" + disk, nil
		case err != nil:
			failed = errors.Join(failed, fmt.Errorf("loop device over %s: %w", file, err))
		}
	}
	return "", failed
}

// sizedLoops returns the names of the loop devices that have a size, which those without a file do not have: the kernel
// keeps every loop device that was ever created.
func sizedLoops() ([]string, error) {
	table, err := os.ReadFile("/proc/partitions")
	if err != nil {
		return nil, err
	}
	var out []string
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) != 4 {
			continue
		}
		// The number of a partition comes after that of its device: loop0p1.
		if number, is := strings.CutPrefix(fields[3], "loop"); is && !strings.Contains(number, "p") {
			out = append(out, fields[3])
		}
	}
	return out, nil
}

// ask finds out whether a device has a file, and remembers which one it has. name is that of its file.
func (l *Loops) ask(disk, name string, id fileID) (is bool, err error) {
	// The order matters: the file must not have been read before the number.
	sequence := loopSequence(disk)
	has, err := loopFile(disk)
	switch {
	case err == nil:
		l.learn(disk, sighting{has, sequence})
		return has == id, nil
	case errors.Is(err, unix.ENXIO):
		return false, nil // it was detached in the meantime
	}
	// A new file may have the name of a deleted one, and the name is as in the mount namespace of the process that
	// attached the device, such as an earlier container of the driver.
	got, unknown := os.Stat(name)
	switch {
	case unknown == nil:
		return idOf(got) == id, nil
	case isLost(name, err):
		return false, nil
	}
	return false, err
}

// seen returns the devices that had a file when they were last inspected.
func (l *Loops) seen(id fileID) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for disk, s := range l.known {
		if s.file == id {
			out = append(out, disk)
		}
	}
	return out
}

func (l *Loops) learn(disk string, s sighting) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.known == nil {
		l.known = map[string]sighting{}
	}
	l.known[disk] = s
}

func (l *Loops) forget(disk string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.known, disk)
}

// isOthers says whether a device still has the file, different from this one, that it was last seen with.
func (l *Loops) isOthers(disk string, id fileID) bool {
	l.mu.Lock()
	s, known := l.known[disk]
	l.mu.Unlock()
	return known && l.renumbers.Load() && s.file != id && s.sequence != "" && s.sequence == loopSequence(disk)
}

// loopSequence returns the number that the kernel gave a device with its file, or "".
func loopSequence(disk string) string {
	fd, err := unix.Open("/sys/block/"+disk+"/diskseq", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	var text [24]byte
	n, err := unix.Read(fd, text[:])
	if err != nil {
		return ""
	}
	return string(text[:n])
}

// isLost says whether a loop device that could not be inspected has certainly another file: its own file was deleted or
// is lost, or the caller may attach none and so has not attached it.
func isLost(name string, unread error) bool {
	return strings.HasSuffix(name, " (deleted)") || errors.Is(unread, unix.ESTALE) ||
		os.Geteuid() != 0 && errors.Is(unread, ErrNotPermitted)
}

func idOf(file os.FileInfo) fileID {
	if stat, ok := file.Sys().(*syscall.Stat_t); ok {
		return fileID{stat.Dev, stat.Ino}
	}
	return fileID{}
}

// loopFile returns the file of a loop device. The error is ENXIO if no file is attached.
func loopFile(disk string) (fileID, error) {
	path := "/dev/" + disk
	n, err := strconv.Atoi(strings.TrimPrefix(disk, "loop"))
	if err == nil {
		err = loopNode(path, n)
	}
	if err != nil {
		return fileID{}, err
	}
	device, err := os.OpenFile(path, os.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fileID{}, fail("open", path, err)
	}
	defer device.Close()
	info, err := unix.IoctlLoopGetStatus64(int(device.Fd()))
	if err != nil {
		return fileID{}, fail("look at", path, err)
	}
	return fileID{info.Device, info.Inode}, nil
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
	// The open directory reaches the filesystem even if something else has been mounted at the path since.
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
