package mount

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Attr is a set of attributes that a bind mount has in addition to those of its source.
type Attr uint64

// Attributes of binds.
const (
	ReadOnly   Attr = unix.MOUNT_ATTR_RDONLY
	NoSUID     Attr = unix.MOUNT_ATTR_NOSUID
	NoDev      Attr = unix.MOUNT_ATTR_NODEV
	NoExec     Attr = unix.MOUNT_ATTR_NOEXEC
	NoAtime    Attr = unix.MOUNT_ATTR_NOATIME
	NoDirAtime Attr = unix.MOUNT_ATTR_NODIRATIME
)

// ReadOnlyIf returns ReadOnly if the condition holds, otherwise no attribute.
func ReadOnlyIf(is bool) Attr {
	if is {
		return ReadOnly
	}
	return 0
}

// Bind mounts source, with all mounts below it, at target; both must be directories, or neither. Either the whole tree
// is mounted or nothing, and each mount of it gets the attributes. Mounts at the target do not propagate to the source.
// Later mounts below a shared source propagate to the bind mount unless that is read-only, which keeps anything
// writable from appearing in it. It may be repeated.
func Bind(source, target string, attr Attr) error {
	if err := bind(source, target, attr); err != nil {
		return fail("bind "+source+" to", target, err)
	}
	return nil
}

func bind(source, target string, attr Attr) error {
	at, err := open(target, unix.O_PATH)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	from, err := openSource(source)
	if err != nil {
		return err
	}
	defer unix.Close(from)
	if top, mounted, err := Look(target); err != nil || mounted {
		return errors.Join(err, checkMounted(from, at, top, attr))
	}
	tree, err := copyTree(from, source)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	if err := restrict(tree, attr); err != nil {
		return err
	}
	if err := unix.MoveMount(tree, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return err
	}
	return undoIfMoved(tree, target)
}

// openSource opens the source. Its last component may be a symbolic link, because FlexVolume
// drivers replace a directory by one.
func openSource(path string) (int, error) {
	dir, err := parent(path)
	if err != nil {
		return -1, err
	}
	defer unix.Close(dir)
	return unix.Openat(dir, filepath.Base(path), unix.O_PATH|unix.O_CLOEXEC, 0)
}

// restrict sets the attributes of a tree of mounts before it is attached, and stops propagation to
// its source.
func restrict(tree int, attr Attr) error {
	propagation := unix.MS_SLAVE
	if attr&ReadOnly != 0 {
		propagation = unix.MS_PRIVATE
	}
	return setAttr(tree, attr, propagation)
}

// setAttr adds attributes to a tree of mounts. The handling of access times is one attribute with several values, which
// replace each other.
func setAttr(tree int, attr Attr, propagation int) error {
	how := &unix.MountAttr{Attr_set: uint64(attr), Propagation: uint64(propagation)}
	if attr&NoAtime != 0 {
		how.Attr_clr = unix.MOUNT_ATTR__ATIME
	}
	return unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, how)
}

// undoIfMoved unmounts a new bind mount if it is not at its path, because the directory was
// moved in the meantime.
func undoIfMoved(tree int, target string) error {
	own, _, err := mountAt(tree, "")
	if err != nil {
		return err
	}
	dir, err := parent(target)
	if err == nil {
		defer unix.Close(dir)
		var id int
		if id, _, err = mountAt(dir, filepath.Base(target)); err == nil && id == own {
			return nil
		}
	}
	return errors.Join(ErrMoved, err, unix.Unmount(fdPath(tree), unix.MNT_DETACH))
}

// checkMounted fails if anything but the source is mounted at the target.
func checkMounted(from, at int, top Point, attr Attr) error {
	var a, b unix.Stat_t
	if err := errors.Join(unix.Fstat(from, &a), unix.Fstat(at, &b)); err != nil {
		return err
	}
	id, isTop, err := mountAt(at, "")
	switch {
	case err != nil:
		return err
	case a.Dev != b.Dev || a.Ino != b.Ino || !isTop || id != top.ID:
		return fmt.Errorf("%w: %s", ErrOccupied, top.Source)
	case attr == 0:
		return nil
	}
	return setAttr(at, attr, 0)
}

// copyTree copies a source with all mounts below it.
func copyTree(from int, source string) (tree int, err error) {
	alone := hasNoneBelow(from)
	if !alone {
		if err := checkBindable(source); err != nil {
			return -1, err
		}
	}
	tree, err = unix.OpenTree(from, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH|unix.AT_RECURSIVE)
	if alone && errors.Is(err, unix.EINVAL) {
		err = errors.Join(checkBindable(source), err)
	}
	return tree, err
}

// hasNoneBelow says that no mount is below an open file or directory.
func hasNoneBelow(fd int) bool {
	st, err := statxAt(fd, "", unix.STATX_TYPE)
	if err == nil && st.Mask&unix.STATX_TYPE != 0 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return true
	}
	id, _, err := uniqueAt(fd, "")
	return err == nil && childless(id)
}

// checkBindable refuses a source with an unbindable mount below it, which the kernel would silently
// leave out: data would be written to the directory below it. The kernel itself refuses a source that is one.
func checkBindable(source string) error {
	infos, err := readTable()
	if err != nil {
		return err
	}
	c := newCovers(infos)
	for _, i := range infos {
		if isBelow(i.Mountpoint, source) && slices.Contains(strings.Fields(i.Optional), "unbindable") && !c.hidden(i) {
			return fmt.Errorf("%w: %s", ErrUnbindable, i.Mountpoint)
		}
	}
	return nil
}
