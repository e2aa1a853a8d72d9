package bridge

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/flex/host"
	"volplane.dev/volplane/internal/mount"
)

// place is the part of a private path that is a volume's own. Drivers take the
// Pod's UID from the sixth component and the volume's name from the last one.
type place struct{ uid, name string }

// placeOf returns the place for a target path: what a kubelet's path says, which
// is the Pod's UID and the volume's name in the Pod or in the cluster, else
// something that is as much its own.
func placeOf(target, volumeID string) place {
	shape := regexp.MustCompile(`/pods/([^/]+)/volumes/kubernetes\.io~csi/([^/]+)/mount$`)
	if m := shape.FindStringSubmatch(target); m != nil {
		return place{m[1], m[2]}
	}
	return place{digest(target), volumeID}
}

// digest stands for a text where it cannot be a part of a path.
func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:16])
}

// podDir is where a driver mounts a volume for one Pod.
func podDir(root string, n decide.Name, p place) string {
	return filepath.Join(root, "pods", p.uid, "volumes", n.Dir(), p.name)
}

// deviceDir is where a driver mounts a volume's device, for all Pods.
func deviceDir(root string, n decide.Name, volumeID string) string {
	return filepath.Join(root, "plugins/kubernetes.io/flexvolume", n.String(), "mounts", volumeID)
}

// checkRoot refuses a root directory of another depth than a kubelet's (H13).
func checkRoot(root string) error {
	if !filepath.IsAbs(root) || filepath.Clean(root) != root || strings.Count(root, "/") != 3 {
		return fmt.Errorf("root directory %q: FlexVolume drivers count the parts of their path: give one of three parts, "+
			"as /var/lib/volplane-flex", root)
	}
	return nil
}

// checkOwner refuses a root directory that others could change: records say what
// is unmounted, and kept drivers are started.
func checkOwner(root string) error {
	info, err := os.Lstat(root)
	if err != nil {
		return fmt.Errorf("look at the root directory: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("root directory %q is not a directory", root)
	}
	if why := host.OwnedBy(root, info).Others(); why != "" {
		return fmt.Errorf("root directory %q %s: give one that is root's alone", root, why)
	}
	why, err := host.Diverted(root)
	if err == nil && why != "" {
		err = fmt.Errorf("root directory %q: %s, which leads there: give one that is root's alone", root, why)
	}
	return err
}

// checkID refuses an id that could not be a part of a path.
func checkID(id string) error {
	switch {
	case id == "":
		return status.Error(codes.InvalidArgument, "no volume id")
	case id == ".", id == "..", len(id) > 255, strings.ContainsAny(id, "/\x00"):
		return status.Errorf(codes.InvalidArgument, "volume id %.80q cannot be the name of a directory", id)
	}
	return nil
}

// checkPath is mount.CheckPath, for a caller.
func checkPath(what, path string) error {
	if err := mount.CheckPath(what, path); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return nil
}
