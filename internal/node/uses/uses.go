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
	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/decide/note"
	"volplane.dev/volplane/internal/volume"
)

// Use is one volume of one Pod, followed to what is to be mounted.
type Use struct {
	decide.Use
	// PV is nil when there is nothing that can be mounted; Why says the reason.
	// An inline volume has one that nobody else knows.
	PV  *corev1.PersistentVolume
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
	Root    string
	Keep    []string
	Claims  cluster.Objects[*corev1.PersistentVolumeClaim]
	Volumes cluster.Objects[*corev1.PersistentVolume]
}

// Of returns the volumes that a Pod uses. Kinds that are no storage of drivers
// are not mounted here and not waited for.
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
		out = append(out, checked(f.follow(u, v)))
	}
	return out
}

// follow goes from the Pod's word to the volume.
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

// checked takes the volume away from a use whose names would lead out of the
// directories that are made from them. The API server lets none through.
func checked(u Use) Use {
	if u.PV == nil {
		return u
	}
	for what, name := range map[string]string{
		"UID of the Pod": string(u.Pod.UID), "name of the volume": u.PV.Name, "name of the driver": u.PV.Spec.CSI.Driver,
	} {
		if !IsComponent(name) {
			u.PV, u.Why = nil, decide.Odd(what, name)
			return u
		}
	}
	return u
}

// InlinePrefix begins the handles of inline volumes.
const InlinePrefix = "csi-"

// inlineVolume returns what a Pod says of a volume of its own, in the form of
// an object that nobody else has. The handle is a kubelet's, so drivers find
// their volumes again.
func inlineVolume(pod *corev1.Pod, v *corev1.Volume) *corev1.PersistentVolume {
	sum := sha256.Sum256([]byte(string(pod.UID) + v.Name))
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: v.Name}}
	pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{
		Driver: v.CSI.Driver, VolumeHandle: InlinePrefix + hex.EncodeToString(sum[:]), FSType: ptr.Deref(v.CSI.FSType, ""),
		VolumeAttributes: v.CSI.VolumeAttributes,
	}
	note.Inherit(pv, v)
	if s := v.CSI.NodePublishSecretRef; s != nil {
		pv.Spec.CSI.NodePublishSecretRef = &corev1.SecretReference{Namespace: pod.Namespace, Name: s.Name}
	}
	return pv
}

// ErrHostPath says that a volume cannot be shown where its Pod asks for it.
var ErrHostPath = errors.New("volume cannot be shown at the host path")

// HostPath returns the directory of the host that the Pod asks for, "" when it
// asks for none, and what is allowed there.
func (f *Finder) HostPath(pod *corev1.Pod) (string, decide.Allowed, error) {
	path, ok := pod.Annotations[volume.AnnMountAt]
	if !ok {
		return "", decide.Allowed{}, nil
	}
	allowed, err := decide.HostOptions(pod.Annotations[volume.AnnMountOptions])
	if err == nil {
		err = f.checkHostPath(pod, path)
	} else {
		err = fmt.Errorf("%w: %w", ErrHostPath, err)
	}
	if err != nil {
		return "", decide.Allowed{}, err
	}
	return path, allowed, nil
}

func (f *Finder) checkHostPath(pod *corev1.Pod, path string) error {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path || path == "/" {
		return fmt.Errorf("%w: %.200q is not an absolute, clean path", ErrHostPath, path)
	}
	for _, dir := range f.Kept() {
		if path == dir || strings.HasPrefix(path, dir+"/") || strings.HasPrefix(dir, path+"/") {
			return fmt.Errorf("%w: %.200s is at, in or above %s, which volumes live by", ErrHostPath, path, dir)
		}
	}
	if n := len(f.Of(pod)); n != 1 {
		return fmt.Errorf("%w: the Pod has %d volumes, exactly one can be shown at %.200s", ErrHostPath, n, path)
	}
	return nil
}

// Kept are the directories that no volume is mounted at, in or over.
func (f *Finder) Kept() []string { return append([]string{f.Root}, f.Keep...) }

// Alive says whether a Pod still has a right to its volumes.
func Alive(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && !cluster.Finished(pod)
}

// Mounted returns the condition of a Pod that says whether its volumes are mounted,
// nil when nothing was said yet.
func Mounted(pod *corev1.Pod) *corev1.PodCondition {
	return Condition(pod, volume.ConditionVolumesMounted)
}

// Condition returns the Pod's condition of a type, nil when it has none.
func Condition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == kind {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}
