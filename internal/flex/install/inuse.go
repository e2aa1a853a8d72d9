package install

import (
	"path/filepath"
	"slices"
	"strings"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/mount"
)

// InUse returns where volumes of a driver are mounted on this host, according to the mount table,
// no matter which process mounted them (F-038).
func InUse(name decide.Name) ([]string, error) {
	points, err := mount.Below("/")
	if err != nil {
		return nil, err
	}
	var all []string
	for _, p := range points {
		if at, _ := volumeAt(p.Path, name); at != "" {
			all = append(all, p.Path)
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// Volumes returns the number of volumes that are mounted at paths of InUse. A volume that is
// mounted for its node and for Pods counts once for each Pod.
func Volumes(name decide.Name, used []string) int {
	pods, devices := map[string]bool{}, map[string]bool{}
	named := map[string]bool{}
	for _, path := range used {
		at, device := volumeAt(path, name)
		if device {
			devices[at] = true
			continue
		}
		pods[at], named[filepath.Base(at)] = true, true
	}
	n := len(pods)
	for at := range devices {
		if !named[filepath.Base(at)] {
			n++
		}
	}
	return n
}

// volumeAt returns the directory of the driver's volume that a path is in, and whether it is that
// of a device: .../volumes/VENDOR~DRIVER/NAME of a Pod, or .../flexvolume/VENDOR/DRIVER/mounts/NAME
// of a node. It is "" for other paths.
func volumeAt(path string, name decide.Name) (dir string, device bool) {
	for _, place := range []string{
		"/volumes/" + name.Dir() + "/", "/plugins/kubernetes.io/flexvolume/" + name.String() + "/mounts/",
	} {
		if above, rest, found := strings.Cut(path, place); found && rest != "" {
			volume, _, _ := strings.Cut(rest, "/")
			return above + place + volume, strings.HasSuffix(place, "/mounts/")
		}
	}
	return "", false
}
