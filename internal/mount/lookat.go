package mount

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// This file queries the kernel for the mounts of one path, at a cost that does not grow with the table. If
// an answer is not certain, the table is read instead.

// free says that nothing is mounted at a path, and nothing is hidden there: the path and all directories above it are
// in the mount of the root directory, so nothing covers an earlier mount below. A filesystem mounted there is not
// accessed.
func free(path string) bool {
	fd, err := openFree(path)
	if err == nil {
		err = unix.Close(fd)
	}
	return err == nil || errors.Is(err, unix.ENOENT)
}

func openFree(path string) (int, error) {
	if err := clean(path); err != nil {
		return -1, err
	}
	if path == "/" {
		return -1, unix.EXDEV
	}
	return unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
}

// bare says that a path is free, and has nothing below it at which something could be mounted.
func bare(path string) bool {
	fd, err := openFree(path)
	if err != nil {
		return errors.Is(err, unix.ENOENT)
	}
	defer unix.Close(fd)
	entries, err := os.ReadDir(fdPath(fd))
	return len(entries) == 0 && err == nil || errors.Is(err, unix.ENOTDIR)
}

// lookAt returns what is mounted at a path, or no path if nothing is; alone means that it is the only mount at the path
// and below it. The mount is accessed, but not its server, if it has one.
func lookAt(path string) (p Point, alone, sure bool) {
	if free(path) {
		return p, false, true
	}
	dir, err := parent(path)
	if err != nil {
		return p, false, false
	}
	defer unix.Close(dir)
	above, _, err := uniqueAt(dir, "")
	if err != nil {
		return p, false, false
	}
	// A mount that the path leads to is not hidden.
	id, top, err := uniqueAt(dir, filepath.Base(path))
	if err != nil || !top {
		return p, false, false
	}
	p, on, err := mountOf(id)
	if err != nil || p.Path != path || p.Type == "autofs" {
		return Point{}, false, false
	}
	return p, on == above && childless(id), true
}

// uniqueAt is mountAt with the unique id of a mount, which is never reused. Linux before 6.8 has no such id.
func uniqueAt(dir int, name string) (id uint64, top bool, err error) {
	st, err := statxAt(dir, name, unix.STATX_MNT_ID_UNIQUE)
	if err == nil && st.Mask&unix.STATX_MNT_ID_UNIQUE == 0 {
		err = unix.ENOSYS
	}
	return st.Mnt_id, st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, err
}

// mountRequest is struct mnt_id_req of the kernel, in its first version.
type mountRequest struct {
	size, _   uint32
	id, param uint64
}

// childless says that nothing is mounted below a mount, hidden or not.
func childless(id uint64) bool {
	r, children := mountRequest{id: id}, [1]uint64{}
	r.size = uint32(unsafe.Sizeof(r))
	n, _, errno := unix.Syscall6(unix.SYS_LISTMOUNT, uintptr(unsafe.Pointer(&r)), uintptr(unsafe.Pointer(&children)),
		uintptr(len(children)), 0, 0, 0)
	return errno == 0 && n == 0
}

// The parts of struct statmount of the kernel: bits of the request and of the answer, and offsets in the answer.
const (
	askBasics  = 1<<0 | 1<<1
	askStrings = 1<<3 | 1<<4 | 1<<5 | 1<<9
	// A mount without options or subtype has no bit for them in the answer.
	askOptions, askSubtype = 1 << 7, 1 << 8

	atOptions, atMask, atMajor, atMinor, atFlags, atType = 4, 8, 16, 20, 32, 36
	atParent, atOldID, atAttr, atRoot, atPoint           = 48, 56, 64, 104, 108
	atSubtype, atSource, atText                          = 120, 124, 512
)

// mountOf returns a mount and the id of its parent. Linux before 6.13 does not report all of it.
func mountOf(id uint64) (p Point, on uint64, err error) {
	r := mountRequest{id: id, param: askBasics | askStrings | askOptions | askSubtype}
	r.size = uint32(unsafe.Sizeof(r))
	b := make([]byte, 4<<10)
	_, _, errno := unix.Syscall6(unix.SYS_STATMOUNT, uintptr(unsafe.Pointer(&r)), uintptr(unsafe.Pointer(&b[0])),
		uintptr(len(b)), 0, 0, 0)
	runtime.KeepAlive(b)
	if errno != 0 {
		return p, 0, errno
	}
	number := func(at int) uint32 { return binary.NativeEndian.Uint32(b[at:]) }
	long := func(at int) uint64 { return binary.NativeEndian.Uint64(b[at:]) }
	has := func(what uint64) bool { return long(atMask)&what == what }
	text := func(at int) string {
		found, _, _ := bytes.Cut(b[atText+number(at):], []byte{0})
		return string(found)
	}
	if !has(askBasics | askStrings) {
		return p, 0, unix.ENOSYS
	}
	p = Point{
		ID: int(number(atOldID)), Path: text(atPoint), Root: text(atRoot), Source: text(atSource), Type: text(atType),
		Device:   fmt.Sprintf("%d:%d", number(atMajor), number(atMinor)),
		ReadOnly: long(atAttr)&unix.MOUNT_ATTR_RDONLY != 0, NoWrites: number(atFlags)&unix.MS_RDONLY != 0,
	}
	if has(askSubtype) {
		p.Type += "." + text(atSubtype)
	}
	if has(askOptions) {
		p.NoWrites = p.NoWrites || slices.ContainsFunc(strings.Split(text(atOptions), ","), forbidsWrites)
	}
	return p, long(atParent), nil
}
