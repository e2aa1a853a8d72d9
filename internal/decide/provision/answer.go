package provision

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/volume"
)

// Call is what became of a call of the driver.
type Call struct {
	volume.Answer
	// Missing says why the call was made without the Secret that it wants; ""
	// is that it had all that it wants.
	Missing string
}

// Told returns the error of the call, with what may be its cause.
func (c Call) Told() string {
	if c.Missing == "" {
		return c.Text
	}
	return c.Text + "; " + c.Missing
}

// Answer is what the driver said of the volume it made.
type Answer struct {
	Handle   string
	Bytes    int64
	Context  map[string]string
	Segments []topology.Segment
	// Source is the id of the volume that the driver says it copied, Snapshot
	// of the snapshot that it says it restored.
	Source, Snapshot string
}

// Creation is what became of a CreateVolume call.
type Creation struct {
	Call
	Volume Answer
	// TakenBy is the name of another volume object with the same handle; "" is
	// that there is none.
	TakenBy string
	// First says that no earlier call with the intent can have had an effect.
	First bool
	// Claim is nil when it is gone.
	Claim *corev1.PersistentVolumeClaim
}

// nothingMade says that the driver has no volume of the intent, neither by this
// call nor by an earlier one.
//
// CSI has a code for each reason not to begin. With those about the request a
// driver also says that it has no such volume, as it must answer OK to the
// arguments of one that it has. Those about whether it serves the caller at all
// tell of this call only, and that a volume exists already but is another one is
// no comfort when it may be ours. What remains, Internal and Unknown above all,
// is said by drivers that failed half-way or after they were done.
func (c Creation) nothingMade() bool {
	switch c.Code {
	case "InvalidArgument", "NotFound", "OutOfRange", "ResourceExhausted":
		return c.Missing == ""
	case "AlreadyExists", "Unimplemented", "PermissionDenied", "Unauthenticated":
		return c.First
	}
	return false
}

// Next is what is done about an intent after an answer.
type Next int

const (
	// Await keeps the intent, and its call is made again.
	Await Next = iota
	// Doubt keeps it because the driver's no does not prove that it made nothing:
	// its call is made again, or undone if the claim wants something else by now.
	Doubt
	// Save writes the volume object.
	Save
	// Remove deletes at the driver what must not become a volume object.
	Remove
	// Resolve ends the intent: its volume object exists, or nothing does.
	Resolve
	// Reselect has another node selected for the claim, and ends the intent.
	Reselect
)

// Verdict is what an answer means for an intent.
type Verdict struct {
	Next Next
	// Because is told to the claim's owner, as a warning if Warn says so;
	// without a reason nothing is told.
	Because volume.Because
	Warn    bool
	// Pause says that the driver is not asked the same again before a pause that
	// grows.
	Pause bool
	// Problem is why the claim is not served, and is looked at again after a
	// back-off; "" is that there is no problem.
	Problem string
}

func (in *Intent) failed(next, message string) volume.Because {
	return volume.Because{Reason: volume.ReasonProvisioningFailed, Message: message, Next: next}
}

// After decides what follows from a CreateVolume call.
func After(in *Intent, c Creation) Verdict {
	if c.Outcome == volume.Done {
		return afterVolume(in, c.Volume, c.TakenBy)
	}
	v := Verdict{
		Because: in.failed(in.Driver, "driver "+in.Driver+" made no volume: "+c.Text), Warn: true, Pause: true,
		Problem: c.Text,
	}
	switch {
	case c.Outcome == volume.Unknown: // Await
	case !c.nothingMade():
		v.Next = Doubt
	case c.Code == "ResourceExhausted" && len(in.Requisite) > 0 && c.Claim != nil &&
		c.Claim.Annotations[volume.AnnSelectedNode] != "":
		// If the node's segment is full, another node is looked for.
		v.Next = Reselect
	default:
		v.Next = Resolve
	}
	return v
}

// afterVolume decides whether what the driver made becomes a volume object. Only
// what is ours alone is deleted.
func afterVolume(in *Intent, a Answer, takenBy string) Verdict {
	switch {
	case takenBy != "" && takenBy != in.Name:
		return refuse(in, Resolve,
			fmt.Sprintf("driver %s answered with the id of volume %s, which exists already", in.Driver, takenBy))
	case a.Bytes > 0 && a.Bytes < in.Bytes:
		return refuse(in, Remove,
			fmt.Sprintf("driver %s made a volume of %d bytes, %d were requested", in.Driver, a.Bytes, in.Bytes))
	case in.Source != "" && a.Source != in.Source:
		return refuse(in, Remove, "driver "+in.Driver+" made an empty volume instead of a copy")
	case in.Snapshot != "" && a.Snapshot != in.Snapshot:
		return refuse(in, Remove, "driver "+in.Driver+" made an empty volume instead of restoring the snapshot")
	}
	return Verdict{Next: Save}
}

// refuse is the verdict about an answer that must not become a volume object.
func refuse(in *Intent, next Next, problem string) Verdict {
	return Verdict{
		Next: next, Because: in.failed(in.Driver, problem), Warn: true, Pause: next == Resolve, Problem: problem,
	}
}

// Saving is what the API server answered to the creation of a volume object.
type Saving struct {
	// Object has the name of the volume, Made says that it was written now; an
	// Err is that neither is known.
	Object *corev1.PersistentVolume
	Made   bool
	Err    error
}

// AfterSave decides what follows from the creation of the volume object. From
// when that exists, the cache shows it, which keeps the claim from being
// provisioned again, and the handle from another volume. An object of a stranger
// must not hide what the driver made for us.
func AfterSave(in *Intent, a Answer, s Saving) Verdict {
	switch {
	case apierrors.IsInvalid(s.Err), apierrors.IsForbidden(s.Err):
		// It is not to be saved: seed 004 wants the asset deleted then.
		return refuse(in, Remove, "the volume object is refused: "+s.Err.Error())
	case s.Err != nil:
		return Verdict{
			Because: in.failed("", "volume object is not saved yet: "+s.Err.Error()), Warn: true, Problem: s.Err.Error(),
		}
	case s.Made:
		return Verdict{Next: Resolve, Because: volume.Because{
			Reason: volume.ReasonProvisioningSucceeded, Message: "Successfully provisioned volume " + in.Name,
		}}
	}
	csi := s.Object.Spec.CSI
	switch {
	case csi == nil || csi.Driver != in.Driver || csi.VolumeHandle != a.Handle:
		return refuse(in, Remove, "another volume object has the name "+in.Name)
	case !Owns(in.Claim.UID, s.Object):
		return refuse(in, Resolve, "another volume object has the name "+in.Name)
	}
	return Verdict{Next: Resolve}
}

// AfterUndo decides what follows from a CreateVolume call that was made to learn
// the id of a volume that nobody wants any more.
func AfterUndo(in *Intent, c Creation) Verdict {
	switch {
	case c.Outcome == volume.Done && c.TakenBy == "":
		return Verdict{Next: Remove}
	case c.Outcome == volume.Done, c.Outcome == volume.Failed && c.nothingMade():
		return Verdict{Next: Resolve}
	}
	return notRemoved(in, c.Call)
}

// AfterRemove decides what follows from a DeleteVolume call for what was made by
// an intent. The problem is the one that it was made for; "" is that nobody wants
// the volume any more.
func AfterRemove(in *Intent, problem string, c Call) Verdict {
	switch {
	case c.Outcome != volume.Done:
		return notRemoved(in, c)
	case problem != "":
		return Verdict{Next: Resolve, Pause: true, Problem: problem}
	}
	return Verdict{Next: Resolve, Because: volume.Because{
		Reason: volume.ReasonDeleting, Message: "volume " + in.Name + ", which nobody wants any more, is deleted",
	}}
}

// notRemoved is the verdict about what was made for a claim, must not become its
// volume, and may be there still.
func notRemoved(in *Intent, c Call) Verdict {
	return Verdict{Warn: true, Problem: c.Text, Because: volume.Because{
		Reason: volume.ReasonProvisioningCleanupFailed, Next: in.Driver,
		Message: "what driver " + in.Driver + " made as volume " + in.Name + " is not deleted yet: " + c.Told(),
	}}
}

// AfterSourceGone decides what follows when the source of a volume's data is
// being deleted before CreateVolume is called: a new intent ends. An old one
// stays, as it may have made its volume, which CreateVolume tells.
func AfterSourceGone(p Plan, problem string) Verdict {
	if p.Step == Create {
		return Verdict{}
	}
	return Verdict{Next: Resolve, Because: p.Intent.failed("user", problem), Warn: true, Problem: problem}
}

// SecretUnread explains why CreateVolume is not called.
func SecretUnread(in *Intent, cause string) volume.Because {
	return in.failed("user", "no volume is asked for: "+cause)
}

// Slow tells of a CreateVolume call that takes long.
func Slow(in *Intent) volume.Because {
	return volume.Because{
		Reason: volume.ReasonProvisioning, Message: "driver " + in.Driver + " is making volume " + in.Name,
	}
}

// WithoutSecret tells that DeleteVolume is called without the Secret that it
// wants. One that is gone must not keep the volume for ever, and most drivers
// delete without one.
func WithoutSecret(handle, missing string) volume.Because {
	return volume.Because{
		Reason:  volume.ReasonFailedDelete,
		Message: "volume " + handle + " is deleted without its secret: " + missing, Next: "user",
	}
}
