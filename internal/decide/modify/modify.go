package modify

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/volume"
)

// Step is the next step of a change of attributes.
type Step int

// Steps of a change.
const (
	// Nothing: the volume has the right attributes, or another program acts next.
	Nothing Step = iota
	// Wait writes to the claim that its class does not exist.
	Wait
	// Begin writes to the claim which class its volume is about to get; Modify follows.
	Begin
	// Modify calls ControllerModifyVolume.
	Modify
	// Cancel removes the status of a change that is no longer wanted.
	Cancel
	// Refuse writes to the claim that its volume cannot have the class.
	Refuse
)

// Facts is everything on which the decision about one claim depends.
type Facts struct {
	Claim  *corev1.PersistentVolumeClaim
	Volume *corev1.PersistentVolume
	// Reachable says that this process calls the volume's driver, Modifies that the driver can change attributes.
	Reachable, Modifies bool
	// Class is the class named by Target, or nil.
	Class *storagev1.VolumeAttributesClass
	// Refused says that the driver's last answer about the target in the claim's status was a final no: no call for it is
	// in progress. Without memory of the answer it may be.
	Refused bool
	// Due means that a permanently refused class may be tried again.
	Due bool
}

// Plan is the next step and its reason.
type Plan struct {
	Step Step
	// Event means that the user is warned.
	Event   bool
	Because volume.Because
}

// Target returns the name of the class that the volume gets next, or "". A change that may be in progress at the driver
// is finished before another one begins; CSI has no way to cancel it.
func (f Facts) Target() string {
	if s := f.Claim.Status.ModifyVolumeStatus; isBegun(f.Claim) && (!f.Refused || desiredClass(f.Claim) == "") {
		return s.TargetVolumeAttributesClassName
	}
	return desiredClass(f.Claim)
}

// Claim decides about one claim.
func Claim(f Facts) Plan {
	c, v := f.Claim, f.Volume
	s, target := c.Status.ModifyVolumeStatus, f.Target()
	switch {
	case !cluster.BoundCSI(c, v):
		return nothing(volume.ReasonNothingToDo, volume.Actor{}, "claim "+c.Name+" is not bound to a CSI volume")
	case s == nil && target == current(c):
		return nothing(volume.ReasonNothingToDo, volume.Actor{}, "claim "+c.Name+" has the attributes that it requests")
	case c.DeletionTimestamp != nil:
		return nothing(volume.ReasonTerminating, volume.Actor{}, "claim "+c.Name+" is being deleted")
	case target == "":
		return cancelled(c)
	case !f.Reachable:
		return nothing(volume.ReasonDriverMissing, volume.Driver(v.Spec.CSI.Driver),
			"driver "+v.Spec.CSI.Driver+" has not registered")
	}
	return change(f, target)
}

// change decides about a claim whose volume must get the attributes of class target.
func change(f Facts, target string) Plan {
	c, v := f.Claim, f.Volume
	switch {
	case !f.Modifies:
		return impossible("driver " + v.Spec.CSI.Driver + " cannot change the attributes of volumes: it does not have the " +
			"capability MODIFY_VOLUME")
	case IsRefusedForGood(c) && !f.Due:
		return nothing(volume.ReasonFailedModify, volume.User(),
			strings.TrimSuffix("the volume of claim "+c.Name+" cannot have the attributes of class "+target+": "+Failure(c),
				": "))
	case f.Class == nil:
		return missing(f, target)
	case f.Class.DriverName != v.Spec.CSI.Driver:
		p := impossible(fmt.Sprintf("VolumeAttributesClass %s is for driver %s, not for %s", target, f.Class.DriverName,
			v.Spec.CSI.Driver))
		if !isBegun(c) || f.Refused {
			p.Step = Refuse
		}
		return p
	}
	p := nothing(volume.ReasonModifying, volume.Driver(v.Spec.CSI.Driver),
		"the volume of claim "+c.Name+" is being given the attributes of class "+target)
	if p.Step = Begin; isBegun(c) && c.Status.ModifyVolumeStatus.TargetVolumeAttributesClassName == target {
		p.Step = Modify
	}
	return p
}

// missing is the plan for a claim whose class does not exist. A change that may be in progress, or that the claim does
// not ask for any more, stays begun until the class exists again: only the class has its parameters.
func missing(f Facts, target string) Plan {
	p := impossible("VolumeAttributesClass " + target + " does not exist")
	if s := f.Claim.Status.ModifyVolumeStatus; s == nil ||
		s.Status == corev1.PersistentVolumeClaimModifyVolumeInfeasible ||
		isBegun(f.Claim) && f.Refused && desiredClass(f.Claim) != "" {
		p.Step = Wait
	}
	return p
}

// cancelled is the plan for a claim that requests nothing any more.
func cancelled(c *corev1.PersistentVolumeClaim) Plan {
	p := nothing(volume.ReasonModifyCanceled, volume.Actor{}, "Cancelled modify.")
	if slices.ContainsFunc(c.Status.Conditions, isModifying) {
		p.Step = Cancel
	}
	return p
}

func nothing(r volume.Reason, next volume.Actor, message string) Plan {
	return Plan{Because: volume.Say(r, next, message)}
}

func impossible(message string) Plan {
	p := nothing(volume.ReasonFailedModify, volume.User(), message)
	p.Event = true
	return p
}

// SecretOf returns the reference to the Secret for the call, or nil.
func SecretOf(v *corev1.PersistentVolume) *corev1.SecretReference {
	name, namespace := v.Annotations[volume.AnnModifySecretName], v.Annotations[volume.AnnModifySecretNamespace]
	if name == "" || namespace == "" {
		return v.Spec.CSI.ControllerExpandSecretRef
	}
	return &corev1.SecretReference{Name: name, Namespace: namespace}
}

// Failure returns why the attributes have not changed; "" if no failure is known.
func Failure(c *corev1.PersistentVolumeClaim) string {
	for _, k := range c.Status.Conditions {
		if k.Type == corev1.PersistentVolumeClaimVolumeModifyVolumeError {
			if k.Reason == "" {
				return k.Message
			}
			return k.Reason + ": " + k.Message
		}
	}
	return ""
}

// IsRefusedForGood says whether the driver has refused the class that the claim names.
func IsRefusedForGood(c *corev1.PersistentVolumeClaim) bool {
	s := c.Status.ModifyVolumeStatus
	return s != nil && s.Status == corev1.PersistentVolumeClaimModifyVolumeInfeasible &&
		s.TargetVolumeAttributesClassName == desiredClass(c)
}

// isBegun says whether the driver may have been called.
func isBegun(c *corev1.PersistentVolumeClaim) bool {
	s := c.Status.ModifyVolumeStatus
	return s != nil && s.Status == corev1.PersistentVolumeClaimModifyVolumeInProgress
}

func isModifying(k corev1.PersistentVolumeClaimCondition) bool {
	return k.Type == corev1.PersistentVolumeClaimVolumeModifyingVolume
}

func desiredClass(c *corev1.PersistentVolumeClaim) string {
	return ptr.Deref(c.Spec.VolumeAttributesClassName, "")
}

func current(c *corev1.PersistentVolumeClaim) string {
	return ptr.Deref(c.Status.CurrentVolumeAttributesClassName, "")
}

// Parameters returns the parameters of ControllerModifyVolume: those of the class, and with metadata the names of the
// claim and of the volume. For the same claim and class they are always the same.
func Parameters(f Facts, metadata bool) map[string]string {
	if !metadata {
		return f.Class.Parameters
	}
	out := map[string]string{
		"csi.storage.k8s.io/pvc/name": f.Claim.Name, "csi.storage.k8s.io/pvc/namespace": f.Claim.Namespace,
		"csi.storage.k8s.io/pv/name": f.Volume.Name,
	}
	maps.Copy(out, f.Class.Parameters)
	return out
}

// ConditionOf returns the condition of a claim's attributes, as far as the claim shows it: existing classes and the
// driver's capabilities are ignored.
func ConditionOf(c *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) volume.Condition {
	f := Facts{Claim: c, Volume: v, Reachable: true, Modifies: true}
	s := c.Status.ModifyVolumeStatus
	if v != nil && v.Spec.CSI != nil && (s == nil || s.Status != corev1.PersistentVolumeClaimModifyVolumePending) {
		f.Class = &storagev1.VolumeAttributesClass{
			ObjectMeta: metav1.ObjectMeta{Name: f.Target()}, DriverName: v.Spec.CSI.Driver,
		}
	}
	p := Claim(f)
	cause := Failure(c)
	if p.Step == Modify && cause != "" {
		return volume.Condition{Because: failed(c, f.Target(), v.Spec.CSI.Driver, volume.AnswerIn(cause)), Stuck: true}
	}
	return volume.Condition{Because: p.Because, Stuck: p.Because.Reason == volume.ReasonFailedModify}
}

// failed is the reason of a call that has failed.
func failed(c *corev1.PersistentVolumeClaim, class, driver string, a volume.Answer) volume.Because {
	return a.Because(volume.ReasonFailedModify, volume.Driver(driver),
		"driver "+driver+" did not give the volume of claim "+c.Name+" the attributes of class "+class+": "+a.Text)
}
