package flex

import (
	"slices"

	"volplane.dev/volplane/internal/workshop/finding"
)

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
