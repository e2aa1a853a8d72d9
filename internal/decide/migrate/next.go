package migrate

import (
	"cmp"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/volume"
)

// Step is the decision of Next.
type Step struct {
	Verb Verb
	// Journal is the journal for Save.
	Journal *Journal
	// Policy is the reclaim policy for Keep and Policy.
	Policy corev1.PersistentVolumeReclaimPolicy
	// Volume and Claim are the objects for CreateVolume and CreateClaim.
	Volume  *corev1.PersistentVolume
	Claim   *corev1.PersistentVolumeClaim
	Because volume.Because
}

// Next returns the next step for one volume.
func Next(f Facts) Step {
	if f.Journal == nil {
		return firstStep(f)
	}
	if f.Journal.Done {
		if f.Volume != nil && f.foreignObject() == "" && f.hasNewSource() {
			return f.step(Nothing, volume.ReasonMigrated, volume.Actor{},
				"volume %s was moved to driver %s", f.Name, driverOf(f.Volume))
		}
		// The volume of that journal has reached its end; this is another one.
		return firstStep(f)
	}
	if foreign := cmp.Or(f.foreignObject(), f.otherClaim(f.Journal.Back)); foreign != "" {
		return f.refuse(volume.User(), "%s", foreign)
	}
	if f.Volume != nil && f.hasNewSource() {
		return f.complete()
	}
	return f.deleteOld()
}

// Turn returns the first step in the direction opposite to the journal's; back is the direction if
// there is no journal.
func Turn(f Facts, back bool) Step {
	switch {
	case f.Journal == nil && f.Volume != nil && f.Volume.Spec.FlexVolume != nil:
		return f.step(Nothing, volume.ReasonNothingToDo, volume.Actor{}, "volume %s is a FlexVolume", f.Name)
	case f.Journal == nil:
		return f.refuse(volume.User(), "nothing is saved about volume %s: it was not moved from here", f.Name)
	case f.Journal.Done && f.Volume == nil:
		return f.refuse(volume.User(), "volume %s was deleted since it was moved: there is nothing to undo", f.Name)
	}
	if foreign := cmp.Or(f.foreignObject(), f.otherClaim(back)); foreign != "" {
		return f.refuse(volume.User(), "%s", foreign)
	}
	if s, _ := f.busy(); s.Verb == Refuse {
		return s
	}
	s := f.step(Save, volume.ReasonMigrating, volume.Actor{}, "turn back: volume %s becomes a FlexVolume again", f.Name)
	if !back {
		s = f.step(Save, volume.ReasonMigrating, volume.Actor{}, "turn again: volume %s goes to the bridge", f.Name)
	}
	s.Journal = &Journal{Volume: f.Journal.Volume, Claim: f.Journal.Claim, Back: back}
	return s
}

// firstStep decides about a volume that was not changed yet.
func firstStep(f Facts) Step {
	pv := f.Volume
	switch {
	case pv == nil:
		return f.refuse(volume.User(), "volume %s does not exist", f.Name)
	case pv.Spec.FlexVolume == nil:
		return f.refuse(volume.Actor{}, "volume %s is not a FlexVolume", f.Name)
	case pv.DeletionTimestamp != nil:
		return f.refuse(volume.Actor{}, "volume %s is being deleted", f.Name)
	}
	target, _, err := Target(pv, nil)
	if err != nil {
		return f.refuse(volume.User(), "the bridge cannot serve it: %v", err)
	}
	if !f.Served {
		return f.refuse(volume.User(), "no CSIDriver %s: run 'volplane flex bridge' on every node that may use volume %s",
			target.Spec.CSI.Driver, f.Name)
	}
	if pv.Spec.ClaimRef != nil {
		if why := claimProblem(pv, f.Claim); why != "" {
			return f.refuse(volume.User(), "%s", why)
		}
	}
	if s, busy := f.busy(); busy {
		return s
	}
	s := f.step(Save, volume.ReasonMigrating, volume.Actor{}, "save volume %s and its claim", f.Name)
	s.Journal = &Journal{Volume: pv, Claim: f.Claim}
	return s
}

// claimProblem returns why a volume's claim cannot be created again, or "".
func claimProblem(pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) string {
	ref := pv.Spec.ClaimRef
	named := ref.Namespace + "/" + ref.Name
	switch {
	case claim == nil || ref.UID != "" && ref.UID != claim.UID:
		return fmt.Sprintf("volume %s was released by claim %s, which is gone: delete the volume, or remove its claimRef",
			pv.Name, named)
	case claim.DeletionTimestamp != nil:
		return fmt.Sprintf("claim %s is being deleted", named)
	case claim.Spec.VolumeName != pv.Name:
		return fmt.Sprintf("claim %s is not bound to volume %s yet", named, pv.Name)
	}
	return ""
}

// busy refuses a volume that is in use.
func (f Facts) busy() (Step, bool) {
	switch {
	case len(f.Pods) > 0:
		return f.refuse(volume.User(), "volume %s is used by pod %s: scale its owner "+
			"to 0 first", f.Name, strings.Join(f.Pods, ", ")), true
	case len(f.Nodes) > 0:
		return f.wait(nodes(f.Nodes), "volume %s is still attached to %s", f.Name, nodes(f.Nodes)), true
	}
	return Step{}, false
}

// foreignObject describes an object that is neither the saved one nor its replacement; "" if there is
// none.
func (f Facts) foreignObject() string {
	saved := f.Journal
	if pv := f.Volume; pv != nil {
		flexible := pv.Spec.FlexVolume != nil && pv.Spec.FlexVolume.Driver == saved.Volume.Spec.FlexVolume.Driver
		ours := pv.Annotations[volume.AnnMigratedFrom] == string(saved.Volume.UID)
		if !ours && (!flexible || pv.UID != saved.Volume.UID) {
			return fmt.Sprintf("volume %s is not the one that was saved: another user has created it again", f.Name)
		}
	}
	if c := f.Claim; c != nil && c.Spec.VolumeName != f.Name && c.UID != f.savedClaimUID() {
		return fmt.Sprintf("claim %s/%s was created again by another user and is not for volume %s: delete it, then run "+
			"again",
			c.Namespace, c.Name, f.Name)
	}
	return ""
}

// otherClaim describes a claim other than the saved one that has been bound to the volume since: it could be in use,
// and would lose its volume. A volume that had no claim, and already has the right source, may have any.
func (f Facts) otherClaim(back bool) string {
	if f.Volume == nil || f.Volume.Spec.ClaimRef == nil {
		return ""
	}
	now, saved := f.Volume.Spec.ClaimRef, f.Journal.Volume.Spec.ClaimRef
	switch {
	case saved == nil && back == (f.Volume.Spec.FlexVolume != nil):
		return ""
	case saved != nil && now.Namespace == saved.Namespace && now.Name == saved.Name:
		return ""
	}
	return fmt.Sprintf("claim %s/%s now has volume %s, which it did not have when it was saved", now.Namespace,
		now.Name, f.Name)
}

func (f Facts) savedClaimUID() types.UID {
	if f.Journal.Claim != nil {
		return f.Journal.Claim.UID
	}
	return ""
}

// hasNewSource says whether the volume has its new source.
func (f Facts) hasNewSource() bool {
	return f.Journal.Back == (f.Volume.Spec.FlexVolume != nil)
}

// deleteOld deletes the objects with the old source, the claim first: a claim whose volume is deleted
// first becomes Lost.
func (f Facts) deleteOld() Step {
	pv, claim := f.Volume, f.Claim
	switch {
	case pv != nil && pv.DeletionTimestamp == nil &&
		pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain:
		s := f.step(Keep, volume.ReasonMigrating, volume.Actor{}, "have volume %s outlive its claim", f.Name)
		s.Policy = corev1.PersistentVolumeReclaimRetain
		return s
	case claim != nil && claim.DeletionTimestamp != nil:
		return f.waitClaimDeleted()
	case claim != nil:
		if s, busy := f.busy(); busy {
			return s
		}
		return f.step(DeleteClaim, volume.ReasonMigrating, volume.Actor{}, "delete claim %s/%s, which is saved",
			claim.Namespace, claim.Name)
	case pv == nil:
		return f.create()
	case pv.DeletionTimestamp != nil:
		return f.waitVolumeDeleted()
	case len(f.Nodes) > 0:
		return f.wait(nodes(f.Nodes), "volume %s is still attached to %s", f.Name, nodes(f.Nodes))
	}
	return f.step(DeleteVolume, volume.ReasonMigrating, volume.Actor{},
		"delete the object of volume %s, which is saved; its data stays", f.Name)
}

// waitVolumeDeleted waits for the deletion of a volume.
func (f Facts) waitVolumeDeleted() Step {
	return f.wait(volume.Controller("protection"), "volume %s is deleted when its finalizers are removed: %s", f.Name,
		strings.Join(f.Volume.Finalizers, ", "))
}

// create creates the volume with its new source.
func (f Facts) create() Step {
	pv, err := f.Journal.target()
	if err != nil {
		return f.refuse(volume.User(), "volume %s cannot be served by the bridge: %v", f.Name, err)
	}
	s := f.step(CreateVolume, volume.ReasonMigrating, volume.Actor{}, "create volume %s for driver %s", f.Name,
		driverOf(pv))
	s.Volume = pv
	return s
}

// complete finishes everything else after the volume has its new source.
func (f Facts) complete() Step {
	pv, saved := f.Volume, f.Journal
	if s, dying := f.newIsDeleted(); dying {
		return s
	}
	if saved.Claim != nil && f.Claim == nil {
		return f.createClaim()
	}
	switch {
	case f.Claim != nil && (f.Claim.Status.Phase != corev1.ClaimBound || pv.Status.Phase != corev1.VolumeBound):
		return f.wait(volume.Controller("binder"),
			"claim %s/%s and volume %s are about to be bound", f.Claim.Namespace, f.Claim.Name, f.Name)
	case pv.Spec.PersistentVolumeReclaimPolicy != saved.Volume.Spec.PersistentVolumeReclaimPolicy:
		s := f.step(Policy, volume.ReasonMigrating, volume.Actor{}, "give volume %s its reclaim policy %s back", f.Name,
			saved.Volume.Spec.PersistentVolumeReclaimPolicy)
		s.Policy = saved.Volume.Spec.PersistentVolumeReclaimPolicy
		return s
	case saved.Back:
		return f.step(Finish, volume.ReasonMigrationUndone, volume.Actor{}, "volume %s is a FlexVolume of driver %s again",
			f.Name, driverOf(pv))
	}
	return f.step(Finish, volume.ReasonMigrated, volume.Actor{}, "volume %s was moved to driver %s", f.Name, driverOf(pv))
}

// newIsDeleted decides about a new object that is being deleted, because the direction was changed or by
// another program.
func (f Facts) newIsDeleted() (Step, bool) {
	claim := f.Claim
	alive := claim != nil && claim.DeletionTimestamp == nil
	switch {
	case f.Volume.DeletionTimestamp != nil && alive:
		return f.refuse(volume.User(), "volume %s is being deleted by another user, and claim "+
			"%s/%s uses it", f.Name, claim.Namespace, claim.Name), true
	case f.Volume.DeletionTimestamp != nil:
		return f.waitVolumeDeleted(), true
	case claim != nil && !alive:
		return f.waitClaimDeleted(), true
	}
	return Step{}, false
}

// createClaim creates the claim again. Before that, the volume's reference must not have the UID of
// the deleted one.
func (f Facts) createClaim() Step {
	claim := f.Journal.Claim
	if ref := f.Volume.Spec.ClaimRef; ref != nil && ref.UID != "" {
		return f.step(Reserve, volume.ReasonMigrating, volume.Actor{}, "keep volume %s for a new claim %s/%s", f.Name,
			claim.Namespace, claim.Name)
	}
	s := f.step(CreateClaim, volume.ReasonMigrating, volume.Actor{}, "recreate claim %s/%s", claim.Namespace, claim.Name)
	s.Claim = replacementClaim(claim, f.Name)
	return s
}

// waitClaimDeleted waits for the deletion of a claim.
func (f Facts) waitClaimDeleted() Step {
	return f.wait(usersOf(f.Pods), "claim %s/%s is deleted when no Pod uses it%s", f.Claim.Namespace, f.Claim.Name,
		used(f.Pods))
}

func (f Facts) step(v Verb, r volume.Reason, next volume.Actor, format string, args ...any) Step {
	return Step{Verb: v, Because: volume.Sayf(r, next, format, args...)}
}

func (f Facts) refuse(next volume.Actor, format string, args ...any) Step {
	return f.step(Refuse, volume.ReasonMigrationRefused, next, format, args...)
}

func (f Facts) wait(next volume.Actor, format string, args ...any) Step {
	return f.step(Wait, volume.ReasonMigrationWaits, next, format, args...)
}

// nodes returns the agents of several nodes as one actor, which has the names of all.
func nodes(names []string) volume.Actor { return volume.NodeAgent(strings.Join(names, ", ")) }

func used(pods []string) string {
	if len(pods) == 0 {
		return ""
	}
	return ": pod " + strings.Join(pods, ", ")
}

// usersOf names the Pods that must end before a claim can be deleted.
func usersOf(pods []string) volume.Actor {
	if len(pods) == 0 {
		return volume.Controller("protection")
	}
	return volume.User()
}

func driverOf(pv *corev1.PersistentVolume) string {
	switch {
	case pv.Spec.CSI != nil:
		return pv.Spec.CSI.Driver
	case pv.Spec.FlexVolume != nil:
		return pv.Spec.FlexVolume.Driver
	}
	return "<none>"
}

// Unfinished reports a volume whose move, or move back, has begun and is not finished.
func Unfinished(name string, back bool) volume.Because {
	message := "volume " + name + " is being moved to the bridge, which is not finished: `volplane flex migrate run " +
		name + "` continues, `volplane flex migrate undo " + name + "` turns round"
	if back {
		message = "volume " + name + " is being moved back from the bridge, which is not finished: `volplane flex " +
			"migrate undo " + name + "` goes on"
	}
	return volume.Say(volume.ReasonMigrating, volume.User(), message)
}

// Journal is saved before the first change. It suffices to continue or undo an interrupted move.
type Journal struct {
	// Volume and Claim are the objects before the move. Claim is nil if the volume had none.
	Volume *corev1.PersistentVolume      `json:"volume"`
	Claim  *corev1.PersistentVolumeClaim `json:"claim,omitempty"`
	// Back says that the volume is being moved back.
	Back bool `json:"back,omitempty"`
	// Done says that the last step was done.
	Done bool `json:"done,omitempty"`
}

// Facts are the facts for a decision about one volume. Objects must be complete and fresh from the API server, because
// they are saved and created again.
type Facts struct {
	// Name is the name of the volume.
	Name string
	// Journal is nil if the move was not begun.
	Journal *Journal
	// Volume is the PersistentVolume with the name, or nil. Claim is the claim that it refers to, otherwise the saved
	// volume.
	Volume *corev1.PersistentVolume
	Claim  *corev1.PersistentVolumeClaim
	// Pods are the names of the Pods that use the claim and have not ended.
	Pods []string
	// Nodes are the names of the nodes that the volume is attached to, or that report it in use.
	Nodes []string
	// Served says that the CSIDriver object of the new driver exists.
	Served bool
}

// Verb is the kind of a step.
type Verb string

// The verbs, in the order of the steps.
const (
	// Refuse: nothing is done, and a user has to act.
	Refuse Verb = "refuse"
	// Wait: another component has to act.
	Wait Verb = "wait"
	// Save: write the journal of the Step.
	Save Verb = "save"
	// Keep: set the reclaim policy Retain, which lets the volume survive the deletion of its claim.
	Keep Verb = "keep"
	// DeleteClaim and DeleteVolume: delete the object of the Facts, by its UID.
	DeleteClaim  Verb = "delete claim"
	DeleteVolume Verb = "delete volume"
	// CreateVolume and CreateClaim: create the object of the Step.
	CreateVolume Verb = "create volume"
	CreateClaim  Verb = "create claim"
	// Reserve: remove the UID of the deleted claim from the volume's reference, so that the new
	// claim can bind.
	Reserve Verb = "reserve"
	// Policy: restore the volume's reclaim policy.
	Policy Verb = "policy"
	// Finish: mark the journal as done; after a move back, delete it.
	Finish Verb = "finish"
	// Nothing: everything is as requested.
	Nothing Verb = "nothing"
)
