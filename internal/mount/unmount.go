package mount

import (
	"errors"
	"path/filepath"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

const (
	// busyTries is how often, and busyPause at which interval, the unmount of a busy mount is
	// tried.
	busyTries = 5
	busyPause = 20 * time.Millisecond
	// moveTries is how often a mount is looked up again that was not at the path in the table.
	moveTries = 10
)

// Unmount unmounts everything at target and below it, the innermost mount first. It fails if one is
// in use or hidden. Mounts elsewhere are not affected, and nothing is unmounted if there is no
// mount at target itself. It may be repeated.
func Unmount(target string) error { return unmountAll("unmount", target, 0) }

// Detach is a lazy Unmount, which succeeds even if a mount is in use: it is for filesystems whose server has ended. It
// may be repeated.
func Detach(target string) error { return unmountAll("detach", target, unix.MNT_DETACH) }

// UnmountTop unmounts the topmost mount at a path, if there is one; with detach, lazily.
func UnmountTop(path string, detach bool) error {
	p, mounted, err := At(path)
	if err != nil || !mounted {
		return err
	}
	flags := 0
	if detach {
		flags = unix.MNT_DETACH
	}
	if err := unmountOne(p, flags); err != nil {
		return fail("unmount", path, err)
	}
	return nil
}

// unmountAll unmounts everything at and below a path, one after the other.
func unmountAll(operation, target string, flags int) error {
	if err := plain(target); err != nil {
		return err
	}
	for moved := map[int]int{}; ; {
		next, infos, err := choose(target, flags)
		if err != nil || next.Path == "" {
			return err
		}
		// A filesystem without a server cannot be accessed, and neither can the source of its bind mount.
		if err = stopBelow(infos, target); err == nil || flags != 0 {
			err = unmountOne(next, flags)
		}
		if isRace(err) && moved[next.ID] < moveTries {
			moved[next.ID]++
			continue
		}
		if err != nil {
			return fail(operation, next.Path, err)
		}
	}
}

// choose returns the next mount to unmount at or below a path, if there is one, and the mount table unless that mount
// is the only one: then its unmount affects nothing elsewhere.
func choose(target string, flags int) (next Point, infos []*mountinfo.Info, err error) {
	if p, alone, sure := lookAt(target); sure && (alone || p.Path == "") {
		return p, nil, nil
	}
	if infos, err = readTable(); err != nil {
		return Point{}, nil, err
	}
	if _, mounted, err := reachedIn(infos, target); err != nil || !mounted {
		return Point{}, nil, err
	}
	next = nextOf(infos, target, flags)
	_, _, err = next.reached()
	return next, infos, err
}

// isRace says whether an error means that another process has unmounted, or moves directories.
func isRace(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) || errors.Is(err, ErrMoved)
}

// nextOf returns the mount at or below a path to unmount next, a hidden one only if there is no other: the innermost,
// which has no mounts on it; for a lazy unmount the outermost, which avoids any access to a filesystem without a
// server.
func nextOf(infos []*mountinfo.Info, target string, flags int) Point {
	c := newCovers(infos)
	holds := map[int]bool{}
	for _, i := range infos {
		holds[i.Parent] = true
	}
	var next Point
	for _, i := range infos {
		if !isBelow(i.Mountpoint, target) || i.Parent == i.ID {
			continue
		}
		p := point(i)
		p.Hidden = c.hidden(i)
		before := !holds[p.ID] || holds[next.ID]
		if flags != 0 {
			before = len(p.Path) <= len(next.Path)
		}
		if next.Path == "" || next.Hidden && !p.Hidden || !p.Hidden && before {
			next = p
		}
	}
	return next
}

// stopBelow stops propagation below a path, so an unmount there does not unmount anything elsewhere.
func stopBelow(infos []*mountinfo.Info, target string) error {
	var paths []string
	for _, i := range infos {
		if isBelow(i.Mountpoint, target) {
			paths = append(paths, i.Mountpoint)
		}
	}
	if len(paths) < 2 {
		return nil
	}
	return stopPropagation(infos, paths)
}

// unmountOne unmounts one mount, only at the path that the table has. A busy one is tried several
// times: a process that is just being started shares the open files of its parent for a moment,
// including those that will be closed.
func unmountOne(p Point, flags int) error {
	dir, err := parent(p.Path)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	name := filepath.Base(p.Path)
	// While it is mounted, it cannot be replaced by something else in this directory.
	id, err := mountID(dir, name)
	if err != nil {
		return err
	}
	if id != p.ID {
		return ErrMoved
	}
	pause := time.NewTicker(busyPause)
	defer pause.Stop()
	for try := 1; ; try++ {
		err := unix.Unmount(fdPath(dir)+"/"+name, flags|unix.UMOUNT_NOFOLLOW)
		if !errors.Is(err, unix.EBUSY) || try == busyTries {
			return err
		}
		<-pause.C
	}
}
