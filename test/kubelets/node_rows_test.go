package kubelets

import (
	"slices"
	"strings"

	"volplane.dev/volplane/test/internal/differential"
)

// nodeRows are the reasons why calls of drivers may differ.
func nodeRows() []row {
	return []row{
		{
			Reason: "a volume of a Pod is mounted whatever its containers say: a Pod is who uses a volume. A kubelet mounts " +
				"only what a container mounts, and leaves the rest attached",
			Explains: func(d difference, line string) bool {
				return strings.HasPrefix(line, "id-unmounted: ") && slices.Contains(d.OnlyOurs, line)
			},
		},
		{
			Reason: "a volume that is read-only by its own object is mounted so; a kubelet looks at the Pod's word alone, and " +
				"the driver has heard of it when it attached",
			Explains: func(d difference, line string) bool {
				readOnly := differential.Has(d.OnlyOurs, "id-printed: 2 NodePublishVolume ", `"readonly":true`) &&
					differential.Has(d.OnlyOurs, "id-printed: 3 NodeUnpublishVolume ", "read only true")
				return readOnly && strings.HasPrefix(line, "id-printed: ")
			},
		},
	}
}
