package flex

import (
	"fmt"

	"volplane.dev/volplane/internal/volume"
)

// Standing is where a driver stands in its host.
type Standing string

// Standings of a driver.
const (
	// Probing is a driver whose first init has not ended.
	Probing Standing = "probing"
	// Ready is one whose last init succeeded.
	Ready Standing = "ready"
	// Broken is one whose last init failed, or that is not executed at all.
	Broken Standing = "broken"
	// Removed is one whose executable is gone.
	Removed Standing = "removed"
)

// DriverFacts is everything that a decision about the standing of one driver
// looks at.
type DriverFacts struct {
	Name string
	// Present says that there is an executable, and Refused, if it is not empty,
	// why that must not run.
	Present bool
	Refused volume.Because
	// Probed says that init has ended, and Failure, if it is not empty, how.
	Probed  bool
	Failure string
	// Kept is the hash of the last good version, of which a copy is kept; empty
	// if there is none.
	Kept string
	// Attaches is what init says now, and Attached what it said before.
	Attaches, Attached bool
	// InUse is how many volumes are in use.
	InUse int
}

// Stand decides where a driver stands. A version that does not initialise is
// never replaced silently by the one before (F-048), and what volumes need to be
// unmounted is kept (F-038).
func Stand(f DriverFacts) (Standing, volume.Because) {
	because := func(reason volume.Reason, next, format string, args ...any) volume.Because {
		return volume.Because{
			Reason: reason, Next: next, Message: fmt.Sprintf("driver %s ", f.Name) + fmt.Sprintf(format, args...),
		}
	}
	switch {
	case f.Refused.Reason != "":
		f.Refused.Message += f.rest()
		return Broken, f.Refused
	case !f.Present && f.InUse > 0:
		return Removed, because(volume.ReasonFlexDriverRemoved, "user", "was removed while it is needed%s", f.rest())
	case !f.Present:
		return Removed, because(volume.ReasonFlexDriverRemoved, "", "is not installed")
	case !f.Probed:
		return Probing, because(volume.ReasonFlexDriverProbing, f.Name, "has not answered init yet")
	case f.Failure != "":
		return Broken, because(volume.ReasonFlexDriverBroken, "user", "does not initialise: %s%s", f.Failure, f.rest())
	case f.InUse == 0 || f.Attaches == f.Attached:
		return Ready, because(volume.ReasonFlexDriverReady, "", "is ready")
	}
	// It may change (F-049), but what was attached by the one and what was not by
	// the other is undone by this one.
	how := "attaches volumes now, which it did not"
	if !f.Attaches {
		how = "does not attach volumes any more, which it did"
	}
	return Ready, because(volume.ReasonFlexDriverReady, "user", "is ready, but %s when %s came into use", how, f.volumes())
}

// rest says what becomes of volumes whose driver is not ready.
func (f DriverFacts) rest() string {
	switch {
	case f.InUse == 0:
		return ""
	case f.Kept == "":
		return fmt.Sprintf("; %s cannot be unmounted, because no version of it is kept: install it again", f.volumes())
	}
	return fmt.Sprintf("; %s can be unmounted with version %s, which is kept for that", f.volumes(), f.Kept)
}

func (f DriverFacts) volumes() string {
	if f.InUse == 1 {
		return "1 volume"
	}
	return fmt.Sprintf("%d volumes", f.InUse)
}
