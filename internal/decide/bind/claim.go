package bind

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/volume"
)

// ClaimFacts is what the decision about one claim depends on.
type ClaimFacts struct {
	Claim *corev1.PersistentVolumeClaim
	// Volume is the volume that spec.volumeName names; nil if it does not exist.
	Volume *corev1.PersistentVolume
	// Candidates are the volumes from which Match chooses. Volumes that do not fit do no harm.
	Candidates []*corev1.PersistentVolume
	// Class is the claim's class; nil if the claim names none or it does not exist.
	Class *storagev1.StorageClass
	// Default is the default class, or nil.
	Default *storagev1.StorageClass
	// Consumers are the names of the Pods that use the claim and have no node.
	Consumers []string
	// Assigned are the names of the Pods that use the claim and have a node.
	Assigned []string
	// Served says whether a provisioner in this process creates the volumes of the class.
	Served bool
}

// Claim decides about one claim.
func Claim(f ClaimFacts) Plan {
	switch {
	case f.Claim.Annotations[volume.AnnBindCompleted] != "":
		return boundClaim(f)
	case f.Claim.Spec.VolumeName != "":
		return namedVolume(f)
	default:
		return unboundClaim(f)
	}
}

func unboundClaim(f ClaimFacts) Plan {
	class, named := ClassOf(f.Claim)
	late := BindsLate(f.Class)
	if v := Match(f.Claim, f.Candidates, late); v != nil {
		return Link(f.Claim, v)
	}
	switch {
	case !named && f.Default != nil:
		c := f.Claim.DeepCopy()
		c.Spec.StorageClassName = &f.Default.Name
		return wait(volume.ReasonDefaultClassAssigned, Normal, volume.Controller("binder"),
			"the default class "+f.Default.Name+" is assigned",
			Write{Claim: c})
	case class == "":
		message := "no persistent volumes available for this claim and no storage class is set"
		if !named {
			message += ": no StorageClass is marked as the default one"
		}
		return wait(volume.ReasonFailedBinding, Normal, volume.User(), message, pending(f.Claim)...)
	case f.Class == nil:
		return wait(volume.ReasonProvisioningFailed, Warning, volume.User(),
			fmt.Sprintf("storageclass.storage.k8s.io %q not found", class), pending(f.Claim)...)
	case late && volume.SelectedNode(f.Claim.Annotations) == "":
		return waitForConsumer(f)
	case f.Class.Provisioner == volume.NoProvisioner:
		return wait(volume.ReasonFailedBinding, Normal, volume.User(),
			"no volume of class "+class+" fits, and the class does not provision any", pending(f.Claim)...)
	default:
		return askProvisioner(f)
	}
}

func waitForConsumer(f ClaimFacts) Plan {
	switch {
	case len(f.Consumers) > 0:
		return wait(volume.ReasonWaitForPodScheduled, Lasting, volume.Controller("placement"),
			"waiting for pod "+f.Consumers[0]+" to be scheduled", pending(f.Claim)...)
	case len(f.Assigned) > 0:
		// The Pod got its node without a scheduler, which would have written the node on the claim.
		return wait(volume.ReasonWaitForPodScheduled, Lasting, volume.Controller("placement"),
			"waiting for the node of pod "+f.Assigned[0]+" to be written on the claim", pending(f.Claim)...)
	}
	return wait(volume.ReasonWaitForFirstConsumer, Lasting, volume.User(),
		"waiting for first consumer to be created before binding", pending(f.Claim)...)
}

// askProvisioner requests a volume: from a provisioner in this process with Ask, from others with the annotation
// storage-provisioner, in both spellings.
func askProvisioner(f ClaimFacts) Plan {
	name := f.Class.Provisioner
	p := wait(volume.ReasonExternalProvisioning, Normal, volume.Driver(name),
		"waiting for a volume to be created by the external provisioner '"+name+"'")
	claim := f.Claim
	if f.Served {
		p.Ask, p.Event = name, Silent
	} else if c := requested(claim, name); c != nil {
		// The write of the status must have the annotations, too: it replaces the metadata.
		claim, p.Writes = c, []Write{{Claim: c}}
	}
	p.Writes = append(p.Writes, pending(claim)...)
	return p
}

// requested returns the claim with the annotations that name its provisioner; nil if it has them.
func requested(claim *corev1.PersistentVolumeClaim, name string) *corev1.PersistentVolumeClaim {
	if claim.Annotations[volume.AnnStorageProvisioner] == name &&
		claim.Annotations[volume.AnnBetaStorageProvisioner] == name {
		return nil
	}
	c := claim.DeepCopy()
	annotate(&c.Annotations, volume.AnnStorageProvisioner, name)
	annotate(&c.Annotations, volume.AnnBetaStorageProvisioner, name)
	return c
}

// namedVolume decides about a claim that names a volume and was not bound before. Either its user
// or an unfinished bind has written the name.
func namedVolume(f ClaimFacts) Plan {
	switch {
	case f.Volume == nil:
		return wait(volume.ReasonVolumeMissing, Normal, volume.User(), "volume "+f.Claim.Spec.VolumeName+" does not exist",
			pending(f.Claim)...)
	case f.Volume.Spec.ClaimRef == nil:
		if why := Mismatch(f.Claim, f.Volume); why != "" {
			return wait(volume.ReasonVolumeMismatch, Warning, volume.User(), "volume "+f.Volume.Name+" cannot be bound: "+why,
				pending(f.Claim)...)
		}
		return Link(f.Claim, f.Volume)
	case RefersTo(f.Volume.Spec.ClaimRef, f.Claim):
		return Link(f.Claim, f.Volume)
	default:
		ref := f.Volume.Spec.ClaimRef
		return wait(volume.ReasonFailedBinding, Warning, volume.User(),
			fmt.Sprintf("volume %s already bound to a different claim: %s/%s", f.Volume.Name, ref.Namespace, ref.Name),
			pending(f.Claim)...)
	}
}

// whereData says how to find out whether the data of a volume are lost as well: after its PersistentVolume, only the
// driver knows the volume.
const whereData = "; its data are lost unless the driver still has the volume: check with `volplane orphans`"

func boundClaim(f ClaimFacts) Plan {
	v := f.Volume
	switch {
	case f.Claim.Spec.VolumeName == "":
		return wait(volume.ReasonClaimLost, Warning, volume.User(),
			"bound claim has lost reference to its volume"+whereData, phase(f.Claim, corev1.ClaimLost)...)
	case v == nil:
		return wait(volume.ReasonClaimLost, Warning, volume.User(),
			"bound claim has lost its volume "+f.Claim.Spec.VolumeName+whereData,
			phase(f.Claim, corev1.ClaimLost)...)
	case v.Spec.ClaimRef == nil, v.Spec.ClaimRef.UID == f.Claim.UID:
		return Link(f.Claim, v)
	case Together(f.Claim, v):
		return Plan{Because: UIDMismatch(f.Claim, v), Event: Warning, Writes: phase(f.Claim, corev1.ClaimLost)}
	case f.Claim.Name == volume.PrefixPopulating+string(v.Spec.ClaimRef.UID):
		// Its populator waits for the phase Lost before it deletes the claim.
		return wait(volume.ReasonClaimMisbound, Normal, volume.Populator(""), "the populator has filled volume "+v.Name+
			" for claim "+v.Spec.ClaimRef.Namespace+"/"+v.Spec.ClaimRef.Name+", and deletes this claim",
			phase(f.Claim, corev1.ClaimLost)...)
	default:
		return wait(volume.ReasonClaimMisbound, Warning, volume.User(),
			"two claims are bound to volume "+v.Name+", this one is bound incorrectly", phase(f.Claim, corev1.ClaimLost)...)
	}
}

func annotate(to *map[string]string, key, value string) {
	if *to == nil {
		*to = map[string]string{}
	}
	(*to)[key] = value
}
