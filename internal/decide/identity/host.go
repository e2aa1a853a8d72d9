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

// The names of intent logs, which have at most maxIntents bytes: they are values of a label.
const (
	hostIntents   = "volplane-intents-node-"
	driverIntents = "volplane-intents-driver-"
	maxIntents    = 63
)

// HostIntents returns the name of the intent log of a host's controllers. Each node has another one.
func HostIntents(node string) string { return logName(hostIntents, node) }

// DriverIntents returns the name of the intent log of a driver: of all processes that may call its controller, the one
// that holds the driver's leases writes it. Each driver has another one.
func DriverIntents(driver string) string { return logName(driverIntents, driver) }

// IsOfDriver says whether an intent log of this name is that of a driver.
func IsOfDriver(log string) bool { return strings.HasPrefix(log, driverIntents) }

// logName returns a name for an object. A hash tells names apart that are too long or have upper case.
func logName(prefix, of string) string {
	name := prefix + strings.ToLower(of)
	if len(name) <= maxIntents && strings.HasSuffix(name, of) {
		return name
	}
	hash := Hash([]byte(of))[:12]
	return fmt.Sprintf("%s.%s", strings.TrimRight(name[:min(len(name), maxIntents-len(hash)-1)], "-."), hash)
}
