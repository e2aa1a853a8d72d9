package shell

import (
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/flex/migrate"
	"volplane.dev/volplane/internal/gather"
	"volplane.dev/volplane/internal/kube"
)

// Facts returns the facts of the API, with those about FlexVolumes.
func Facts(client kubernetes.Interface) *gather.Facts {
	return gather.New(client, gather.Options{Bridge: Translation(), Moves: migrate.Unfinished})
}

// Translation presents FlexVolumes as CSI volumes. It is that of package flex, which is for Linux only.
func Translation() kube.Translation {
	return kube.Translation{Volume: flex.SourceOf, Inline: flex.InlineOf}
}
