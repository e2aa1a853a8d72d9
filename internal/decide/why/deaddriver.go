package why

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"volplane.dev/volplane/internal/volume"
)

// deadDriver returns the driver that has to act before a link can hold, because it
// is not there at all: it has not registered, or nobody serves its socket. False
// when it is not that.
func (k known) deadDriver(l Link) (string, bool) {
	dead := l.Because.Reason == volume.ReasonDriverMissing || l.Because.Reason == volume.ReasonLeaderGone ||
		volume.DriverGone(l.Because.Message)
	return l.Because.Next, l.State == Problem && dead && k.isDriver(l.Because.Next)
}

// isDriver says whether a name is that of a driver.
func (k known) isDriver(name string) bool {
	if found(k.view.Drivers, name) != nil || k.registered(name, "") {
		return true
	}
	for _, v := range k.Volumes {
		if v.Spec.CSI != nil && v.Spec.CSI.Driver == name {
			return true
		}
	}
	for _, c := range k.Classes {
		if c.Provisioner == name {
			return true
		}
	}
	return false
}

// several is how many of what is told of one cause are told.
const several = 3

// together returns what is told of a driver that is not there, when it is told of
// several nodes and volumes.
func together(driver string, messages []string) string {
	var nodes, out []string
	missing := regexp.MustCompile("^driver " + regexp.QuoteMeta(driver) + ` (?:has not|is not) registered on node (\S+)$`)
	for _, m := range messages {
		if found := missing.FindStringSubmatch(m); found != nil {
			nodes = append(nodes, found[1])
		} else if !slices.Contains(out, m) {
			out = append(out, m)
		}
	}
	slices.Sort(nodes)
	if nodes = slices.Compact(nodes); len(nodes) == 1 {
		out = slices.Insert(out, 0, fmt.Sprintf("driver %s has not registered on node %s", driver, nodes[0]))
	} else if len(nodes) > 1 {
		out = slices.Insert(out, 0, fmt.Sprintf("driver %s has not registered on nodes %s", driver, strings.Join(nodes, ", ")))
	}
	return strings.Join(few(out), "; ")
}
