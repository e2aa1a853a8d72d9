// Package foreign reads what other programs say in events about attachments; volplane says it in the same words. The
// words of a kubelet and of a scheduler are read where they are judged, in explain/kubelet and explain/scheduling.
// Everything else that an explanation reads is data.
package foreign

import "strings"

// IsMultiAttach says whether an event says that another node has the volume: "Multi-Attach error" in the words of
// earlier versions of Kubernetes, "Waiting for detach" in those of 1.37.
func IsMultiAttach(message string) bool {
	return strings.HasPrefix(message, "Multi-Attach error for volume ") ||
		strings.HasPrefix(message, "Waiting for detach for volume ")
}

// NamesPods says whether such an event names the Pods that have the volume there: "pod(s)" in the words of Kubernetes
// 1.37.
func NamesPods(message string) bool {
	return strings.Contains(message, "pod(s)") || strings.Contains(message, "used there by pod")
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
