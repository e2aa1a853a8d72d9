package node

import (
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/volume"
)

// Paths below the root directory; they are those of a kubelet.

const csiDir = "plugins/kubernetes.io/csi"

func stagingPath(root, driver, handle, pv string, block bool) string {
	if block {
		return filepath.Join(root, csiDir, "volumeDevices/staging", pv)
	}
	sum := sha256.Sum256([]byte(handle))
	return filepath.Join(root, csiDir, driver, hex.EncodeToString(sum[:]), "globalmount")
}

func targetPath(root, podUID, pv string, block bool) string {
	if block {
		return filepath.Join(root, csiDir, "volumeDevices/publish", pv, podUID)
	}
	return filepath.Join(root, "pods", podUID, "volumes/kubernetes.io~csi", pv, "mount")
}

// deviceLink is where a Pod finds its block device.
func deviceLink(root, podUID, pv string) string {
	return filepath.Join(root, "pods", podUID, "volumeDevices/kubernetes.io~csi", pv)
}

// placePath is what the Pod is told: where its file system or its device is.
func placePath(root, podUID, pv string, block bool) string {
	if block {
		return deviceLink(root, podUID, pv)
	}
	return targetPath(root, podUID, pv, false)
}

// isComponent says whether a name is one directory's, and no way to another.
func isComponent(name string) bool {
	return name != "" && name != "." && name != ".." && len(name) <= 255 && !strings.ContainsAny(name, "/\x00")
}

// csiPath says whether a path below root is one that only this agent and its
// drivers mount at, and returns the UID of the Pod it belongs to, if any.
func csiPath(root, path string) (podUID string, ok bool) {
	rel := strings.TrimPrefix(path, root+"/")
	for shape, uid := range map[string]int{
		"pods/*/volumes/kubernetes.io~csi/*/mount": 1,
		csiDir + "/*/*/globalmount":                -1,
		csiDir + "/volumeDevices/publish/*/*":      6,
		csiDir + "/volumeDevices/staging/*":        -1,
	} {
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

// isAgents says whether a path is one at which an agent or a kubelet of this host
// has volumes mounted: those of others are unmounted by them.
func isAgents(path string) bool {
	return strings.Contains(path, "/"+csiDir+"/") || strings.Contains(path, "/volumes/kubernetes.io~csi/")
}

// split takes a name of volumesInUse or volumesAttached apart.
func split(name corev1.UniqueVolumeName) (driver, handle string, ok bool) {
	rest, ok := strings.CutPrefix(string(name), "kubernetes.io/csi/")
	if !ok {
		return "", "", false
	}
	return strings.Cut(rest, "^")
}

func driverOf(key string) string {
	driver, _, _ := strings.Cut(key, "^")
	return driver
}

func uniqueName(driver, handle string) corev1.UniqueVolumeName {
	return corev1.UniqueVolumeName(volume.UniqueName(driver, handle))
}

func isBlock(pv *corev1.PersistentVolume) bool { return cluster.IsBlock(pv.Spec.VolumeMode) }
