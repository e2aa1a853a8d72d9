package identity

import (
	"fmt"
	"strings"
)

// The controllers of a host call the node-local drivers of its node. They act under an identity of their own, which
// only the node's agent may impersonate, because a node's identity must not change claims.
const (
	// HostPrefix and the node's name are the user name of a host's controllers.
	HostPrefix = "system:volplane:host:"
	// HostsGroup is the group of all hosts' controllers.
	HostsGroup = "system:volplane:hosts"
)

// HostOf returns the node of a user that is the controllers of a host.
func HostOf(user string) (node string, ok bool) {
	node, ok = strings.CutPrefix(user, HostPrefix)
	return node, ok && node != ""
}

// intentsPrefix and a node's name are the name of its intent log, of at most maxIntents bytes: it is the value of a
// label.
const (
	intentsPrefix = "volplane-intents-node-"
	maxIntents    = 63
)

// HostIntents returns the name of the intent log of a host's controllers. Each node has another one.
func HostIntents(node string) string {
	name := intentsPrefix + node
	if len(name) > maxIntents {
		hash := Hash([]byte(node))[:12]
		name = fmt.Sprintf("%s.%s", strings.TrimRight(name[:maxIntents-len(hash)-1], "-."), hash)
	}
	return name
}
