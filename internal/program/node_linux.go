package program

import (
	"cmp"

	"volplane.dev/volplane/internal/noderoot"
)

// ThisNode returns the name of this host's node: the one that its agent has kept, because the host's name may change.
func ThisNode() string { return cmp.Or(noderoot.NameOf(noderoot.Of(DataDir())), HostName()) }
