package bridge

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/flex/host"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/volume"
)

// Keys of publish_context.
const (
	keyDevice   = "flex.device"
	keyReadOnly = "flex.readOnly"
)

// Keys of volume_context that are not options of the user.
const (
	infoPrefix   = "csi.storage.k8s.io/"
	keyEphemeral = infoPrefix + "ephemeral"
)

// optionsOf returns the user's options among a volume's attributes.
func optionsOf(context map[string]string) (map[string]string, error) {
	out := map[string]string{}
	for k, v := range context {
		if !strings.HasPrefix(k, infoPrefix) && k != volume.KeyIdentity {
			out[k] = v
		}
	}
	return out, decide.CheckOptions(out)
}

// expanded returns the parameters of a class in which ${pv.name}, ${pvc.name} and ${pvc.namespace}
// are replaced by the names of the volume and its claim. So each volume can have its own options.
func expanded(parameters map[string]string, name string) map[string]string {
	words := strings.NewReplacer("${pv.name}", name, "${pvc.name}", parameters[infoPrefix+"pvc/name"],
		"${pvc.namespace}", parameters[infoPrefix+"pvc/namespace"])
	out := make(map[string]string, len(parameters))
	for k, v := range parameters {
		out[k] = words.Replace(v)
	}
	return out
}

// podOf returns the Pod that a volume is published for.
func podOf(context map[string]string) decide.PodInfo {
	return decide.PodInfo{
		Name: context[infoPrefix+"pod.name"], Namespace: context[infoPrefix+"pod.namespace"],
		UID:            context[infoPrefix+"pod.uid"],
		ServiceAccount: context[infoPrefix+"serviceAccount.name"],
	}
}

// isInline says whether a Pod itself names the volume. If the CSIDriver object omits the Pod's
// information, the form of the id shows it.
func isInline(r *csipb.NodePublishVolumeRequest) bool {
	return r.GetVolumeContext()[keyEphemeral] == "true" || isInlineID(r.GetVolumeId())
}

func isInlineID(id string) bool { return regexp.MustCompile(`^csi-[0-9a-f]{64}$`).MatchString(id) }

// use is how a volume is to be used.
type use struct {
	fsType   string
	readOnly bool
	group    *int64
}

// useOf parses a capability.
func useOf(c *csipb.VolumeCapability) (use, error) {
	var u use
	m := c.GetMount()
	switch {
	case c == nil:
		return u, status.Error(codes.InvalidArgument, "no capability")
	case c.GetBlock() != nil:
		return u, status.Error(codes.InvalidArgument, "FlexVolume drivers have no block devices for Pods, only filesystems")
	case m == nil:
		return u, status.Error(codes.InvalidArgument, "the capability is neither mount nor block")
	}
	u.fsType = m.GetFsType()
	switch c.GetAccessMode().GetMode() {
	case csipb.VolumeCapability_AccessMode_UNKNOWN:
		return u, status.Error(codes.InvalidArgument, "the capability has no access mode")
	case csipb.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
		csipb.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY:
		u.readOnly = true
	}
	for _, f := range m.GetMountFlags() {
		switch f {
		case "ro":
			u.readOnly = true
		case "rw", "":
		default:
			return u, status.Error(codes.InvalidArgument,
				"FlexVolume drivers support no mount options but ro and rw; use an option of the driver instead")
		}
	}
	if g := m.GetVolumeMountGroup(); g != "" {
		group, err := strconv.ParseInt(g, 10, 32)
		if err != nil || group < 0 {
			return u, status.Errorf(codes.InvalidArgument, "group %.20q is not a group id", g)
		}
		u.group = &group
	}
	return u, nil
}

// useRequest is a request about a use of a volume.
type useRequest interface {
	GetVolumeId() string
	GetVolumeCapability() *csipb.VolumeCapability
	GetVolumeContext() map[string]string
}

// wanted returns the record of a use of a volume at a place, and the group of its files.
func (d *driver) wanted(k kind, place string, r useRequest) (*record, *int64, error) {
	u, err := useOf(r.GetVolumeCapability())
	if err != nil {
		return nil, nil, err
	}
	options, err := optionsOf(r.GetVolumeContext())
	if err != nil {
		return nil, nil, err
	}
	return &record{
		Kind: k, Driver: d.name, Volume: r.GetVolumeId(), Place: place, Name: r.GetVolumeId(), FSType: u.fsType,
		ReadOnly: u.readOnly, Options: options,
	}, u.group, nil
}

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
