package why

import "strings"

// inTheWay returns who has to act when something of a node's host is in the way,
// by the kernel's words for it, which no driver translates; "" when nothing is.
func inTheWay(message, node string) string {
	for _, words := range []string{"no space left on device", "read-only file system"} {
		if strings.Contains(message, words) {
			return "administrator of node " + node
		}
	}
	for _, words := range []string{"device or resource busy", "target is busy"} {
		if strings.Contains(message, words) {
			return "whoever uses the mount on node " + node
		}
	}
	return ""
}

// on adds the node to a message that does not name it.
func on(node, message string) string {
	if strings.Contains(message, node) {
		return message
	}
	return "on node " + node + ": " + message
}

// blame returns who has to act after a failure: a person when the driver says
// that the request itself cannot be served, and otherwise the one who repeats
// it. The codes are CSI's; a message has "Code: text" or gRPC's own form.
func blame(message, repeats string) string {
	for _, code := range []string{
		"InvalidArgument", "OutOfRange", "NotFound", "AlreadyExists", "PermissionDenied", "Unauthenticated",
		"FailedPrecondition", "ResourceExhausted", "Unimplemented",
	} {
		if strings.Contains(message, code+": ") || strings.Contains(message, "code = "+code+" ") {
			return "user"
		}
	}
	return orText(repeats, "user")
}
