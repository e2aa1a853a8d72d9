package cli

import (
	"volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/kube"
)

// translation presents FlexVolumes as CSI volumes. It is that of package flex, which is for Linux only.
func translation() kube.Translation {
	return kube.Translation{Volume: flex.SourceOf, Inline: flex.InlineOf}
}
