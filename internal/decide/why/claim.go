package why

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/decide/capacity"
	"volplane.dev/volplane/internal/volume"
)

func (f facts) claim() Link {
	subject, c := "pvc/"+f.ClaimName, f.Claim
	if l, ok := f.moved(subject, "", f.Namespace+"/"+f.ClaimName); ok && (c == nil || c.DeletionTimestamp != nil || c.Status.Phase != corev1.ClaimBound) {
		return l
	}
	switch {
	case c == nil:
		return link(subject, Problem, volume.ReasonClaimMissing,
			fmt.Sprintf("there is no claim %s in namespace %s", f.ClaimName, f.Namespace), "user")
	case c.DeletionTimestamp != nil:
		return f.deleting(subject)
	case c.Status.Phase == corev1.ClaimLost && !f.misnamed():
		return link(subject, Problem, volume.ReasonClaimLost,
			fmt.Sprintf("volume %s, which the claim was bound to, is lost", c.Spec.VolumeName), "user")
	}
	request := c.Spec.Resources.Requests[corev1.ResourceStorage]
	modes := make([]string, 0, len(c.Spec.AccessModes))
	for _, m := range c.Spec.AccessModes {
		modes = append(modes, string(m))
	}
	state, reason := "waits for a volume of ", volume.ReasonBinding
	if c.Status.Phase == corev1.ClaimBound {
		state, reason = "asks for ", volume.ReasonBound
	}
	return link(subject, OK, reason, state+request.String()+", "+strings.Join(modes, ", "), "")
}

// misnamed says that claim and volume name each other, the volume by another uid.
func (f facts) misnamed() bool {
	return f.Volume != nil && bind.Together(f.Claim, f.Volume) && !f.isClaim(f.Volume.Spec.ClaimRef)
}

// deleting says which finalizer of the claim waits for whom.
func (f facts) deleting(subject string) Link {
	terminating := func(message, next string) Link {
		return link(subject, Waiting, volume.ReasonTerminating, "the claim is being deleted; "+message, next)
	}
	for _, finalizer := range f.Claim.Finalizers {
		if finalizer == volume.FinalizerCloning {
			return terminating("it stays until no copy of it is being made ("+finalizer+")", "provisioner")
		}
		if finalizer != volume.FinalizerClaimProtection {
			continue
		}
		if users := f.users(); len(users) > 0 {
			return terminating("it stays until no Pod uses it: "+podNames(users)+" ("+finalizer+")", "pod "+users[0].Name)
		}
		return terminating("no Pod uses it any more ("+finalizer+")", "protection")
	}
	if len(f.Claim.Finalizers) > 0 {
		return terminating("finalizer "+f.Claim.Finalizers[0]+" is held by somebody else", "owner of "+f.Claim.Finalizers[0])
	}
	return terminating("nothing holds it", "api server")
}

func podNames(pods []*corev1.Pod) string {
	var names []string
	for _, p := range pods {
		name := "pod " + p.Name
		if p.Spec.NodeName != "" {
			name += " on node " + p.Spec.NodeName
		}
		if dir := p.Annotations[volume.AnnMountAt]; dir != "" {
			name += " at " + dir
		}
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}

func (f facts) class() Link {
	name, named := bind.ClassOf(f.Claim)
	subject := "storageclass/" + name
	bound := f.Claim.Status.Phase == corev1.ClaimBound
	switch {
	case bound && f.Class == nil:
		return link(orNone(subject, name), OK, volume.ReasonNothingToDo, "a bound claim does not need its class", "")
	case !named && f.DefaultClass == "":
		return link(orNone(subject, name), Problem, volume.ReasonProvisioningFailed,
			"the claim names no class, and no StorageClass is marked as default", "user")
	case !named:
		return link("storageclass/"+f.DefaultClass, Waiting, volume.ReasonDefaultClassAssigned,
			"the claim names no class; the default one will be assigned", "binder")
	case name == "":
		return link(orNone(subject, name), OK, volume.ReasonNothingToDo, "the claim wants no class: only volumes made by hand fit", "")
	case f.Class == nil:
		return link(subject, Problem, volume.ReasonProvisioningFailed,
			fmt.Sprintf("there is no StorageClass %s", name), "user")
	case f.Class.Provisioner == volume.NoProvisioner:
		return link(subject, OK, volume.ReasonNothingToDo, "volumes of this class are made by hand", "")
	case !bound && !f.registered(f.Class.Provisioner, ""):
		return link(subject, Problem, volume.ReasonDriverMissing,
			fmt.Sprintf("driver %s is not registered on any node", f.Class.Provisioner), f.Class.Provisioner)
	}
	return link(subject, OK, volume.ReasonNothingToDo, "driver "+f.Class.Provisioner, "")
}

func orNone(subject, name string) string {
	if name == "" {
		return "storageclass/<none>"
	}
	return subject
}

// binding tells of the claim's volume.
func (f facts) binding() Link {
	c := f.Claim
	subject := "pv/" + c.Spec.VolumeName
	switch {
	case c.Spec.VolumeName == "":
		return f.unbound()
	case f.Volume == nil && c.Status.Phase == corev1.ClaimBound:
		return link(subject, Problem, volume.ReasonClaimLost, "the claim is bound to volume "+c.Spec.VolumeName+", which does not exist", "user")
	case f.Volume == nil:
		return link(subject, Waiting, volume.ReasonVolumeMissing, "the claim asks for volume "+c.Spec.VolumeName+", which does not exist", "user")
	case f.misnamed():
		return Link{Subject: subject, State: Problem, Because: bind.UIDMismatch(c, f.Volume)}
	case f.Volume.Spec.ClaimRef != nil && !f.isClaim(f.Volume.Spec.ClaimRef):
		ref := f.Volume.Spec.ClaimRef
		return link(subject, Problem, volume.ReasonClaimMisbound,
			fmt.Sprintf("volume %s belongs to claim %s/%s", f.Volume.Name, ref.Namespace, ref.Name), "user")
	case f.Volume.DeletionTimestamp != nil:
		return link(subject, Waiting, volume.ReasonTerminating, "volume "+f.Volume.Name+" is being deleted and stays while the claim is bound to it", "user")
	case c.Status.Phase != corev1.ClaimBound:
		return f.unfinished(subject)
	}
	capacity := f.Volume.Spec.Capacity[corev1.ResourceStorage]
	return link(subject, OK, volume.ReasonBound, capacity.String()+" of "+f.maker(), "")
}

// maker names the driver of the volume.
func (f facts) maker() string {
	if s, ok := sourceOf(f.Volume); ok {
		return s.String()
	}
	return "no driver"
}

func (f facts) unfinished(subject string) Link {
	if l, ok := f.failed(subject, f.Claim, volume.ReasonVolumeMismatch, "user"); ok {
		return l
	}
	return link(subject, Waiting, volume.ReasonBinding, "claim and volume are being bound", "binder")
}

func (f facts) isClaim(r *corev1.ObjectReference) bool {
	return r.Namespace == f.Claim.Namespace && r.Name == f.Claim.Name && (r.UID == "" || r.UID == f.Claim.UID)
}

// unbound tells what a claim without a volume waits for.
func (f facts) unbound() Link {
	const subject = "pv/<none>"
	name, named := bind.ClassOf(f.Claim)
	if f.Class == nil && (name != "" || !named) {
		return link(subject, Waiting, volume.ReasonBinding, "no volume is made without a class", "")
	}
	if f.Claim.Annotations[volume.AnnSelectedNode] == "" && bind.BindsLate(f.Class) {
		return f.consumerless(subject)
	}
	if f.Class == nil || f.Class.Provisioner == volume.NoProvisioner {
		return link(subject, Waiting, volume.ReasonFailedBinding,
			"no volume that was made by hand fits the claim, and none is made by itself", "user")
	}
	driver := f.Class.Provisioner
	if l, ok := f.failed(subject, f.Claim, volume.ReasonProvisioningFailed, driver); ok {
		return l
	}
	if f.Making[f.Claim.UID] {
		return link(subject, Waiting, volume.ReasonProvisioning, "driver "+driver+" is making the volume"+f.making(), driver)
	}
	if e := f.warning(f.Claim, volume.ReasonDriverBusy); e != nil {
		return link(subject, Waiting, volume.ReasonDriverBusy, e.Message, driver)
	}
	if f.MakingHidden {
		return link(subject, Waiting, volume.ReasonExternalProvisioning, "the provisioner has not asked driver "+driver+
			" yet, or the driver is making the volume: who may list the ConfigMaps of all namespaces is told which", "provisioner")
	}
	return link(subject, Waiting, volume.ReasonExternalProvisioning, "the provisioner has not asked driver "+driver+" yet", "provisioner")
}

// consumerless tells which consumer a late-binding claim waits for.
func (f facts) consumerless(subject string) Link {
	users := f.told()
	if len(users) == 0 {
		return link(subject, Waiting, volume.ReasonWaitForFirstConsumer,
			fmt.Sprintf("class %s binds when the first Pod uses the claim, and none does", f.Class.Name), "user")
	}
	p := users[0]
	if m, bad := unplaced(p); bad {
		if short, unknown := capacity.Short(m); short {
			return f.roomless(subject, p, m, unknown)
		}
		return link(subject, Problem, volume.ReasonWaitForPodScheduled, "pod "+p.Name+" finds no node: "+m, "user")
	}
	if p.Spec.NodeName != "" {
		return link(subject, Waiting, volume.ReasonWaitForPodScheduled,
			"the node of pod "+p.Name+" has to be written on the claim", "binder")
	}
	return link(subject, Waiting, volume.ReasonWaitForPodScheduled, "pod "+p.Name+" has no node yet", "placement")
}

// roomless tells of a Pod for which no node had room. If nothing is known of
// the room, the driver may have said why.
func (f facts) roomless(subject string, p *corev1.Pod, message string, unknown bool) Link {
	message = "pod " + p.Name + " finds no node: " + message
	if !unknown {
		return link(subject, Problem, volume.ReasonNotEnoughStorage, message, "user")
	}
	next := f.Class.Provisioner
	if e := f.warning(f.Class, volume.ReasonCapacityUnknown); e != nil {
		message, next = message+"; "+e.Message, volume.NextAfter(e.Message, next)
	}
	return link(subject, Problem, volume.ReasonCapacityUnknown, message, next)
}

// unplaced returns why placement found no node for the Pod.
func unplaced(p *corev1.Pod) (string, bool) {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return orText(c.Message, c.Reason), true
		}
	}
	return "", false
}

func orText(s, other string) string {
	if s == "" {
		return other
	}
	return s
}
