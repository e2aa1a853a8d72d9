package node

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

	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/volume"
)

// use is one volume of one Pod, followed to what is to be mounted.
type use struct {
	decide.Use
	// pv is nil when there is nothing that can be mounted; why says the reason.
	// An inline volume has one that nobody else knows.
	pv  *corev1.PersistentVolume
	why volume.Because
}

// key returns the volume's key, or "" when there is no volume.
func (u use) key() string {
	if u.pv == nil {
		return ""
	}
	return volume.Key(u.pv.Spec.CSI.Driver, u.pv.Spec.CSI.VolumeHandle)
}

// uses returns the volumes that a Pod uses. Kinds that are no storage of drivers
// are not mounted here and not waited for.
func (a *Agent) uses(pod *corev1.Pod) []use {
	var out []use
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
		out = append(out, checked(a.follow(u, v)))
	}
	return out
}

// follow goes from the Pod's word to the volume.
func (a *Agent) follow(u decide.Use, v *corev1.Volume) use {
	if u.Inline {
		u.ReadOnly = ptr.Deref(v.CSI.ReadOnly, false)
		return use{Use: u, pv: inlineVolume(u.Pod, v)}
	}
	if claim, ok := a.claims.Get(u.Pod.Namespace + "/" + u.ClaimName); ok {
		u.Claim = claim
		if pv, ok := a.volumes.Get(claim.Spec.VolumeName); ok {
			u.Volume = pv
		}
	}
	if why := u.Missing(); why.Reason != "" {
		return use{Use: u, why: why}
	}
	u.ReadOnly = u.ReadOnly || u.Volume.Spec.CSI.ReadOnly
	return use{Use: u, pv: u.Volume}
}

// checked takes the volume away from a use whose names would lead out of the
// directories that are made from them. The API server lets none through.
func checked(u use) use {
	if u.pv == nil {
		return u
	}
	for what, name := range map[string]string{"UID of the Pod": string(u.Pod.UID), "name of the volume": u.pv.Name, "name of the driver": u.pv.Spec.CSI.Driver} {
		if !isComponent(name) {
			u.pv, u.why = nil, decide.Odd(what, name)
			return u
		}
	}
	return u
}

// inlinePrefix begins the handles of inline volumes.
const inlinePrefix = "csi-"

// inlineVolume returns what a Pod says of a volume of its own, in the form of
// an object that nobody else has. The handle is a kubelet's, so drivers find
// their volumes again.
func inlineVolume(pod *corev1.Pod, v *corev1.Volume) *corev1.PersistentVolume {
	sum := sha256.Sum256([]byte(string(pod.UID) + v.Name))
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: v.Name}}
	pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{
		Driver: v.CSI.Driver, VolumeHandle: inlinePrefix + hex.EncodeToString(sum[:]), FSType: ptr.Deref(v.CSI.FSType, ""),
		VolumeAttributes: v.CSI.VolumeAttributes,
	}
	if v.FlexVolume != nil {
		pv.Spec.FlexVolume = &corev1.FlexPersistentVolumeSource{Driver: v.FlexVolume.Driver}
	}
	if s := v.CSI.NodePublishSecretRef; s != nil {
		pv.Spec.CSI.NodePublishSecretRef = &corev1.SecretReference{Namespace: pod.Namespace, Name: s.Name}
	}
	return pv
}

var errHostPath = errors.New("volume cannot be shown at the host path")

// hostPath returns the directory of the host that the Pod asks for, "" when it
// asks for none, and what is allowed there.
func (a *Agent) hostPath(pod *corev1.Pod) (string, decide.Allowed, error) {
	path, ok := pod.Annotations[volume.AnnMountAt]
	if !ok {
		return "", decide.Allowed{}, nil
	}
	allowed, err := decide.HostOptions(pod.Annotations[volume.AnnMountOptions])
	if err == nil {
		err = a.checkHostPath(pod, path)
	} else {
		err = fmt.Errorf("%w: %w", errHostPath, err)
	}
	if err != nil {
		return "", decide.Allowed{}, err
	}
	return path, allowed, nil
}

func (a *Agent) checkHostPath(pod *corev1.Pod, path string) error {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path || path == "/" {
		return fmt.Errorf("%w: %.200q is not an absolute, clean path", errHostPath, path)
	}
	for _, dir := range a.kept() {
		if path == dir || strings.HasPrefix(path, dir+"/") || strings.HasPrefix(dir, path+"/") {
			return fmt.Errorf("%w: %.200s is at, in or above %s, which volumes live by", errHostPath, path, dir)
		}
	}
	if n := len(a.uses(pod)); n != 1 {
		return fmt.Errorf("%w: the Pod has %d volumes, exactly one can be shown at %.200s", errHostPath, n, path)
	}
	return nil
}

// kept are the directories that no volume is mounted at, in or over.
func (a *Agent) kept() []string { return append([]string{a.RootDir}, a.Keep...) }
