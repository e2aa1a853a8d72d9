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

// place is the part of a private path that is specific to a volume. Drivers take the Pod's UID from
// the sixth component of the path and the volume's name from the last one.
type place struct{ uid, name string }

// placeOf returns the place for a target path. In a kubelet's path that is the Pod's UID and the
// volume's name; otherwise it is derived from digests that are as specific.
func placeOf(target, volumeID string) place {
	shape := regexp.MustCompile(`/pods/([^/]+)/volumes/kubernetes\.io~csi/([^/]+)/mount$`)
	if m := shape.FindStringSubmatch(target); m != nil {
		return place{m[1], m[2]}
	}
	return place{digest(target), volumeID}
}

// digest returns a hash of a text that cannot be a path component.
func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:16])
}

// podDir returns the directory at which a driver mounts a volume for one Pod.
func podDir(root string, n decide.Name, p place) string {
	return filepath.Join(root, "pods", p.uid, "volumes", n.Dir(), p.name)
}

// deviceDir returns the directory at which a driver mounts a volume's device for all Pods.
func deviceDir(root string, n decide.Name, volumeID string) string {
	return filepath.Join(root, "plugins/kubernetes.io/flexvolume", n.String(), "mounts", volumeID)
}

// checkRoot refuses a root directory with another depth than a kubelet's (H13).
func checkRoot(root string) error {
	if !filepath.IsAbs(root) || filepath.Clean(root) != root || strings.Count(root, "/") != 3 {
		return fmt.Errorf("root directory %q: FlexVolume drivers count the parts of their path: give one of three parts, "+
			"as /var/lib/volplane-flex", root)
	}
	return nil
}

// checkOwner refuses a root directory that users other than root can change: what it records is
// unmounted, and drivers kept in it are executed.
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

// checkRequest refuses a request whose volume id or path cannot be used.
func checkRequest(request any) error {
	if r, ok := request.(interface{ GetVolumeId() string }); ok {
		if err := checkID(r.GetVolumeId()); err != nil {
			return err
		}
	}
	switch r := request.(type) {
	case interface{ GetTargetPath() string }:
		return checkPath("target path", r.GetTargetPath())
	case interface{ GetVolumePath() string }:
		if r.GetVolumePath() == "" {
			return status.Error(codes.InvalidArgument, "no volume path")
		}
	case interface{ GetStagingTargetPath() string }:
		return checkPath("staging path", r.GetStagingTargetPath())
	}
	return nil
}

// checkID refuses a volume id that cannot be a path component.
func checkID(id string) error {
	switch {
	case id == "":
		return status.Error(codes.InvalidArgument, "no volume id")
	case id == ".", id == "..", len(id) > 255, strings.ContainsAny(id, "/\x00"):
		return status.Errorf(codes.InvalidArgument, "volume id %.80q cannot be the name of a directory", id)
	}
	return nil
}

// checkPath is mount.CheckPath with a gRPC error.
func checkPath(what, path string) error {
	if err := mount.CheckPath(what, path); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return nil
}
