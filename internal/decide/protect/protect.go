package protect

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/ephemeral"
	"volplane.dev/volplane/internal/volume"
)

// object is an object that can be protected.
type object[T any] interface {
	metav1.Object
	DeepCopy() T
}

// protect returns the object to write, or its zero value: one without the finalizer gets it, and one that is being
// deleted loses it when it is unused. used returns why it is in use, or a zero reason.
func protect[T object[T]](o T, name, finalizer string, used func() volume.Because, unused string) (T, volume.Because) {
	var none T
	protected := slices.Contains(o.GetFinalizers(), finalizer)
	next := o.DeepCopy()
	switch {
	case o.GetDeletionTimestamp() == nil && !protected:
		next.SetFinalizers(append(next.GetFinalizers(), finalizer))
		return next, volume.Say(volume.ReasonProtecting, volume.Actor{}, name+" has no protection yet")
	case o.GetDeletionTimestamp() == nil:
		return none, volume.Say(volume.ReasonNothingToDo, volume.Actor{}, name+" is not being deleted")
	case !protected:
		return none, volume.Say(volume.ReasonNothingToDo, volume.Actor{}, name+" is no longer protected")
	}
	if b := used(); b.Reason != "" {
		return none, b
	}
	next.SetFinalizers(volume.Without(next.GetFinalizers(), finalizer))
	return next, volume.Say(volume.ReasonNotInUse, volume.Controller("protection"), name+" "+unused)
}

// Claim returns the claim to write, or nil. A claim without the finalizer gets it: the admission of
// another API server may not have added it. A claim that is being deleted loses the finalizer,
// unless one of the Pods that name the claim uses it. A Pod uses its claims from the time when it
// has a node until its object is deleted: the volumes of a finished Pod may still be mounted.
func Claim(claim *corev1.PersistentVolumeClaim, users []*corev1.Pod) (*corev1.PersistentVolumeClaim, volume.Because) {
	return protect(claim, "claim "+claim.Name, volume.FinalizerClaimProtection, func() (b volume.Because) {
		// A Pod does not use the ephemeral claim of an earlier Pod with the same name.
		users := slices.DeleteFunc(slices.Clone(users),
			func(p *corev1.Pod) bool { return p.Spec.NodeName == "" || ephemeral.Stranger(p, claim) })
		if len(users) > 0 {
			b = volume.Say(volume.ReasonInUse, volume.PodActor(users[0].Name),
				"claim "+claim.Name+" is used by "+names(users))
		}
		return b
	}, "is not used by any pod")
}

// AttributesClass returns the VolumeAttributesClass to write, or nil. A class without the finalizer gets it. A class
// that is being deleted loses it, unless a claim or a volume names it: a modification towards it needs its parameters.
func AttributesClass(
	class *storagev1.VolumeAttributesClass, claims []*corev1.PersistentVolumeClaim, volumes []*corev1.PersistentVolume,
) (*storagev1.VolumeAttributesClass, volume.Because) {
	name := "class " + class.Name
	return protect(class, name, volume.FinalizerAttributesProtection, func() (b volume.Because) {
		switch {
		case len(claims) > 0:
			b = volume.Say(volume.ReasonInUse, volume.User(),
				name+" is named by claim "+claims[0].Namespace+"/"+claims[0].Name)
		case len(volumes) > 0:
			b = volume.Say(volume.ReasonInUse, volume.User(), name+" is named by volume "+volumes[0].Name)
		}
		return b
	}, "is no longer named")
}

// Volume returns the volume to write, or nil. A volume without the finalizer gets it. A volume that
// is being deleted loses it, unless the volume is bound to a claim.
func Volume(v *corev1.PersistentVolume) (*corev1.PersistentVolume, volume.Because) {
	name := "volume " + v.Name
	return protect(v, name, volume.FinalizerVolumeProtection, func() (b volume.Because) {
		switch {
		case v.Status.Phase == corev1.VolumeBound:
			b = volume.Say(volume.ReasonInUse, volume.User(), name+" is bound to a claim")
		case slices.Contains(v.Finalizers, volume.FinalizerProvisioner):
			// The provisioner removes both finalizers in one write; a second writer would only conflict.
			b = volume.Say(volume.ReasonDeleting, volume.Controller("provisioner"), name+" is kept by its provisioner")
		}
		return b
	}, "is not bound")
}

// Owners maps each finalizer of a known owner to a function that returns why the owner keeps it.
type Owners map[string]func() volume.Because

// Kept returns why an object that is being deleted still exists: because of the first of its finalizers that has a
// known owner, otherwise because of all of them.
func Kept(what string, o metav1.Object, owners Owners) volume.Condition {
	terminating := func(next volume.Actor, message string) volume.Condition {
		return volume.Condition{Because: volume.Say(volume.ReasonTerminating, next, what+" is being deleted; "+message)}
	}
	all := o.GetFinalizers()
	if i := slices.IndexFunc(all, func(f string) bool { return owners[f] != nil }); i >= 0 {
		b := owners[all[i]]()
		return terminating(cmp.Or(b.Next, volume.OwnerOf(all[i])), b.Message+" ("+all[i]+")")
	}
	switch len(all) {
	case 0:
		return terminating(volume.APIServer(), "nothing holds it")
	case 1:
		return terminating(volume.OwnerOf(all[0]), "finalizer "+all[0]+" belongs to another program")
	}
	return terminating(volume.OwnerOf(all[0]), "finalizers "+strings.Join(all, ", ")+" belong to other programs")
}

// names returns the names of Pods with their nodes and with host paths of mounts.
func names(pods []*corev1.Pod) string {
	all := make([]string, 0, len(pods))
	for _, p := range pods {
		name := "pod " + p.Name + " on node " + p.Spec.NodeName
		if dir := volume.AskedPath(p.Annotations); dir != "" {
			name += " at " + dir
		}
		all = append(all, name)
	}
	return strings.Join(all, ", ")
}

// Unused returns the condition Unused that a bound claim should get, or nil if it has the right one. Unlike for the
// finalizer, a Pod also counts before it has a node, but not after it has finished: the condition shows admins since
// when no Pod has used the volume. Its wording is that of Kubernetes (gate PersistentVolumeClaimUnusedSinceTime).
func Unused(
	claim *corev1.PersistentVolumeClaim, users []*corev1.Pod, now metav1.Time,
) *corev1.PersistentVolumeClaimCondition {
	if claim.Status.Phase != corev1.ClaimBound || claim.DeletionTimestamp != nil {
		return nil
	}
	next := &corev1.PersistentVolumeClaimCondition{
		Type: corev1.PersistentVolumeClaimUnused, Status: corev1.ConditionTrue, LastTransitionTime: now,
		Reason: "NoPodsUsingPVC", Message: "No pods are currently referencing this PVC",
	}
	if slices.ContainsFunc(users, func(p *corev1.Pod) bool {
		return !cluster.Finished(p) && !ephemeral.Stranger(p, claim)
	}) {
		next.Status, next.Reason = corev1.ConditionFalse, "PodUsingPVC"
		next.Message = "A pod is currently referencing this PVC"
	}
	if slices.ContainsFunc(claim.Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
		return c.Type == next.Type && c.Status == next.Status
	}) {
		return nil
	}
	return next
}
