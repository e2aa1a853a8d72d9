package hosts

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/volume"
)

var errOther = errors.New("it changes more than they may")

// volume checks a write of a PersistentVolume.
func (w *write) volume() error {
	switch {
	case w.GetSubresource() != "":
		return errOther
	case w.GetOperation() == admission.Create:
		v, err := as(w.GetObject(), &corev1.PersistentVolume{})
		if err != nil {
			return err
		}
		return w.newVolume(v)
	case w.GetOperation() == admission.Delete:
		v, err := as(w.GetOldObject(), &corev1.PersistentVolume{})
		if err != nil {
			return err
		}
		if policy := v.Spec.PersistentVolumeReclaimPolicy; !bind.IsReleased(v) ||
			policy != corev1.PersistentVolumeReclaimDelete {
			return fmt.Errorf("volume %s is not to be deleted: it is %s with the policy %s", v.Name, v.Status.Phase, policy)
		}
		_, err = w.serves(v)
		return err
	}
	return w.changedVolume()
}

// changedVolume checks an update of a volume: finalizers, its size when it grows, and the class
// of its attributes.
func (w *write) changedVolume() error {
	before, after, err := pair(w, &corev1.PersistentVolume{}, &corev1.PersistentVolume{})
	if err != nil {
		return err
	}
	if _, err := w.serves(before); err != nil {
		return err
	}
	finalizers := []string{volume.FinalizerProvisioner, volume.AttacherFinalizer(before.Spec.CSI.Driver)}
	annotations := []string{volume.AnnPreResizeCapacity}
	bare(&before.ObjectMeta, finalizers, annotations)
	bare(&after.ObjectMeta, finalizers, annotations)
	after.Spec.Capacity = before.Spec.Capacity
	if err := w.changedAttributes(before, after); err != nil {
		return err
	}
	after.Spec.VolumeAttributesClassName = before.Spec.VolumeAttributesClassName
	if !equality.Semantic.DeepEqual(before, after) {
		return errOther
	}
	return nil
}

// changedAttributes returns an error unless a volume's VolumeAttributesClass is unchanged, or becomes one of the same
// driver.
func (w *write) changedAttributes(before, after *corev1.PersistentVolume) error {
	name := ptr.Deref(after.Spec.VolumeAttributesClassName, "")
	if name == ptr.Deref(before.Spec.VolumeAttributesClassName, "") {
		return nil
	}
	class, err := w.client.StorageV1().VolumeAttributesClasses().Get(w.ctx, name, metav1.GetOptions{})
	if err != nil {
		return unread("VolumeAttributesClass "+name, err)
	}
	if class.DriverName != before.Spec.CSI.Driver {
		return fmt.Errorf("VolumeAttributesClass %s is for driver %s", name, class.DriverName)
	}
	return nil
}

// newVolume returns an error unless a volume is what the provisioner decides to create for its claim, with the driver's
// answer. Above all, it has no data of another volume, and names no other Secrets than the class does: a node may read
// the Secrets of volumes that its Pods use.
func (w *write) newVolume(v *corev1.PersistentVolume) error {
	scope, err := w.serves(v)
	if err != nil {
		return err
	}
	// A refused volume is deleted at the driver. If it was saved before, it is not refused, whatever has changed since.
	_, err = w.client.CoreV1().PersistentVolumes().Get(w.ctx, v.Name, metav1.GetOptions{})
	switch {
	case err == nil:
		return apierrors.NewAlreadyExists(w.GetResource().GroupResource(), v.Name)
	case !apierrors.IsNotFound(err):
		return unread("volume "+v.Name, err)
	}
	ref := v.Spec.ClaimRef
	if ref == nil {
		return fmt.Errorf("volume %s has no claim", v.Name)
	}
	claim, err := w.client.CoreV1().PersistentVolumeClaims(ref.Namespace).Get(w.ctx, ref.Name, metav1.GetOptions{})
	switch {
	case err != nil:
		return unread("claim "+ref.Namespace+"/"+ref.Name, err)
	case claim.UID != ref.UID:
		return fmt.Errorf("claim %s/%s does not exist with the UID %q", ref.Namespace, ref.Name, ref.UID)
	}
	want, err := w.wanted(claim, v, scope)
	if err != nil {
		return err
	}
	for _, o := range []*corev1.PersistentVolume{want, v} {
		bare(&o.ObjectMeta, nil, nil)
		o.UID, o.CreationTimestamp, o.Status = "", metav1.Time{}, corev1.PersistentVolumeStatus{}
		o.Spec.ClaimRef.ResourceVersion = ""
	}
	if !equality.Semantic.DeepEqual(want, v) {
		return fmt.Errorf("volume %s is not what claim %s/%s and its class ask for", v.Name, ref.Namespace, ref.Name)
	}
	if err := w.handles.free(v); err != nil {
		return err
	}
	return w.accessible(v, scope)
}

// wanted returns the volume that the provisioner would create for a claim, with the driver's part taken from v.
func (w *write) wanted(
	claim *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume, scope volume.Scope,
) (*corev1.PersistentVolume, error) {
	f := provision.ClaimFacts{Claim: claim, Driver: v.Spec.CSI.Driver, Reachable: true, Scope: scope, Partial: true}
	if on := volume.SelectedNode(claim.Annotations); !scope.Has(on) {
		return nil, fmt.Errorf("claim %s/%s is for node %q", claim.Namespace, claim.Name, on)
	}
	name, _ := bind.ClassOf(claim)
	class, err := w.client.StorageV1().StorageClasses().Get(w.ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, unread("class "+name, err)
	}
	f.Class = class
	plan := provision.Claim(f)
	if plan.Intent == nil {
		return nil, fmt.Errorf("claim %s/%s gets no volume: %s", claim.Namespace, claim.Name, plan.Because.Message)
	}
	want := provision.Object(plan.Intent, provision.Answer{
		Handle: v.Spec.CSI.VolumeHandle, Context: v.Spec.CSI.VolumeAttributes,
	}, "")
	want.Spec.Capacity, want.Spec.NodeAffinity = v.Spec.Capacity, v.Spec.NodeAffinity
	want.Spec.VolumeAttributesClassName = v.Spec.VolumeAttributesClassName
	return want, nil
}
