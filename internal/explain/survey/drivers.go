package survey

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/volume"
)

// deadDriver returns the driver that has to act before a link can hold, because it
// is not there at all: it has not registered, or nobody serves its socket. False
// when it is not that.
func deadDriver(l chain.Link) (string, bool) {
	dead := l.Because.Reason == volume.ReasonDriverMissing || l.Because.Reason == volume.ReasonLeaderGone ||
		volume.DriverGone(l.Because.Message)
	next := l.Because.Next
	return next.Name, l.State == chain.Problem && dead && next.Kind == volume.KindDriver
}

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
	if nodes = slices.Compact(nodes); len(nodes) > 0 {
		where := map[bool]string{true: "node", false: "nodes"}[len(nodes) == 1]
		missing := fmt.Sprintf("driver %s has not registered on %s %s", driver, where, chain.Names(nodes))
		out = slices.Insert(out, 0, missing)
	}
	return strings.Join(chain.Few(out), "; ")
}
