package uses

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/volume"
)

// CSIDir is where drivers stage volumes below the root directory. All paths are those of a kubelet.
const CSIDir = "plugins/kubernetes.io/csi"

// StagingPath is where a driver stages a volume.
func StagingPath(root, driver, handle, pv string, block bool) string {
	if block {
		return filepath.Join(root, CSIDir, "volumeDevices/staging", pv)
	}
	sum := sha256.Sum256([]byte(handle))
	return filepath.Join(root, CSIDir, driver, hex.EncodeToString(sum[:]), "globalmount")
}

// TargetPath is where a driver publishes a volume to a Pod.
func TargetPath(root, podUID, pv string, block bool) string {
	if block {
		return filepath.Join(root, CSIDir, "volumeDevices/publish", pv, podUID)
	}
	return filepath.Join(root, "pods", podUID, "volumes/kubernetes.io~csi", pv, "mount")
}

// VolumeAt returns the name of the volume that a target path is for.
func VolumeAt(target string) string { return filepath.Base(filepath.Dir(target)) }

// DeviceLink is where a Pod finds its block device.
func DeviceLink(root, podUID, pv string) string {
	return filepath.Join(root, "pods", podUID, "volumeDevices/kubernetes.io~csi", pv)
}

// PlacePath is where a Pod finds its filesystem or its device.
func PlacePath(root, podUID, pv string, block bool) string {
	if block {
		return DeviceLink(root, podUID, pv)
	}
	return TargetPath(root, podUID, pv, false)
}

// IsComponent says whether a name is a single component of a path.
func IsComponent(name string) bool {
	return name != "" && name != "." && name != ".." && len(name) <= 255 && !strings.ContainsAny(name, "/\x00")
}

// ownPaths returns the paths below the root directory that only this agent and its drivers use for mounts, with the
// element that is the UID of a Pod, or -1.
func ownPaths() map[string]int {
	return map[string]int{
		"pods/*/volumes/kubernetes.io~csi/*/mount": 1,
		CSIDir + "/*/*/globalmount":                -1,
		CSIDir + "/volumeDevices/publish/*/*":      6,
		CSIDir + "/volumeDevices/staging/*":        -1,
	}
}

// IsOwn says whether a path below root is one that only this agent and its drivers use for mounts, and
// returns the UID of its Pod, if any.
func IsOwn(root, path string) (podUID string, ok bool) {
	rel := strings.TrimPrefix(path, root+"/")
	for shape, uid := range ownPaths() {
		if match, err := filepath.Match(shape, rel); err != nil || !match {
			continue
		}
		if uid < 0 {
			return "", true
		}
		return strings.Split(rel, "/")[uid], true
	}
	return "", false
}

// OwnShapes returns patterns of these paths, relative to the root directory.
func OwnShapes() []string { return slices.Collect(maps.Keys(ownPaths())) }

// IsAgentPath says whether a path is one of a node agent or a kubelet of this host.
func IsAgentPath(path string) bool {
	return strings.Contains(path, "/"+CSIDir+"/") || strings.Contains(path, "/volumes/kubernetes.io~csi/")
}

// Split returns the driver and the handle in an entry of volumesInUse or volumesAttached.
func Split(name corev1.UniqueVolumeName) (driver, handle string, ok bool) {
	rest, ok := strings.CutPrefix(string(name), "kubernetes.io/csi/")
	if !ok {
		return "", "", false
	}
	return strings.Cut(rest, "^")
}

// DriverOf returns the driver of a volume, by its key.
func DriverOf(key string) string {
	driver, _, _ := strings.Cut(key, "^")
	return driver
}

// UniqueName returns a volume's entry in volumesInUse and volumesAttached.
func UniqueName(driver, handle string) corev1.UniqueVolumeName {
	return corev1.UniqueVolumeName(volume.UniqueName(driver, handle))
}

// IsBlock says whether a volume is used as a block device.
func IsBlock(pv *corev1.PersistentVolume) bool { return cluster.IsBlock(pv.Spec.VolumeMode) }
