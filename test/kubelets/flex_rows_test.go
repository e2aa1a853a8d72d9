package kubelets

import (
	"slices"
	"strings"

	"volplane.dev/volplane/test/internal/differential"
)

// flexRows are the reasons why calls of drivers may differ.
func flexRows() []row {
	const group, firstKey = `"kubernetes.io/fsGroup":"4321",`, `"kubernetes.io/fsType"`
	return append(flexModeRows(), []row{
		{
			Reason: "the fsGroup has both of its names: drivers of each age exist",
			Explains: func(d difference, line string) bool {
				before, after, _ := strings.Cut(line, firstKey)
				return strings.Contains(line, ": mount ") &&
					differsBy(d, line, before+group+firstKey+after, strings.Replace(line, group, "", 1))
			},
		},
		{
			Reason: "a volume grows by expandvolume: Kubernetes never calls it",
			Explains: func(d difference, line string) bool {
				return strings.HasPrefix(line, "grown: expandvolume ") && slices.Contains(d.OnlyOurs, line)
			},
		},
		{
			Reason: "a driver is asked whether a volume is attached when it is to be attached again: " +
				"Kubernetes asks again and again",
			Explains: func(d difference, line string) bool {
				return strings.Contains(line, ": isattached ") && slices.Contains(d.OnlyTheirs, line)
			},
		},
		{
			Reason: "detach gets the name that the driver has given the volume (F-019): Kubernetes forgets it",
			Explains: func(d difference, line string) bool {
				whose, call, _ := strings.Cut(line, ": ")
				return strings.HasPrefix(call, "detach ") &&
					differsBy(d, line, strings.Replace(line, "detach "+whose+" ", "detach file-of-"+whose+" ", 1),
						strings.Replace(line, "detach file-of-"+whose+" ", "detach "+whose+" ", 1))
			},
		},
		{
			Reason: "the device of a volume of a Pod's own is mounted at a place that no other Pod's volume has, though it " +
				"may have the same name there",
			Explains: func(d difference, line string) bool {
				return strings.HasPrefix(line, "inline: ") && strings.Contains(line, "mountdevice ") &&
					differsBy(d, line, strings.Replace(line, "/mounts/inline", "/mounts/OWN-ID-OF-inline", 1),
						strings.Replace(line, "/mounts/OWN-ID-OF-inline", "/mounts/inline", 1))
			},
		},
	}...)
}

// flexModeRows are those about what is only read.
func flexModeRows() []row {
	return []row{
		{
			Reason: "whether a Pod only reads is known when its volume is mounted for it: attached and staged a CSI volume is " +
				"for all Pods",
			Explains: func(d difference, line string) bool {
				return strings.HasPrefix(line, "reader: ") && differsBy(d, line, otherMode(line), otherMode(line)) &&
					slices.Contains(d.OnlyOurs, line) == strings.Contains(line, writes)
			},
		},
		{
			Reason: "a volume that is read-only by its own object is mounted so: Kubernetes looks at the Pod's word alone",
			Explains: func(d difference, line string) bool {
				if !strings.HasPrefix(line, "printed: ") ||
					!differential.Has(d.OnlyOurs, "printed: the Pod has ", "read only true and may not write") {
					return false
				}
				return strings.Contains(line, ": the Pod has ") || differsBy(d, line, otherMode(line), otherMode(line)) &&
					slices.Contains(d.OnlyTheirs, line) == strings.Contains(line, writes)
			},
		},
	}
}

// writes is the option of a volume that is mounted for writing.
const writes = `"kubernetes.io/readwrite":"rw"`

// otherMode returns a line with the other word for whether it is written to.
func otherMode(line string) string {
	const reads = `"kubernetes.io/readwrite":"ro"`
	if strings.Contains(line, writes) {
		return strings.Replace(line, writes, reads, 1)
	}
	return strings.Replace(line, reads, writes, 1)
}

// differsBy says whether a line that only one side has occurs on the other side as expected there: asOurs, or asTheirs.
func differsBy(d difference, line, asOurs, asTheirs string) bool {
	if slices.Contains(d.OnlyOurs, line) {
		return line != asTheirs && slices.Contains(d.OnlyTheirs, asTheirs)
	}
	return line != asOurs && slices.Contains(d.OnlyOurs, asOurs)
}
