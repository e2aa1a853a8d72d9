package mount

import "volplane.dev/volplane/internal/volume"

// Observed is the state of a path on the host after a driver call.
type Observed struct {
	// Mounted says that something is mounted there, Device that the volume's block device is; Unreadable that the mount
	// table cannot be read.
	Mounted, Device, Unreadable bool
	// Dead means that the earlier mount there will never respond again.
	Dead bool
}

// PhaseAfterCall returns the phase of a path after the driver was called to stage or publish the volume there. before
// is the phase that it had, to which it returns if the call had no effect.
//
// A final code means that this call had no effect, but not that earlier ones had none. Codes of internal errors are not
// trusted, and no code is while something is at the path: the driver is then called to undo the step. Before the first
// call the path was free. A driver that reports a lack of resources may have done a part.
func PhaseAfterCall(v Verb, before Phase, answer volume.Answer, seen Observed) Phase {
	begun, done := Publishing, Published
	if v == Stage {
		begun, done = Staging, Staged
	}
	switch {
	case answer.Outcome == volume.Done:
		return done
	case answer.Outcome != volume.Failed || seen.Mounted || seen.Device || seen.Unreadable:
		return begun
	}
	switch answer.Code {
	case "ResourceExhausted", "Internal", "Unknown", "DataLoss":
		return begun
	}
	return before
}

// Removal is the remaining work after the driver was called to unmount a volume.
type Removal int

// Removals.
const (
	// Remains: the volume may still be mounted; the driver's error is reported, and the driver is called again.
	Remains Removal = iota
	// Gone: nothing is left.
	Gone
	// DetachDead: like Remains; but the mount is dead and the driver may be unable to remove it, so the agent detaches it.
	DetachDead
	// UnmountRest: the driver reported success and has left a mount behind.
	UnmountRest
	// Unverified: the mount table cannot be read; the driver is called again.
	Unverified
)

// Removed judges the driver's answer to the call that unmounts a volume from a path. The mount table decides, so
// NotFound is a success if nothing is mounted there.
func Removed(answer volume.Answer, seen Observed) Removal {
	done := answer.Outcome == volume.Done
	switch {
	case !done && answer.Code != "NotFound" && seen.Dead:
		return DetachDead
	case !done && answer.Code != "NotFound":
		return Remains
	case seen.Unreadable:
		return Unverified
	case !done && (seen.Mounted || seen.Device):
		return Remains
	case seen.Mounted:
		return UnmountRest
	}
	return Gone
}

// UnstageRefused says whether a driver has refused to unstage a volume because of an external cause, such as a process
// that uses the volume: the call has ended, and will have no later effect. An internal error proves neither.
func UnstageRefused(answer volume.Answer) bool {
	return answer.Outcome == volume.Failed && answer.Code == "FailedPrecondition"
}

// Stale says whether the mounts of a volume belong to an earlier attachment than the present one. The volume was
// detached by force in between, and another node may have written to it, which a filesystem that stayed mounted does
// not notice. Mounts of running Pods stay. unstage says that only the staged mount is left and must be removed.
func Stale(r *Record, attachment string, wanted []Consumer) (stale, unstage bool) {
	if r == nil || r.Attachment == "" || r.Attachment == attachment {
		return false, false
	}
	for _, t := range r.Targets {
		if _, living := consumerAt(wanted, t.Path); living {
			return false, false
		}
	}
	if len(r.Targets) == 0 {
		return r.Stage != "", r.Stage != ""
	}
	return true, false
}

// Failure is how a step failed.
type Failure struct {
	// Answer is the error; its code is empty if the driver was not called.
	volume.Answer
	// Obstacle means that the host or the API prevents the step, and a user has to remove the cause.
	Obstacle bool
	// NotDone says that the driver reported success without the effect.
	NotDone bool
	// OtherID says that the volume is attached to the node under another id than the driver's current one.
	OtherID bool
}

// StepFailed is the reason of a step that failed. A user acts next if an obstacle prevents it, the driver if it did not
// respond or did not do what it reported, and otherwise the node, which tries again after a back-off.
func StepFailed(v Verb, driver, node string, c Failure) volume.Because {
	next := volume.NodeAgent(node)
	switch {
	case c.OtherID:
		return volume.Say(volume.ReasonAttachedUnderOtherID, volume.Controller("attachdetach"), c.Text)
	case c.Obstacle:
		next = volume.User()
	case c.Code == "DeadlineExceeded", c.Gone, c.NotDone:
		next = volume.Driver(driver)
	}
	return failed(v, node, c.Answer, next)
}

// AskNext says whether a driver is queried about its next volume: one that does not respond would not respond for the
// others either.
func AskNext(answer volume.Answer) bool {
	return answer.Code != "DeadlineExceeded" && answer.Code != "Unavailable"
}
