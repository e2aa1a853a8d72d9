package mount

import (
	"fmt"
	"path/filepath"

	"github.com/moby/sys/mountinfo"
)

// Point is one line of the mount table.
type Point struct {
	// Path is where it is mounted; Root is the part of the filesystem that
	// shows there ("/" is all of it).
	Path, Root string
	// Device is "major:minor" of the filesystem.
	Device string
	// Source and Type are what mount was called with.
	Source, Type string
	// ReadOnly is the mount's own flag.
	ReadOnly bool
}

// Below returns the mounts at dir and below it, in the order in which they
// were made.
func Below(dir string) ([]Point, error) {
	infos, err := mountinfo.GetMounts(mountinfo.PrefixFilter(filepath.Clean(dir)))
	if err != nil {
		return nil, fmt.Errorf("read mount table: %w", err)
	}
	out := make([]Point, 0, len(infos))
	for _, i := range infos {
		out = append(out, point(i))
	}
	return out, nil
}

// At returns the topmost mount at a path.
func At(path string) (Point, bool, error) {
	infos, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(filepath.Clean(path)))
	if err != nil {
		return Point{}, false, fmt.Errorf("read mount table: %w", err)
	}
	if len(infos) == 0 {
		return Point{}, false, nil
	}
	return point(infos[len(infos)-1]), true, nil
}

func point(i *mountinfo.Info) Point {
	p := Point{Path: i.Mountpoint, Root: i.Root, Device: fmt.Sprintf("%d:%d", i.Major, i.Minor), Source: i.Source, Type: i.FSType}
	for _, o := range splitOptions(i.Options) {
		p.ReadOnly = p.ReadOnly || o == "ro"
	}
	return p
}
