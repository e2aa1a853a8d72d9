package flex

import (
	"fmt"
	"slices"

	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/internal/workshop/finding"
)

// Standing is the state of a driver in its host.
type Standing string

// Standings of a driver.
const (
	// Probing: the first init has not ended.
	Probing Standing = "probing"
	// Ready: the last init has succeeded.
	Ready Standing = "ready"
	// Broken: the last init has failed, or the driver must not be executed.
	Broken Standing = "broken"
	// Removed: there is no executable.
	Removed Standing = "removed"
)

// DriverFacts is what the decision about a driver's state depends on.
type DriverFacts struct {
	Name string
	// Present says that there is an executable. Refused says why it must not be executed, if it has a reason.
	Present bool
	Refused volume.Because
	// Probed says that init has ended. Failure is its error, or "".
	Probed  bool
	Failure string
	// Kept is the hash of the last good version, of which there is a copy; empty if there is none.
	Kept string
	// Attaches is the capability to attach that init returns now, and Attached the one before.
	Attaches, Attached bool
	// InUse is the number of volumes in use.
	InUse int
}

// Stand decides about the state of a driver. A version whose init fails is never replaced silently
// by the previous one (F-048), but a version that can unmount the volumes is kept (F-038).
func Stand(f DriverFacts) (Standing, volume.Because) {
	because := func(reason volume.Reason, next volume.Actor, format string, args ...any) volume.Because {
		return volume.Say(reason, next, fmt.Sprintf("driver %s ", f.Name)+fmt.Sprintf(format, args...))
	}
	switch {
	case f.Refused.Reason != "":
		f.Refused.Message += f.rest()
		return Broken, f.Refused
	case !f.Present && f.InUse > 0:
		return Removed, because(volume.ReasonFlexDriverRemoved, volume.User(), "was removed while it is needed%s", f.rest())
	case !f.Present:
		return Removed, because(volume.ReasonFlexDriverRemoved, volume.Actor{}, "is not installed")
	case !f.Probed:
		return Probing, because(volume.ReasonFlexDriverProbing, volume.Driver(f.Name), "has not answered init yet")
	case f.Failure != "":
		return Broken, because(volume.ReasonFlexDriverBroken, volume.User(), "does not initialise: %s%s", f.Failure, f.rest())
	case f.InUse == 0 || f.Attaches == f.Attached:
		return Ready, because(volume.ReasonFlexDriverReady, volume.Actor{}, "is ready")
	}
	// The capability may change (F-049), but the new version must undo what the old one has, or has not, attached.
	how := "attaches volumes now, which it did not"
	if !f.Attaches {
		how = "no longer attaches volumes, which it did"
	}
	return Ready, because(volume.ReasonFlexDriverReady, volume.User(),
		"is ready, but %s when %s came into use", how, f.volumes())
}

// rest says what happens to the volumes of a driver that is not ready.
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

// Hosts that call drivers.
const (
	// Kubernetes is the FlexVolume plugin of kubelet and kube-controller-manager.
	Kubernetes finding.Host = "kubernetes"
	// Volplane is this program.
	Volplane finding.Host = "volplane"
)

// Hosts returns all hosts.
func Hosts() []finding.Host { return []finding.Host{Kubernetes, Volplane} }

// PodAuthor can act on a finding about the options of a volume.
const PodAuthor finding.Person = "Pod's author"

// Works says in which hosts a driver works.
type Works struct {
	Kubernetes bool `json:"kubernetes"`
	Volplane   bool `json:"volplane"`
}

// WorksIn returns in which hosts a driver with these findings works. It does not work where a
// finding breaks it; other findings, of whatever level, do not matter.
func WorksIn(all []finding.Finding) Works {
	return Works{Kubernetes: len(BrokenBy(all, Kubernetes)) == 0, Volplane: len(BrokenBy(all, Volplane)) == 0}
}

// BrokenBy returns the names of the checks by which a driver does not work in a host, each once.
func BrokenBy(all []finding.Finding, in finding.Host) []string {
	var checks []string
	for _, f := range all {
		if slices.Contains(f.Breaks, in) && !slices.Contains(checks, f.Check) {
			checks = append(checks, f.Check)
		}
	}
	return checks
}
