package mount

import (
	"fmt"
	"strings"

	"volplane.dev/volplane/internal/volume"
)

// Holder is a process that keeps a mount in use; without a PID it is the kernel, and Use says why.
type Holder struct {
	PID int
	// Command is the name of its program, and Use how the process uses the mount.
	Command, Use string
	// Namespace is its mount namespace, empty when that is the node agent's.
	Namespace string
}

// InUse adds the users of a mount to the reason of a failed unmount. They act next if otherwise only the node would,
// which retries.
func InUse(b volume.Because, node string, holders []Holder) volume.Because {
	if len(holders) == 0 {
		return b
	}
	var named []string
	for _, h := range holders {
		text := fmt.Sprintf("%.200s", h.Use)
		if h.PID != 0 {
			text = fmt.Sprintf("process %d (%.32s): %s", h.PID, h.Command, h.Use)
		}
		if h.Namespace != "" {
			text += " in mount namespace " + h.Namespace
		}
		named = append(named, text)
	}
	b.Message = fmt.Sprintf("%.500s; in use by %s", b.Message, strings.Join(named, ", "))
	if b.Next == volume.NodeAgent(node) {
		b.Next = volume.MountUser(node)
	}
	return b
}
