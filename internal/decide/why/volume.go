package why

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/volume"
)

// volumeAlone tells of a volume that no existing claim is asked about with.
func (f facts) volumeAlone() Link {
	v := f.Volume
	if v == nil {
		return link("pv/<none>", Problem, volume.ReasonVolumeMissing, "there is no such volume", "user")
	}
	subject := "pv/" + v.Name
	if l, ok := f.moved(subject, v.Name, ""); ok {
		return l
	}
	switch v.Status.Phase {
	case corev1.VolumeAvailable:
		return link(subject, OK, volume.ReasonAvailable, "no claim is bound to it", "")
	case corev1.VolumeReleased, corev1.VolumeFailed:
		return f.released(subject)
	case corev1.VolumeBound:
		ref := v.Spec.ClaimRef
		if ref == nil {
			return link(subject, Waiting, volume.ReasonBinding, "the volume names no claim", "binder")
		}
		return link(subject, OK, volume.ReasonBound, fmt.Sprintf("to claim %s/%s", ref.Namespace, ref.Name), "")
	}
	return link(subject, Waiting, volume.ReasonBinding, "the volume has not been looked at yet", "binder")
}

// released tells what happens to a volume whose claim is gone.
func (f facts) released(subject string) Link {
	v := f.Volume
	if l, ok := f.failed(subject, v, volume.ReasonFailedDelete, f.driverName()); ok {
		return l
	}
	if v.Status.Phase == corev1.VolumeFailed {
		return link(subject, Problem, volume.ReasonFailedDelete, orText(v.Status.Message, "reclaiming the volume failed"), orText(f.driverName(), "user"))
	}
	if v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain {
		return link(subject, OK, volume.ReasonRetained, "its claim is gone; the data is kept because the policy is Retain", "")
	}
	if attached := f.attached(); len(attached) > 0 {
		return link(subject, Waiting, volume.ReasonStillAttached,
			"its claim is gone; it is deleted when it is detached from node "+attached[0].Spec.NodeName, "attachdetach")
	}
	if e := f.warning(v, volume.ReasonDriverBusy); e != nil {
		return link(subject, Waiting, volume.ReasonDriverBusy, e.Message, orText(f.driverName(), "user"))
	}
	return link(subject, Waiting, volume.ReasonDeleting, "its claim is gone; the driver deletes the volume", orText(f.driverName(), "user"))
}
