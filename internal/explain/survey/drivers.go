package survey

import (
	"fmt"
	"slices"
	"strings"

	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/volume"
)

// deadDriver returns the driver that has to act before a link can hold, because it is
// missing: it has not registered, or no process serves its socket. False otherwise.
func deadDriver(l chain.Link) (string, bool) {
	dead := l.Because.Reason == volume.ReasonDriverMissing || l.Because.Reason == volume.ReasonLeaderGone ||
		l.Because.Gone
	next := l.Because.Next
	return next.Name, l.State == chain.Problem && dead && next.Kind == volume.KindDriver
}

// together returns what is reported about a missing driver, for several nodes and volumes.
func together(driver string, all []volume.Because) string {
	var nodes, out []string
	for _, b := range all {
		if b.Node != "" {
			nodes = append(nodes, b.Node)
		} else if !slices.Contains(out, b.Message) {
			out = append(out, b.Message)
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
