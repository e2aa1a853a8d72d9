package mount

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// KeepApart prepares the unmounting of what somebody else has mounted at some
// paths: of these mounts it makes those private that are peers of others, as
// mount --rbind makes them of a shared tree. Else what is unmounted in one would
// be gone in the other, too. It may be repeated, and is to be as soon as one is
// unmounted that another one was hidden by.
func KeepApart(paths []string) error {
	infos, err := readTable()
	if err != nil {
		return err
	}
	return keepApart(infos, paths)
}

func keepApart(infos []*mountinfo.Info, paths []string) error {
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
		if !slices.ContainsFunc(outside[peersOf(i)], func(o *mountinfo.Info) bool { return !c.copied(i, o) }) {
			continue
		}
		if err := makePrivate(point(i)); err != nil {
			return fail("make private", i.Mountpoint, err)
		}
	}
	return nil
}

// copied says whether of two peers one is there only because a directory above
// is shared, as by a mount namespace or a container: it comes and goes with the
// other.
func (c covers) copied(a, b *mountinfo.Info) bool {
	x, y := c.byID[a.Parent], c.byID[b.Parent]
	return x != nil && y != nil && x != y && peersOf(x) != "" && peersOf(x) == peersOf(y) &&
		filepath.Join(x.Root, offset(a, x)) == filepath.Join(y.Root, offset(b, y))
}

// offset is where on its parent something is mounted.
func offset(i, parent *mountinfo.Info) string {
	return strings.TrimPrefix(i.Mountpoint, strings.TrimSuffix(parent.Mountpoint, "/"))
}

// makePrivate does so with what the table has at a path, and leaves alone what
// somebody has mounted over it or put in its place meanwhile.
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

// peersOf returns the number of those with which a mount shares what is mounted
// in it; "" says that it shares nothing.
func peersOf(i *mountinfo.Info) string {
	for f := range strings.FieldsSeq(i.Optional) {
		if number, found := strings.CutPrefix(f, "shared:"); found {
			return number
		}
	}
	return ""
}
