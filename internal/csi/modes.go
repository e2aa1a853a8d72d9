package csi

import (
	"errors"
	"slices"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
)

// ErrAccessModes says that no CSI access mode corresponds to the set of modes.
var ErrAccessModes = errors.New("access modes cannot be combined")

// AccessMode returns the CSI access mode for a volume's set of Kubernetes access modes
// ("ReadWriteOnce" ...). singleNodeMultiWriter says that the driver has the capability
// SINGLE_NODE_MULTI_WRITER. The order of the cases is that of upstream's sidecars.
func AccessMode[M ~string](modes []M, singleNodeMultiWriter bool) (csipb.VolumeCapability_AccessMode_Mode, error) {
	has := func(m M) bool { return slices.Contains(modes, m) }
	switch {
	case has("ReadWriteOncePod"):
		if len(modes) > 1 {
			return 0, ErrAccessModes
		}
		return singleNodeMode(singleNodeMultiWriter, csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER), nil
	case has("ReadWriteMany"):
		return csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, nil
	case has("ReadOnlyMany"):
		if has("ReadWriteOnce") {
			return 0, ErrAccessModes
		}
		return csipb.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, nil
	case has("ReadWriteOnce"):
		return singleNodeMode(singleNodeMultiWriter, csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER), nil
	}
	return 0, ErrAccessModes
}

// singleNodeMode returns the newer mode if the driver knows it.
func singleNodeMode(
	singleNodeMultiWriter bool, newer csipb.VolumeCapability_AccessMode_Mode,
) csipb.VolumeCapability_AccessMode_Mode {
	if singleNodeMultiWriter {
		return newer
	}
	return csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
}

// Capability returns the CSI capability of a volume: a block device, or a filesystem with a type and mount options.
func Capability(
	mode csipb.VolumeCapability_AccessMode_Mode, block bool, fsType string, options []string,
) *csipb.VolumeCapability {
	c := &csipb.VolumeCapability{AccessMode: &csipb.VolumeCapability_AccessMode{Mode: mode}}
	if block {
		c.AccessType = &csipb.VolumeCapability_Block{Block: &csipb.VolumeCapability_BlockVolume{}}
	} else {
		c.AccessType = &csipb.VolumeCapability_Mount{
			Mount: &csipb.VolumeCapability_MountVolume{FsType: fsType, MountFlags: options},
		}
	}
	return c
}

// KubernetesModes returns the Kubernetes access mode and volume mode of a capability; each is empty if the capability
// does not say it.
func KubernetesModes[A, V ~string](c *csipb.VolumeCapability) (access A, volume V) {
	switch c.GetAccessMode().GetMode() {
	case csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csipb.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
		csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
		access = "ReadWriteOnce"
	case csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER:
		access = "ReadWriteOncePod"
	case csipb.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY:
		access = "ReadOnlyMany"
	case csipb.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER,
		csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER:
		access = "ReadWriteMany"
	}
	switch {
	case c.GetBlock() != nil:
		volume = "Block"
	case c.GetMount() != nil:
		volume = "Filesystem"
	}
	return access, volume
}

// Topologies returns segments as CSI has them.
func Topologies[S ~map[string]string](segments []S) (out []*csipb.Topology) {
	for _, s := range segments {
		out = append(out, &csipb.Topology{Segments: s})
	}
	return out
}

// Segments returns the segments of topologies.
func Segments[S ~map[string]string](topologies []*csipb.Topology) (out []S) {
	for _, t := range topologies {
		out = append(out, t.GetSegments())
	}
	return out
}
