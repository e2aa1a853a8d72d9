package provision

import (
	"cmp"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/volume"
)

// Object returns the object of a created volume. It refers to the claim, and has a finalizer until the driver has
// deleted the volume. A provisioner in the place of upstream's adds its identity to the attributes.
func Object(in *Intent, a Answer, identity string) *corev1.PersistentVolume {
	bytes := cmp.Or(a.Bytes, in.Bytes)
	mode := corev1.PersistentVolumeFilesystem
	fsType := in.FSType
	if in.Block {
		mode, fsType = corev1.PersistentVolumeBlock, ""
	}
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name:        in.Name,
			Annotations: map[string]string{volume.AnnProvisionedBy: in.Driver},
			Finalizers:  []string{volume.FinalizerVolumeProtection},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{
				corev1.ResourceStorage: *resource.NewQuantity(bytes, resource.BinarySI),
			},
			AccessModes:                   in.Modes,
			ClaimRef:                      in.Claim.DeepCopy(),
			PersistentVolumeReclaimPolicy: in.Reclaim,
			StorageClassName:              in.Class,
			MountOptions:                  in.Options,
			VolumeMode:                    &mode,
			VolumeAttributesClassName:     in.Attributes,
			NodeAffinity:                  topology.Affinity(a.Segments),
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: in.Driver, VolumeHandle: a.Handle, FSType: fsType, ReadOnly: in.ReadOnly,
				VolumeAttributes:           attributes(a.Context, identity),
				ControllerPublishSecretRef: in.Secrets.Publish, NodeStageSecretRef: in.Secrets.Stage,
				NodePublishSecretRef:      in.Secrets.Node,
				ControllerExpandSecretRef: in.Secrets.Expand, NodeExpandSecretRef: in.Secrets.NodeExpand,
			}},
		},
	}
	if in.Reclaim == corev1.PersistentVolumeReclaimDelete {
		pv.Finalizers = append(pv.Finalizers, volume.FinalizerProvisioner)
	}
	if in.Node != "" {
		pv.Annotations[volume.AnnProvisionedOn] = in.Node
	}
	if identity != "" {
		// Upstream's provisioner, which may take the place of this one, would ask the class for a Secret if these were
		// missing, and the class may be another one by then.
		pv.Annotations[volume.AnnDeletionSecretName], pv.Annotations[volume.AnnDeletionSecretNamespace] = "", ""
	}
	if s := in.Secrets.Provision; s != nil {
		pv.Annotations[volume.AnnDeletionSecretName], pv.Annotations[volume.AnnDeletionSecretNamespace] = s.Name, s.Namespace
	}
	if s := in.Secrets.Modify; s != nil {
		pv.Annotations[volume.AnnModifySecretName], pv.Annotations[volume.AnnModifySecretNamespace] = s.Name, s.Namespace
	}
	return pv
}

// attributes returns the attributes of a volume: the driver's, and the identity of the provisioner unless the driver
// has said another.
func attributes(context map[string]string, identity string) map[string]string {
	if identity == "" {
		return context
	}
	out := map[string]string{volume.KeyIdentity: identity}
	maps.Copy(out, context)
	return out
}

// Reclaim is the next step for a volume object.
type Reclaim int

// The steps for a volume object.
const (
	// Keep changes nothing.
	Keep Reclaim = iota
	// Adopt sets the finalizer that a volume with policy Delete needs.
	Adopt
	// Disown removes the finalizer, because the policy is not Delete any more.
	Disown
	// Delete calls DeleteVolume, removes the finalizer and deletes the object.
	Delete
	// Forget removes the finalizer and deletes the object without a call of the driver: the volume was lost with its node.
	Forget
)

// VolumeFacts is what the decision about one volume depends on.
type VolumeFacts struct {
	Volume *corev1.PersistentVolume
	// Claim is the claim with the name in the volume's reference and any UID, or nil.
	Claim *corev1.PersistentVolumeClaim
	// Attachments are the names of the VolumeAttachments of the volume, by any object with its handle.
	Attachments []string
	// Sharer is another object that has the volume's handle and is not to be deleted, or "".
	Sharer string
	// Reachable says whether this process can call the driver for this volume.
	Reachable bool
	// Lacks is a CSI capability that the driver lacks and needs to delete volumes, or "".
	Lacks string
	// Lost says that the volume was lost with its node, and that this process speaks for what belongs to no node.
	Lost bool
}

// DeleterOf returns the driver that deletes a volume: the driver of the volume, unless another
// provisioner has created it (S4-056); then it returns "".
func DeleterOf(v *corev1.PersistentVolume) string {
	by, made := v.Annotations[volume.AnnProvisionedBy]
	switch {
	case v.Spec.CSI == nil, made && by != v.Spec.CSI.Driver:
		return ""
	}
	return v.Spec.CSI.Driver
}

// Volume decides about one volume object.
func Volume(f VolumeFacts) (Reclaim, volume.Because) {
	v := f.Volume
	driver := DeleterOf(v)
	kept := len(volume.Without(v.Finalizers, volume.FinalizerProvisioner)) < len(v.Finalizers)
	deletes := v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete
	switch {
	case driver == "":
		return Keep, notMine(v)
	case !deletes && kept:
		return Disown, volume.Say(volume.ReasonRetained, volume.Actor{}, "volume "+v.Name+" is to be retained")
	case !deletes:
		return Keep, volume.Say(volume.ReasonRetained, volume.Actor{}, "volume "+v.Name+" is retained")
	case v.Spec.ClaimRef == nil || v.Spec.ClaimRef.UID == "":
		// A phase of an earlier claim may not have been taken back yet.
		return Keep, inUse(v, kept)
	case bind.IsReleased(v):
		step, why := released(f, driver, kept)
		if !kept && v.DeletionTimestamp == nil {
			// The driver may not delete it before somebody deletes the object.
			step = Adopt
		}
		return step, why
	case !kept && v.DeletionTimestamp == nil:
		return Adopt, volume.Say(volume.ReasonBound, volume.Actor{}, "volume "+v.Name+" is to be deleted with its claim")
	}
	return Keep, inUse(v, kept)
}

func notMine(v *corev1.PersistentVolume) volume.Because {
	b := volume.Because{Reason: volume.ReasonNotMine, Message: "volume " + v.Name +
		" does not belong to a CSI driver, or was created by another program"}
	if bind.IsReleased(v) &&
		v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
		b.Message, b.Next = b.Message+": it is released, and no provisioner here deletes it", volume.User()
	}
	return b
}

func inUse(v *corev1.PersistentVolume, kept bool) volume.Because {
	if kept && v.DeletionTimestamp != nil {
		return volume.Say(volume.ReasonInUse, volume.User(),
			"volume "+v.Name+" is "+string(v.Status.Phase)+", and its provisioner deletes what is Released")
	}
	return volume.Because{Reason: volume.ReasonBound, Message: "volume " + v.Name + " is in use"}
}

// released decides about a released volume with the policy Delete.
func released(f VolumeFacts, driver string, kept bool) (Reclaim, volume.Because) {
	v := f.Volume
	switch {
	case !kept && v.DeletionTimestamp != nil:
		return Keep, volume.Because{
			Reason: volume.ReasonTerminating, Message: "volume " + v.Name + " is deleted at the driver, its object is being " +
				"deleted",
		}
	case bind.Together(f.Claim, v) && !Owns(f.Claim.UID, v):
		return Keep, bind.UIDMismatch(f.Claim, v)
	case bind.Together(f.Claim, v):
		return Keep, volume.Say(volume.ReasonBinding, volume.Controller("binder"),
			"volume "+v.Name+" is released, and its claim is there")
	case f.Sharer != "":
		return Keep, volume.Say(volume.ReasonInUse, volume.User(), "volume "+v.Name+" is released, and volume "+f.Sharer+
			" has the same handle: what both name is not deleted while volume "+f.Sharer+" is kept")
	case len(f.Attachments) > 0:
		return Keep, volume.Say(volume.ReasonStillAttached, volume.Controller("attachdetach"),
			"volume "+v.Name+" is still attached: "+f.Attachments[0])
	case f.Lost:
		return Forget, volume.Because{
			Reason: volume.ReasonNodeGone,
			Message: "volume " + v.Name + " (" + v.Spec.CSI.VolumeHandle + ") was lost with node " + MadeOn(v) +
				": its object is deleted, and driver " + driver + " did not delete anything",
		}
	case !f.Reachable:
		return Keep, volume.Say(volume.ReasonDriverMissing, volume.Driver(driver),
			"driver "+driver+" has not registered and cannot delete volume "+v.Name)
	case f.Lacks != "":
		return Keep, DeleteFailed(v, volume.Answer{Text: "it does not have the capability " + f.Lacks})
	}
	return Delete, volume.Say(volume.ReasonDeleting, volume.Driver(driver), "volume "+v.Name+" is being deleted")
}

// DeleteFailed explains why a volume is not deleted yet.
func DeleteFailed(v *corev1.PersistentVolume, a volume.Answer) volume.Because {
	driver, by := DeleterOf(v), ""
	if driver != "" {
		by = " by driver " + driver
	}
	return a.Because(volume.ReasonFailedDelete, volume.Driver(driver),
		"volume "+v.Name+" is not deleted"+by+": "+a.Failure())
}

// RetainedTooLate says that a volume is gone although its policy is not Delete any more.
func RetainedTooLate(v *corev1.PersistentVolume) volume.Because {
	return volume.Because{
		Reason: volume.ReasonDeleting,
		Message: "volume " + v.Name + " was deleted by driver " + DeleterOf(v) + ", and its data with it: its reclaim " +
			"policy was changed to " + string(v.Spec.PersistentVolumeReclaimPolicy) + " only after DeleteVolume had been called",
	}
}

// Disowned returns the volume object without the provisioner's finalizer.
func Disowned(v *corev1.PersistentVolume) *corev1.PersistentVolume {
	c := v.DeepCopy()
	c.Finalizers = volume.Without(c.Finalizers, volume.FinalizerProvisioner)
	return c
}

// Adopted returns the volume object with the provisioner's finalizer.
func Adopted(v *corev1.PersistentVolume) *corev1.PersistentVolume {
	c := Disowned(v)
	c.Finalizers = append(c.Finalizers, volume.FinalizerProvisioner)
	return c
}

// Forgotten returns the strategic merge patch that removes finalizers from the object of a deleted volume: the
// provisioner's, the attacher's, and, with protects, the protection controller's. It names them, so that it does not
// matter who changes others meanwhile. The patch fails if another volume has the name now.
func Forgotten(v *corev1.PersistentVolume, protects bool) map[string]any {
	gone := []string{volume.FinalizerProvisioner, volume.AttacherFinalizer(v.Spec.CSI.Driver)}
	if protects {
		gone = append(gone, volume.FinalizerVolumeProtection)
	}
	return map[string]any{"metadata": map[string]any{"uid": v.UID, "$deleteFromPrimitiveList/finalizers": gone}}
}
