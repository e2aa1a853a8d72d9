package docker

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/doors"
	"volplane.dev/volplane/internal/volume"
)

// defaultSize is the size of a volume that is created without one.
const defaultSize = "1Gi"

// option sets what one option of `docker volume create` says.
type option func(claim *corev1.PersistentVolumeClaim, value string) error

// volumeOptions returns the options of a volume.
func volumeOptions() map[string]option {
	return map[string]option{
		"size": setSize,
		"class": func(c *corev1.PersistentVolumeClaim, v string) error {
			c.Spec.StorageClassName = &v
			return nil
		},
		"access": setAccess,
		"mode": func(_ *corev1.PersistentVolumeClaim, v string) error {
			if v != string(corev1.PersistentVolumeFilesystem) {
				return errors.New("a container engine mounts filesystems only: omit it")
			}
			return nil
		},
		"snapshot": func(c *corev1.PersistentVolumeClaim, v string) error {
			return setSource(c, ptr.To(volume.GroupSnapshot), volume.KindSnapshot, v)
		},
		"clone": func(c *corev1.PersistentVolumeClaim, v string) error {
			return setSource(c, nil, "PersistentVolumeClaim", claimName(v))
		},
		"retain": func(c *corev1.PersistentVolumeClaim, v string) error {
			retain, err := strconv.ParseBool(v)
			if err != nil {
				return errors.New("write true or false")
			}
			if retain {
				c.Annotations[annRetain] = "true"
			}
			return nil
		},
	}
}

// ofLocal are the options of docker's own driver, whose sense none of ours has.
var ofLocal = []string{"type", "device", "o"} //nolint:gochecknoglobals // a table of constants

// newClaim returns the claim of a new volume. find returns another claim by its name, or nil.
func newClaim(
	namespace, name string, opts map[string]string, find func(name string) *corev1.PersistentVolumeClaim,
) (*corev1.PersistentVolumeClaim, error) {
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: claimName(name), Labels: map[string]string{volume.LabelMadeBy: managedBy},
			Annotations: map[string]string{annName: name},
		},
		Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}},
	}
	known := volumeOptions()
	for _, key := range slices.Sorted(maps.Keys(opts)) {
		set, ok := known[key]
		if !ok {
			return nil, unknownOption(key, known)
		}
		if err := set(claim, opts[key]); err != nil {
			return nil, fmt.Errorf("option %s=%.80s: %w", key, opts[key], err)
		}
	}
	return claim, sized(claim, find)
}

// mismatch returns an error if a claim does not have the options with which its volume is to be created again.
func mismatch(has, want *corev1.PersistentVolumeClaim, opts map[string]string) error {
	w := doors.ClaimRequest{Source: want.Spec.DataSource}
	for key := range opts {
		switch key {
		case "size":
			w.Size = want.Spec.Resources.Requests.Storage()
		case "class":
			w.Class = *want.Spec.StorageClassName
		case "access":
			w.Access = want.Spec.AccessModes[0]
		case "retain":
			if keeps := has.Annotations[annRetain] != ""; keeps != (want.Annotations[annRetain] != "") {
				return fmt.Errorf("has the option retain=%t", keeps)
			}
		}
	}
	return w.Mismatch(has)
}

func unknownOption(key string, known map[string]option) error {
	list := strings.Join(slices.Sorted(maps.Keys(known)), ", ")
	if slices.Contains(ofLocal, key) {
		return fmt.Errorf("option %s belongs to docker's driver \"local\": a StorageClass says what kind of storage a "+
			"volume is on; the options are %s", key, list)
	}
	return fmt.Errorf("unknown option %.80q: the options are %s", key, list)
}

// sized sets the size of a claim that has none: a copy is as large as what is copied.
func sized(claim *corev1.PersistentVolumeClaim, find func(name string) *corev1.PersistentVolumeClaim) error {
	source := claim.Spec.DataSource
	switch {
	case claim.Spec.Resources.Requests != nil:
		return nil
	case source == nil:
		return setSize(claim, defaultSize)
	case source.Kind == volume.KindSnapshot:
		return errors.New("give a size, at least that of the volume when the snapshot was taken")
	}
	if copied := find(source.Name); copied != nil {
		claim.Spec.Resources.Requests = copied.Spec.Resources.Requests.DeepCopy()
		return nil
	}
	return fmt.Errorf("the volume that is to be cloned, claim %s, does not exist", source.Name)
}

func setSize(claim *corev1.PersistentVolumeClaim, value string) error {
	size, err := doors.ParseSize(value)
	if err != nil {
		return err
	}
	claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: size}
	return nil
}

func setAccess(claim *corev1.PersistentVolumeClaim, value string) error {
	short := doors.AccessModes()
	mode, ok := short[value]
	if !ok && !slices.Contains(slices.Collect(maps.Values(short)), corev1.PersistentVolumeAccessMode(value)) {
		return errors.New("the accesses are RWO, RWX, ROX and RWOP")
	}
	if !ok {
		mode = corev1.PersistentVolumeAccessMode(value)
	}
	claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{mode}
	return nil
}

func setSource(claim *corev1.PersistentVolumeClaim, group *string, kind, name string) error {
	if claim.Spec.DataSource != nil {
		return errors.New("a volume is created from one snapshot or one other volume")
	}
	claim.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: group, Kind: kind, Name: name}
	return nil
}
