package mount

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Attr is what a bind forbids beyond what its source does.
type Attr uint64

// Attributes of binds.
const (
	ReadOnly Attr = unix.MOUNT_ATTR_RDONLY
	NoSUID   Attr = unix.MOUNT_ATTR_NOSUID
	NoDev    Attr = unix.MOUNT_ATTR_NODEV
)

// ReadOnlyIf is ReadOnly, or nothing.
func ReadOnlyIf(is bool) Attr {
	if is {
		return ReadOnly
	}
	return 0
}

// Bind shows source at target as well, with all that is mounted below it; both
// are directories or both are not. It comes with everything or not at all, and
// each of its mounts forbids what attr says. What becomes of the bind is no
// matter of the source. What is mounted below the source later is seen through
// the bind, too, if the source is shared, and the bind is not read-only: nothing
// that can be written to is seen through that.
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
	infos, err := readTable()
	if err != nil {
		return err
	}
	if top, mounted, err := reachedIn(infos, target); err != nil || mounted {
		return errors.Join(err, shows(from, at, top, attr))
	}
	if err := bindable(infos, source); err != nil {
		return err
	}
	tree, err := unix.OpenTree(from, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH|unix.AT_RECURSIVE)
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
	return landed(tree, target)
}

// openSource opens what is to be bound. Its last part may be a symbolic link:
// FlexVolume drivers make one where a directory was.
func openSource(path string) (int, error) {
	dir, err := parent(path)
	if err != nil {
		return -1, err
	}
	defer unix.Close(dir)
	return unix.Openat(dir, filepath.Base(path), unix.O_PATH|unix.O_CLOEXEC, 0)
}

// restrict has a tree of mounts, before anybody sees it, forbid what attr says,
// and tell its source nothing.
func restrict(tree int, attr Attr) error {
	how := &unix.MountAttr{Attr_set: uint64(attr), Propagation: unix.MS_SLAVE}
	if attr&ReadOnly != 0 {
		how.Propagation = unix.MS_PRIVATE
	}
	return unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, how)
}

// landed takes a bind away again that is not at its path: somebody has moved the
// directory meanwhile.
func landed(tree int, target string) error {
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
	return errors.Join(ErrMoved, err, unix.Unmount(self(tree), unix.MNT_DETACH))
}

// shows refuses a target where something else than the source is mounted.
func shows(from, at int, top Point, attr Attr) error {
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
	return unix.MountSetattr(at, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: uint64(attr)})
}

// bindable refuses a source with something below it that the kernel leaves out
// of binds without a word: data would be written beside it.
func bindable(infos []*mountinfo.Info, source string) error {
	c := newCovers(infos)
	for _, i := range infos {
		if isBelow(i.Mountpoint, source) && slices.Contains(strings.Fields(i.Optional), "unbindable") && !c.hidden(i) {
			return fmt.Errorf("%w: %s", ErrUnbindable, i.Mountpoint)
		}
	}
	return nil
}
