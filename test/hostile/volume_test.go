package hostile

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// kind says what a driver can do, and how.
type kind struct {
	// lists says that it lists where its volumes are; stages that it stages, and shows that
	// a staged filesystem is mounted at its staging path: otherwise the driver only counts
	// it, like one that logs in to a target.
	lists, stages, shows bool
	// grows says that volumes grow, growsNodes that filesystems need it, too.
	grows, growsNodes bool
	// makesNodes says that a block device is published as a device node, and not
	// as a mount of one.
	makesNodes bool
	// counts says that it says how much room it has, forgets that it creates no volume when it answers with another one.
	counts, forgets bool
}

func kindOf(seed uint64) kind {
	dice := rand.New(rand.NewPCG(seed, 2))
	return kind{
		lists: dice.IntN(2) == 0, stages: dice.IntN(4) > 0, shows: dice.IntN(2) == 0,
		grows: dice.IntN(4) > 0, growsNodes: dice.IntN(2) == 0, makesNodes: dice.IntN(2) == 0,
		counts: dice.IntN(2) == 0, forgets: dice.IntN(2) == 0,
	}
}

// driverVolume is one volume of a driver as it really is.
type driverVolume struct {
	// many says that it may be on many nodes.
	many, block bool
	// bytes is its size, formatted that of the filesystem on it.
	bytes, formatted int64
	// attached and staged are by node, published by target path.
	attached  map[string]bool
	staged    map[string]string
	published map[string]map[string]bool
	// logins are what the attachments to a node have answered for its calls, numbered by logged.
	logins map[string]map[string]bool
	logged int
}

func newDisk() *driverVolume {
	return &driverVolume{
		attached: map[string]bool{}, staged: map[string]string{}, published: map[string]map[string]bool{},
		logins: map[string]map[string]bool{},
	}
}

// login returns the publish context of a call that attaches a volume to a node: another one each time, none, or one
// that is too long.
func (v *driverVolume) login(node string, says any) map[string]string {
	v.logged++
	text, context := fmt.Sprint(node, "-", v.logged), map[string]string{}
	switch says {
	case nothing:
		text, context = "", nil
	case more:
		context["blob"] = strings.Repeat("x", 1<<17)
	}
	if v.logins[node] == nil {
		v.logins[node] = map[string]bool{}
	}
	v.logins[node][text] = true
	if text != "" {
		context["login"] = text
	}
	return context
}

func (v *driverVolume) used(node string) bool {
	return v.staged[node] != "" || len(v.published[node]) > 0
}

// inline says that a volume belongs to a Pod, and exists while it is published.
func inline(id string) bool { return strings.HasPrefix(id, "csi-") }

// shown says that a volume has a mount at its staging path.
func (k kind) shown(v *driverVolume) bool { return k.stages && k.shows && !v.block }

// loggedIn says that a volume is attached to a node, and that a call has what a call that attached it has answered
// since it was detached last.
func (v *driverVolume) loggedIn(node string, r interface{ GetPublishContext() map[string]string }) bool {
	return v != nil && v.attached[node] && v.logins[node][r.GetPublishContext()["login"]]
}
