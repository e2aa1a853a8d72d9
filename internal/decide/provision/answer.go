package provision

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/volume"
)

// Answer describes the volume that the driver has created.
type Answer struct {
	Handle   string
	Bytes    int64
	Context  map[string]string
	Segments []topology.Segment
	// Source is the handle of the cloned volume, as the driver reports it.
	Source string
	// Snapshot is the handle of the restored snapshot, as the driver reports it.
	Snapshot string
}

// Creation is the result of a call of CreateVolume.
type Creation struct {
	volume.Answer
	Volume Answer
	// TakenBy is the name of another claim's volume object with the same handle, or "".
	TakenBy string
	// First says that no earlier call with the intent can have had an effect.
	First bool
	// Selects says that volplane selects the nodes of claims, and not the scheduler of a cluster.
	Selects bool
	// Claim is nil if it was deleted.
	Claim *corev1.PersistentVolumeClaim
}

// nothingMade says whether the driver has certainly no volume of the intent, neither from this call
// nor from an earlier one.
//
// The codes about the arguments prove it: for the arguments of an existing volume, a driver must
// answer OK. The codes about whether the driver serves the caller at all prove it only for this
// call. AlreadyExists proves nothing if an earlier call may have created the volume. With the other
// codes, above all Internal and Unknown, drivers may fail in the middle or after the work is done.
func (c Creation) nothingMade() bool {
	switch c.Code {
	case "InvalidArgument", "NotFound", "OutOfRange", "ResourceExhausted":
		return c.Missing == ""
	case "AlreadyExists", "Unimplemented", "PermissionDenied", "Unauthenticated":
		return c.First
	}
	return false
}

// Next is the next step for an intent after an answer.
type Next int

const (
	// Await keeps the intent and repeats its call.
	Await Next = iota
	// Doubt keeps the intent because the refusal does not prove that there is no volume. The call
	// is repeated, or undone if the claim's request has changed.
	Doubt
	// Save writes the volume object.
	Save
	// Remove deletes a volume that must not get an object at the driver.
	Remove
	// Resolve ends the intent: its volume has an object or does not exist.
	Resolve
	// Reselect removes the selected node from the claim, and ends the intent.
	Reselect
)

// Verdict is the decision about an answer.
type Verdict struct {
	Next Next
	// Because is recorded as an event of the claim, unless its reason is empty.
	Because volume.Because
	// Warn says whether the event is a warning.
	Warn bool
	// Pause says whether the same request is repeated only after a back-off.
	Pause bool
	// Problem is the error with which the claim is requeued, or "".
	Problem string
}

func (in *Intent) failed(next volume.Actor, message string) volume.Because {
	return volume.Say(volume.ReasonProvisioningFailed, next, message)
}

// After decides about the result of a call of CreateVolume.
func After(in *Intent, c Creation) Verdict {
	if c.Outcome == volume.Done {
		return afterVolume(in, c.Volume, c.TakenBy)
	}
	v := Verdict{
		Because: c.Because(volume.ReasonProvisioningFailed, volume.Driver(in.Driver), in.caller()+" did not create a "+
			"volume: "+c.Text),
		Warn: true, Pause: true, Problem: c.Text,
	}
	switch {
	case c.Outcome == volume.Unknown: // Await
	case !c.nothingMade():
		v.Next = Doubt
	case c.reselects(in):
		v.Next, v.Because.Next = Reselect, volume.Controller("placement")
	default:
		v.Next = Resolve
	}
	return v
}

// caller names the driver, and its node if it has volumes of that node only.
func (in *Intent) caller() string {
	if in.Node == "" {
		return "driver " + in.Driver
	}
	return "driver " + in.Driver + " on node " + in.Node
}

// reselects says whether another node is to be selected: the segment of the selected one is full or, which is believed
// once of each node, its driver does not have the data of which the volume is to be made.
func (c Creation) reselects(in *Intent) bool {
	if c.Claim == nil || volume.SelectedNode(c.Claim.Annotations) == "" {
		return false
	}
	switch c.Code {
	case "ResourceExhausted":
		return len(in.Requisite) > 0
	case "NotFound":
		return c.Selects && in.Node != "" && in.SourceName != "" && !slices.Contains(RefusedOn(c.Claim), in.Node)
	}
	return false
}

// afterVolume decides whether a created volume gets an object. A wrong volume is deleted, unless
// another object has its handle.
func afterVolume(in *Intent, a Answer, takenBy string) Verdict {
	switch {
	case takenBy != "":
		// The driver may have created the right volume, too, which only another call tells.
		return refuse(in, Doubt,
			fmt.Sprintf("driver %s answered with the id of volume %s, which already exists", in.Driver, takenBy))
	case in.isForeign(a):
		return refuse(in, Resolve, fmt.Sprintf("driver %s answered with a volume that is accessible from %s only, and may "+
			"be that of another node: %s was required", in.Driver, listed(a.Segments), listed(in.Requisite)))
	case a.Bytes > 0 && a.Bytes < in.Bytes:
		return refuse(in, Remove,
			fmt.Sprintf("driver %s created a volume of %d bytes, %d were requested", in.Driver, a.Bytes, in.Bytes))
	case in.Source != "" && a.Source != in.Source:
		return refuse(in, Remove, "driver "+in.Driver+" created an empty volume instead of a copy")
	case in.Snapshot != "" && a.Snapshot != in.Snapshot:
		return refuse(in, Remove, "driver "+in.Driver+" created an empty volume instead of restoring the snapshot")
	case !topology.Meets(a.Segments, in.Requisite):
		return refuse(in, Remove, fmt.Sprintf("driver %s created a volume that is accessible from %s only, and %s was "+
			"required",
			in.Driver, listed(a.Segments), listed(in.Requisite)))
	}
	return Verdict{Next: Save}
}

// maxListed is how many segments a message has.
const maxListed = 4

// listed returns segments for a message.
func listed(all []topology.Segment) string {
	var names []string
	for _, s := range all[:min(len(all), maxListed)] {
		names = append(names, topology.Describe(s))
	}
	if more := len(all) - maxListed; more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, " or ")
}

// refuse returns the decision about a volume that must not get an object.
func refuse(in *Intent, next Next, problem string) Verdict {
	return Verdict{
		Next: next, Because: in.failed(volume.Driver(in.Driver), problem), Warn: true,
		Pause: next != Remove, Problem: problem,
	}
}

// Saving is the result of the creation of a volume object.
type Saving struct {
	// Object is the object that has the volume's name; nil after an error.
	Object *corev1.PersistentVolume
	// Made says whether Object is the created one; otherwise it existed before.
	Made bool
	// Err is the error of the request.
	Err error
	// Claim is nil if it was deleted.
	Claim *corev1.PersistentVolumeClaim
}

// AfterSave decides about the result of the creation of the volume object. The object keeps the
// claim from getting another volume, and the handle from being used twice. If an unrelated object
// has the volume's name, the volume is deleted, because nothing else would refer to it.
func AfterSave(in *Intent, a Answer, s Saving) Verdict {
	switch {
	case apierrors.IsInvalid(s.Err), apierrors.IsForbidden(s.Err):
		return afterRefusal(in, a, s)
	case s.Err != nil:
		return Verdict{
			Because: in.failed(volume.Actor{}, "volume object is not saved yet: "+s.Err.Error()),
			Warn:    true, Problem: s.Err.Error(),
		}
	case s.Made:
		return Verdict{Next: Resolve, Because: volume.Because{
			Reason: volume.ReasonProvisioningSucceeded, Message: "Successfully provisioned volume " + in.Name,
		}}
	}
	csi := s.Object.Spec.CSI
	switch {
	case in.isElsewhere(s.Object) && !IsSame(in, a, s.Object):
		return refuse(in, Remove, "another node has created the volume of the claim")
	case csi == nil || csi.Driver != in.Driver || csi.VolumeHandle != a.Handle:
		return refuse(in, Remove, "another volume object has the name "+in.Name)
	case !Owns(in.Claim.UID, s.Object):
		return refuse(in, Resolve, "another volume object has the name "+in.Name)
	}
	return Verdict{Next: Resolve}
}

// afterRefusal decides about a volume whose object the API server will never accept.
func afterRefusal(in *Intent, a Answer, s Saving) Verdict {
	if in.Reclaim == corev1.PersistentVolumeReclaimDelete || !in.isUnwanted(s.Claim) {
		return refuse(in, Remove, "the volume object is refused: "+s.Err.Error())
	}
	// A host may make objects for claims that exist only. The intent stays until the volume has an object.
	return Verdict{
		Because: in.failed(volume.User(), fmt.Sprintf("the volume is to be retained, its claim is gone, and the object is "+
			"refused: %v: create an object for it with: volplane adopt %s %s", s.Err, in.Driver, a.Handle)),
		Warn: true, Pause: true, Problem: s.Err.Error(),
	}
}

// AfterUndo decides about the result of a call of CreateVolume that was made to learn the handle of
// a volume that is not wanted any more.
func AfterUndo(in *Intent, c Creation) Verdict {
	switch {
	case c.Outcome == volume.Done && c.TakenBy == "" && !in.isForeign(c.Volume):
		return Verdict{Next: Remove}
	case c.Outcome == volume.Done, c.Outcome == volume.Failed && c.nothingMade():
		return Verdict{Next: Resolve}
	}
	return notRemoved(in, c.Answer)
}

// AfterRemove decides about the result of a call of DeleteVolume for the volume of an intent.
// problem is why the volume is deleted; "" if it is not wanted any more.
func AfterRemove(in *Intent, problem string, a volume.Answer) Verdict {
	switch {
	case a.Outcome != volume.Done:
		return notRemoved(in, a)
	case problem != "":
		return Verdict{Next: Resolve, Pause: true, Problem: problem}
	}
	return Verdict{Next: Resolve, Because: volume.Because{
		Reason: volume.ReasonDeleting, Message: "volume " + in.Name + ", which no claim needs any longer, is deleted",
	}}
}

// notRemoved returns the decision about a volume that must be deleted and may still exist.
func notRemoved(in *Intent, a volume.Answer) Verdict {
	return Verdict{Warn: true, Problem: a.Text, Because: a.Because(volume.ReasonProvisioningCleanupFailed,
		volume.Driver(in.Driver), "what driver "+in.Driver+" created as volume "+in.Name+" is not deleted yet: "+a.Failure())}
}

// AfterSourceGone decides about an intent whose source of data is being deleted before CreateVolume
// is called. A new intent ends. An old one stays, because its volume may exist; the next call of
// CreateVolume will show that.
func AfterSourceGone(p Plan, problem string) Verdict {
	if p.Step == Create {
		return Verdict{}
	}
	return Verdict{Next: Resolve, Because: p.Intent.failed(volume.User(), problem), Warn: true, Problem: problem}
}

// SecretUnread explains why CreateVolume is not called.
func SecretUnread(in *Intent, cause string) volume.Because {
	return in.failed(volume.User(), "no volume is requested: "+cause)
}

// Slow returns the event for a call of CreateVolume that takes long.
func Slow(in *Intent) volume.Because {
	return volume.Because{
		Reason: volume.ReasonProvisioning, Message: "driver " + in.Driver + " is creating volume " + in.Name,
	}
}

// WithoutSecret returns the event for a call of DeleteVolume without its Secret, which was deleted.
// Most drivers need none for this, and the volume must not be kept forever.
func WithoutSecret(handle, missing string) volume.Because {
	return volume.Say(volume.ReasonFailedDelete, volume.User(),
		"volume "+handle+" is deleted without its secret: "+missing)
}
