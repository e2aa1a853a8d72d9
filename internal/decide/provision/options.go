package provision

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/volume"
)

// Options are what a provisioner's user can choose. The zero value is a provisioner that nobody configures.
type Options struct {
	// NamePrefix begins the names of volumes; empty means "pvc".
	NamePrefix string
	// NameLength cuts the claim's UID, without its hyphens, to so many characters; 0 keeps all of it.
	NameLength int
	// DefaultFSType is the filesystem type of all volumes whose class names none.
	DefaultFSType string
	// BlockFSType is the same for volumes that are certainly block devices on one node; see blockBacked.
	BlockFSType string
	// ExtraMetadata adds the names of the claim and of the volume to the parameters of CreateVolume.
	ExtraMetadata bool
	// PublishReadOnly marks volumes that are only to be read, by any number of nodes, as read-only.
	PublishReadOnly bool
	// AllowModeConversion lets a restored volume have another mode than that of its snapshot.
	AllowModeConversion bool
	// WithoutAttributes makes volumes as if no claim named a VolumeAttributesClass.
	WithoutAttributes bool
	// OtherNamespaces lets claims have the data of sources in other namespaces that a ReferenceGrant allows.
	OtherNamespaces bool
	// StrictTopology and WithoutImmediateTopology are the fields of topology.Facts.
	StrictTopology, WithoutImmediateTopology bool
}

// Keys of the parameters of CreateVolume that ExtraMetadata adds.
const (
	keyClaimName      = keyPrefix + "pvc/name"
	keyClaimNamespace = keyPrefix + "pvc/namespace"
	keyVolumeName     = keyPrefix + "pv/name"
)

const defaultPrefix = "pvc"

// NameOf returns the name of the volume for a claim (S1-024).
func (o Options) NameOf(claim *corev1.PersistentVolumeClaim) string {
	return volume.CutName(cmp.Or(o.NamePrefix, defaultPrefix), string(claim.UID), o.NameLength)
}

// NameOf returns the name of the volume for a claim of a provisioner that nobody configures.
func NameOf(claim *corev1.PersistentVolumeClaim) string { return Options{}.NameOf(claim) }

// isNameOf says whether some options give a claim's volume this name. They may have been others than today's when an
// intent was written.
func isNameOf(uid types.UID, name string) bool {
	if prefix, whole := strings.CutSuffix(name, "-"+string(uid)); whole {
		return prefix != ""
	}
	cut := strings.LastIndexByte(name, '-')
	return cut > 0 && cut+1 < len(name) && strings.HasPrefix(strings.ReplaceAll(string(uid), "-", ""), name[cut+1:])
}

// IsObjectOf says whether a volume object with the name of an intent is that of its volume. A name with the whole UID
// of the claim can be no other claim's, whoever the object has been handed over to.
func IsObjectOf(in *Intent, v *corev1.PersistentVolume) bool {
	return Owns(in.Claim.UID, v) || strings.HasSuffix(in.Name, "-"+string(in.Claim.UID))
}

// NameHeld explains why nothing is asked for while the volume of another claim is being made with the same name.
func NameHeld(in *Intent) volume.Because {
	return in.failed(volume.User(), "volume "+in.Name+" is being created for another claim whose volume has the same name")
}

// checkName returns an error if no volume object can have the name.
func checkName(name string) error {
	if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		return fmt.Errorf("%w %q: %s", errName, name, problems[0])
	}
	return nil
}

// metadata returns the parameters of CreateVolume with what the options add to them.
func (o Options) metadata(in *Intent) map[string]string {
	if !o.ExtraMetadata {
		return in.Parameters
	}
	out := map[string]string{keyClaimName: in.Claim.Name, keyClaimNamespace: in.Claim.Namespace, keyVolumeName: in.Name}
	maps.Copy(out, in.Parameters)
	return out
}

// defaultFSType returns the filesystem type of a volume whose class names none; "" leaves it to the driver.
func (f ClaimFacts) defaultFSType() string {
	switch {
	case f.Options.DefaultFSType != "":
		return f.Options.DefaultFSType
	case f.blockBacked():
		return f.Options.BlockFSType
	}
	return ""
}

// blockBacked says whether the volume is certainly a filesystem on a block device of one node. A kubelet gives the
// files of such a volume to a Pod's fsGroup only if the volume names a filesystem type. For a network filesystem a type
// would be wrong: the kubelet would change the owners of files that others use, or the driver would not mount it.
func (f ClaimFacts) blockBacked() bool {
	return f.BlockDriver && !cluster.IsBlock(f.Claim.Spec.VolumeMode) &&
		!slices.ContainsFunc(f.Claim.Spec.AccessModes, func(m corev1.PersistentVolumeAccessMode) bool {
			return m != corev1.ReadWriteOnce && m != corev1.ReadWriteOncePod
		}) && !saysFilesystem(f.Class.Parameters)
}

// saysFilesystem says whether a class tells the driver, by a parameter of the driver's own, which filesystem or which
// protocol its volumes have.
func saysFilesystem(parameters map[string]string) bool {
	words := []string{"fs", "fsname", "fstype", "filesystem", "filesystemtype", "protocol"}
	for k := range parameters {
		k = strings.ToLower(k[strings.LastIndexByte(k, '/')+1:])
		if slices.Contains(words, strings.NewReplacer("-", "", "_", "", ".", "").Replace(k)) {
			return true
		}
	}
	return false
}

// ErrTooLarge says that a size is too large for CSI.
var ErrTooLarge = errors.New("too large")

// Bytes returns a size in bytes, rounded up. CSI's sizes are int64; a Quantity may be larger.
func Bytes(q *resource.Quantity) (int64, error) {
	if q.CmpInt64(math.MaxInt64) > 0 {
		return 0, fmt.Errorf("%s is %w: drivers count up to %d bytes", q, ErrTooLarge, int64(math.MaxInt64))
	}
	return q.Value(), nil
}
