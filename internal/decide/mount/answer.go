package mount

import "volplane.dev/volplane/internal/volume"

// Seen is what the host shows at a path after the driver was called for it.
type Seen struct {
	// Mounted says that something is mounted there, Device that the volume's block device is; Unreadable that the mount
	// table cannot be read.
	Mounted, Device, Unreadable bool
	// Dead says that what was mounted there before the call will never answer again.
	Dead bool
}

// Brought returns the phase of a place on the node after the driver was called to bring the volume there; before is
// the phase that it had, so that an empty one stays empty when nothing came of the call.
//
// A final no says that this call had no effect, not that an earlier one had none. No driver is taken at its word that
// says "internal error", or whatever else while something is at the path: it is asked to undo it. Before the first call
// the path was free. A driver that is short of resources may have begun nevertheless.
func Brought(v Verb, before Phase, answer volume.Answer, seen Seen) Phase {
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

// Removal is what is left to do after the driver was called to take a volume away.
type Removal int

// Removals.
const (
	// Remains is that the volume may still be there: the driver's error is told, and the driver is called again.
	Remains Removal = iota
	// Gone is that nothing is left, and the record says so.
	Gone
	// DetachDead is Remains, and the kernel is told to forget a dead mount, which the driver may not be able to remove.
	DetachDead
	// UnmountRest is that the driver says that it is done and has left a mount behind.
	UnmountRest
	// NotSeen is that the mount table cannot be read: the driver is called again.
	NotSeen
)

// Removed judges the driver's answer to the call that takes the volume away from a path. The mount table is the truth,
// so "not found" is fine when nothing is there.
func Removed(answer volume.Answer, seen Seen) Removal {
	done := answer.Outcome == volume.Done
	switch {
	case !done && answer.Code != "NotFound" && seen.Dead:
		return DetachDead
	case !done && answer.Code != "NotFound":
		return Remains
	case seen.Unreadable:
		return NotSeen
	case !done && (seen.Mounted || seen.Device):
		return Remains
	case seen.Mounted:
		return UnmountRest
	}
	return Gone
}

// Stale says whether what is mounted of a volume came with an earlier attachment than the one by which it is to be
// mounted now. It was detached by force in between, while nobody wanted it here, and another node may have written to
// it: a filesystem that stayed mounted knows nothing of that. What living Pods have is not taken away under them.
// Unstage says that nothing but the staging is left of it, which has to end first.
func Stale(r *Record, attachment string, wanted []Consumer) (stale, unstage bool) {
	if r == nil || r.Attachment == "" || r.Attachment == attachment {
		return false, false
	}
	for _, t := range r.Targets {
		if _, living := find(wanted, t.Path); living {
			return false, false
		}
	}
	if len(r.Targets) == 0 {
		return r.Stage != "", r.Stage != ""
	}
	return true, false
}

// Cause is why a step failed.
type Cause struct {
	// Text is the error, bounded and without secrets.
	Text string
	// InTheWay says that something of the host or of the API is in the way, which a person has to remove.
	InTheWay bool
	// Code is that of the driver's answer; empty when there is none.
	Code string
	// NotShown says that the driver has not done what it says.
	NotShown bool
}

// StepFailed is the reason of a step that failed. A person is next when something is in the way, the driver when it
// did not answer or has not done what it says, and otherwise the node, which tries again after a back-off.
func StepFailed(v Verb, driver, node string, c Cause) volume.Because {
	next := "node " + node
	switch {
	case c.InTheWay:
		next = "user"
	case c.Code == "DeadlineExceeded", c.NotShown:
		next = driver
	}
	return Failed(v, node, c.Text, next)
}

// AskNext says whether a driver is asked how its next volume is after its answer about one: a driver that does not
// answer would not answer for the others either.
func AskNext(answer volume.Answer) bool {
	return answer.Code != "DeadlineExceeded" && answer.Code != "Unavailable"
}
