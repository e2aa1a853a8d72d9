package mount

import (
	"errors"
	"path/filepath"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

const (
	// busyTries and busyPause are how often, and how far apart, something that is
	// in use is tried to be unmounted.
	busyTries = 5
	busyPause = 20 * time.Millisecond
	// lostTries is how often a mount is looked for anew that was not where the
	// table has it.
	lostTries = 10
)

// Unmount takes away every mount at target with what is mounted below, the
// innermost first. It fails while somebody uses one, or hides it. Nothing is
// taken away elsewhere for it, and nothing at all where nothing is mounted at
// target itself.
func Unmount(target string) error { return takeAll("unmount", target, 0) }

// Detach does so at once, whoever uses it: it is for what is dead, which nobody
// can use.
func Detach(target string) error { return takeAll("detach", target, unix.MNT_DETACH) }

// UnmountTop takes one mount away, the topmost at a path, or nothing when there
// is none. Detach says that its users are not asked.
func UnmountTop(path string, detach bool) error {
	p, mounted, err := At(path)
	if err != nil || !mounted {
		return err
	}
	flags := 0
	if detach {
		flags = unix.MNT_DETACH
	}
	if err := take(p, flags); err != nil {
		return fail("unmount", path, err)
	}
	return nil
}

// takeAll takes away what is mounted at and below a path, one after the other.
func takeAll(deed, target string, flags int) error {
	if err := plain(target); err != nil {
		return err
	}
	for lost := map[int]int{}; ; {
		infos, err := readTable()
		if err != nil {
			return err
		}
		if _, mounted, err := reachedIn(infos, target); err != nil || !mounted {
			return err
		}
		next := nextOf(infos, target, flags)
		if _, _, err := next.reached(); err != nil {
			return err
		}
		// What is dead cannot be entered, and nor can what it was bound from.
		if err = apartBelow(infos, target); err == nil || flags != 0 {
			err = take(next, flags)
		}
		if gone(err) && lost[next.ID] < lostTries {
			lost[next.ID]++
			continue
		}
		if err != nil {
			return fail(deed, next.Path, err)
		}
	}
}

// gone says whether somebody else was quicker, or moves directories.
func gone(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) || errors.Is(err, ErrMoved)
}

// nextOf returns what is to be taken away first of all that is mounted at and
// below a path, a hidden mount only if there is nothing else: the innermost, on
// which nothing is mounted; or to be detached the outermost, for which nothing
// that is dead need be entered.
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

// apartBelow sees to it that what is unmounted below a path is not gone
// elsewhere, too.
func apartBelow(infos []*mountinfo.Info, target string) error {
	var paths []string
	for _, i := range infos {
		if isBelow(i.Mountpoint, target) {
			paths = append(paths, i.Mountpoint)
		}
	}
	if len(paths) < 2 {
		return nil
	}
	return keepApart(infos, paths)
}

// take takes one mount away, where the table has it and nowhere else. A process
// that is being started shares the open files of the one that starts it for a
// moment, also those that it closes: so who is busy is asked a few times.
func take(p Point, flags int) error {
	dir, err := parent(p.Path)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	name := filepath.Base(p.Path)
	// As long as it is mounted, nobody can put anything else in its place in this
	// directory.
	id, _, err := mountAt(dir, name)
	if err != nil {
		return err
	}
	if id != p.ID {
		return ErrMoved
	}
	pause := time.NewTicker(busyPause)
	defer pause.Stop()
	for try := 1; ; try++ {
		err := unix.Unmount(self(dir)+"/"+name, flags|unix.UMOUNT_NOFOLLOW)
		if !errors.Is(err, unix.EBUSY) || try == busyTries {
			return err
		}
		<-pause.C
	}
}
