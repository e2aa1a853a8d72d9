package attach

import "strings"

// IsMultiAttach says whether an event says that another node has the volume, in the words of volplane
// or of any version of Kubernetes.
func IsMultiAttach(message string) bool {
	return strings.HasPrefix(message, "Multi-Attach error for volume ") ||
		strings.HasPrefix(message, "Waiting for detach for volume ")
}

// VolumeIn returns the volume that an event about a mount or an attachment names; empty if it names
// none.
func VolumeIn(message string) string {
	_, after, _ := strings.Cut(message, `for volume "`)
	name, _, closed := strings.Cut(after, `"`)
	if !closed {
		return ""
	}
	return name
}
