package kube

import (
	"slices"
	"strings"
)

// nodeRows are the reasons for which what drivers are called with may differ.
func nodeRows() []row {
	return []row{
		{
			"a volume of a Pod is mounted whatever its containers say: a Pod is who uses a volume. A kubelet mounts only what " +
				"a container mounts, and leaves the rest attached",
			func(d difference, line string) bool {
				return strings.HasPrefix(line, "id-unmounted: ") && slices.Contains(d.onlyOurs, line)
			},
		},
		{
			"a volume that is read-only by its own object is mounted so; a kubelet looks at the Pod's word alone, and the " +
				"driver has heard of it when it attached",
			func(d difference, line string) bool {
				readOnly := has(d.onlyOurs, "id-printed: 2 NodePublishVolume ", `"readonly":true`) &&
					has(d.onlyOurs, "id-printed: 3 NodeUnpublishVolume ", "read only true")
				return readOnly && strings.HasPrefix(line, "id-printed: ")
			},
		},
	}
}
