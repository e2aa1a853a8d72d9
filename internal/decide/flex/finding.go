package flex

import (
	"slices"

	"volplane.dev/volplane/internal/finding"
)

// Level is the severity of a Finding.
type Level = finding.Level

// Levels of findings.
const (
	Pass = finding.Pass
	// Warn: a matter of form, which hosts can handle.
	Warn = finding.Warn
	// Fail: the driver does not work in some host, or data or a secret is lost.
	Fail = finding.Fail
)

// Host is a program that calls drivers.
type Host = finding.Host

// Hosts that call drivers.
const (
	// Kubernetes is the FlexVolume plugin of kubelet and kube-controller-manager.
	Kubernetes Host = "kubernetes"
	// Volplane is this program.
	Volplane Host = "volplane"
)

// Hosts returns all hosts.
func Hosts() []Host { return []Host{Kubernetes, Volplane} }

// Person is somebody who can act on a Finding.
type Person = finding.Person

// Persons who can act.
const (
	Author               = finding.Author
	PodAuthor     Person = "Pod's author"
	Administrator        = finding.Administrator
)

// Finding is the result of one check of a driver or of a plugin directory.
type Finding = finding.Finding

// Worst returns the worst level of findings; Pass if there are none.
func Worst(all []Finding) Level { return finding.Worst(all) }

// Works says in which hosts a driver works.
type Works struct {
	Kubernetes bool `json:"kubernetes"`
	Volplane   bool `json:"volplane"`
}

// WorksIn returns in which hosts a driver with these findings works. It does not work where a
// finding breaks it; other findings, of whatever level, do not matter.
func WorksIn(all []Finding) Works {
	return Works{Kubernetes: len(BrokenBy(all, Kubernetes)) == 0, Volplane: len(BrokenBy(all, Volplane)) == 0}
}

// BrokenBy returns the names of the checks by which a driver does not work in a host, each once.
func BrokenBy(all []Finding, in Host) []string {
	var checks []string
	for _, f := range all {
		if slices.Contains(f.Breaks, in) && !slices.Contains(checks, f.Check) {
			checks = append(checks, f.Check)
		}
	}
	return checks
}
