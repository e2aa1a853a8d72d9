package uses

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/driverstatus"
	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/volume"
)

// Use is one volume of a Pod, with the PersistentVolume to mount.
type Use struct {
	decide.Use
	// PV is nil if nothing can be mounted. That of an inline volume does not exist in the API.
	PV *corev1.PersistentVolume
	// Why is the reason for which PV is nil.
	Why volume.Because
}

// Key returns the volume's key, or "" when there is no volume.
func (u Use) Key() string {
	if u.PV == nil {
		return ""
	}
	return volume.Key(u.PV.Spec.CSI.Driver, u.PV.Spec.CSI.VolumeHandle)
}

// Finder finds the volumes that Pods use.
type Finder struct {
	// Root is the agent's root directory, Keep are further directories that no
	// volume is mounted at, in or over.
	Root      string
	Protected []string
	Claims    cluster.Objects[*corev1.PersistentVolumeClaim]
	Volumes   cluster.Objects[*corev1.PersistentVolume]
}

// Of returns a Pod's volumes that drivers provide. The agent neither mounts other kinds nor waits for
// them.
func (f *Finder) Of(pod *corev1.Pod) []Use {
	var out []Use
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		u := decide.Use{Pod: pod, Name: v.Name}
		switch {
		case v.PersistentVolumeClaim != nil:
			u.ClaimName, u.ReadOnly = v.PersistentVolumeClaim.ClaimName, v.PersistentVolumeClaim.ReadOnly
		case v.Ephemeral != nil:
			u.ClaimName, u.Ephemeral = pod.Name+"-"+v.Name, true
		case v.CSI != nil:
			u.Inline = true
		default:
			continue
		}
		out = append(out, validated(f.follow(u, v)))
	}
	return out
}

// follow finds the claim and the PersistentVolume of a use.
func (f *Finder) follow(u decide.Use, v *corev1.Volume) Use {
	if u.Inline {
		u.ReadOnly = ptr.Deref(v.CSI.ReadOnly, false)
		return Use{Use: u, PV: inlineVolume(u.Pod, v)}
	}
	if claim, ok := f.Claims.Get(u.Pod.Namespace + "/" + u.ClaimName); ok {
		u.Claim = claim
		if pv, ok := f.Volumes.Get(claim.Spec.VolumeName); ok {
			u.Volume = pv
		}
	}
	if why := u.Missing(); why.Reason != "" {
		return Use{Use: u, Why: why}
	}
	u.ReadOnly = u.ReadOnly || u.Volume.Spec.CSI.ReadOnly
	return Use{Use: u, PV: u.Volume}
}

// validated removes the volume from a use whose names could lead to other directories than its own. The
// API server rejects such names.
func validated(u Use) Use {
	if u.PV == nil {
		return u
	}
	for what, name := range map[string]string{
		"UID of the Pod": string(u.Pod.UID), "name of the volume": u.PV.Name, "name of the driver": u.PV.Spec.CSI.Driver,
	} {
		if !IsComponent(name) {
			u.PV, u.Why = nil, decide.InvalidName(what, name)
			return u
		}
	}
	return u
}

// InlineHandlePrefix is the prefix of the handles of inline volumes.
const InlineHandlePrefix = "csi-"

// inlineVolume returns an inline volume as a PersistentVolume that does not exist in the API. The handle
// is the same as a kubelet's, so drivers recognise their volumes.
func inlineVolume(pod *corev1.Pod, v *corev1.Volume) *corev1.PersistentVolume {
	sum := sha256.Sum256([]byte(string(pod.UID) + v.Name))
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: v.Name}}
	pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{
		Driver: v.CSI.Driver, VolumeHandle: InlineHandlePrefix + hex.EncodeToString(sum[:]),
		FSType:           ptr.Deref(v.CSI.FSType, ""),
		VolumeAttributes: v.CSI.VolumeAttributes,
	}
	driverstatus.Inherit(pv, v)
	if s := v.CSI.NodePublishSecretRef; s != nil {
		pv.Spec.CSI.NodePublishSecretRef = &corev1.SecretReference{Namespace: pod.Namespace, Name: s.Name}
	}
	return pv
}

// ErrHostPath says that a volume cannot be mounted at the host path that its Pod requests.
var ErrHostPath = errors.New("volume cannot be shown at the host path")

// HostPath returns the directory of the host that the Pod requests, or "", and the options of the mount there.
func (f *Finder) HostPath(pod *corev1.Pod) (string, decide.BindOptions, error) {
	path, ok := pod.Annotations[volume.AnnMountAt]
	if !ok {
		return "", decide.BindOptions{}, nil
	}
	options, err := decide.HostOptions(pod.Annotations[volume.AnnMountOptions])
	if err == nil {
		err = f.checkHostPath(pod, path)
	} else {
		err = fmt.Errorf("%w: %w", ErrHostPath, err)
	}
	if err != nil {
		return "", decide.BindOptions{}, err
	}
	return path, options, nil
}

func (f *Finder) checkHostPath(pod *corev1.Pod, path string) error {
	if path == "/" {
		return fmt.Errorf("%w: it is the root directory of the node", ErrHostPath)
	}
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return fmt.Errorf("%w: %.200q is not an absolute, clean path", ErrHostPath, path)
	}
	for _, dir := range f.ProtectedDirs() {
		if path == dir || strings.HasPrefix(path, dir+"/") || strings.HasPrefix(dir, path+"/") {
			return fmt.Errorf("%w: %.200s is at, in or above %s, which volumes depend on", ErrHostPath, path, dir)
		}
	}
	if n := len(f.Of(pod)); n != 1 {
		return fmt.Errorf("%w: the Pod has %d volumes, exactly one can be shown at %.200s", ErrHostPath, n, path)
	}
	return nil
}

// ProtectedDirs returns all directories at, in or over which no volume is mounted.
func (f *Finder) ProtectedDirs() []string { return append([]string{f.Root}, f.Protected...) }

// Alive says whether a Pod is neither terminating nor finished, so that its volumes stay mounted.
func Alive(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && !cluster.Finished(pod)
}
