package mount

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// StopPropagation prepares the unmounting of mounts that others have made at some paths: it makes
// those of them private that propagate to peers outside of these paths, as after mount --rbind of a
// shared tree. Otherwise an unmount would unmount the peers, too. It may be repeated, and must be
// after each unmount, which can uncover a hidden mount.
func StopPropagation(paths []string) error {
	infos, err := readTable()
	if err != nil {
		return err
	}
	return stopPropagation(infos, paths)
}

func stopPropagation(infos []*mountinfo.Info, paths []string) error {
	c := newCovers(infos)
	outside := map[string][]*mountinfo.Info{}
	for _, i := range infos {
		if peers := peersOf(i); peers != "" && !slices.Contains(paths, i.Mountpoint) {
			outside[peers] = append(outside[peers], i)
		}
	}
	for _, i := range infos {
		if !slices.Contains(paths, i.Mountpoint) || c.hidden(i) {
			continue
		}
		if !slices.ContainsFunc(outside[peersOf(i)], func(o *mountinfo.Info) bool { return !c.isPropagated(i, o) }) {
			continue
		}
		if err := makePrivate(point(i)); err != nil {
			return fail("make private", i.Mountpoint, err)
		}
	}
	return nil
}

// isPropagated says whether one of two peers exists only because a directory above it is shared,
// for example with a mount namespace or a container: it appears and disappears with the other.
func (c covers) isPropagated(a, b *mountinfo.Info) bool {
	x, y := c.byID[a.Parent], c.byID[b.Parent]
	return x != nil && y != nil && x != y && peersOf(x) != "" && peersOf(x) == peersOf(y) &&
		filepath.Join(x.Root, offset(a, x)) == filepath.Join(y.Root, offset(b, y))
}

// offset returns the path of a mount point relative to its parent mount.
func offset(i, parent *mountinfo.Info) string {
	return strings.TrimPrefix(i.Mountpoint, strings.TrimSuffix(parent.Mountpoint, "/"))
}

// makePrivate makes the mount that the table has at a path private, but not one that was mounted over it or replaced it
// in the meantime.
func makePrivate(p Point) error {
	at, err := open(p.Path, unix.O_PATH)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	id, top, err := mountAt(at, "")
	if err != nil || id != p.ID || !top {
		return err
	}
	return unix.MountSetattr(at, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Propagation: unix.MS_PRIVATE})
}

// peersOf returns the peer group of a shared mount, and "" for others.
func peersOf(i *mountinfo.Info) string {
	for f := range strings.FieldsSeq(i.Optional) {
		if number, found := strings.CutPrefix(f, "shared:"); found {
			return number
		}
	}
	return ""
}
