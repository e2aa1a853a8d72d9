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
