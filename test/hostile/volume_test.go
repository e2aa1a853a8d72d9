package hostile

import (
	"math/rand/v2"
	"strings"
)

// kind says what a driver can do, and how.
type kind struct {
	// lists says that it tells where its volumes are; stages that it stages, and
	// shows that a staged filesystem is mounted at its staging path: otherwise
	// the driver only counts it, like one that logs in to a target.
	lists, stages, shows bool
	// grows says that volumes grow, growsNodes that filesystems need it, too.
	grows, growsNodes bool
	// makesNodes says that a block device is published as a device node, and not
	// as a mount of one.
	makesNodes bool
}

func kindOf(seed uint64) kind {
	dice := rand.New(rand.NewPCG(seed, 2))
	return kind{
		lists: dice.IntN(2) == 0, stages: dice.IntN(4) > 0, shows: dice.IntN(2) == 0,
		grows: dice.IntN(4) > 0, growsNodes: dice.IntN(2) == 0, makesNodes: dice.IntN(2) == 0,
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
}

func newDisk() *driverVolume {
	return &driverVolume{attached: map[string]bool{}, staged: map[string]string{}, published: map[string]map[string]bool{}}
}

func (v *driverVolume) used(node string) bool {
	return v.staged[node] != "" || len(v.published[node]) > 0
}

// inline says that a volume belongs to a Pod, and exists while it is published.
func inline(id string) bool { return strings.HasPrefix(id, "csi-") }

// shown says that a volume has a mount at its staging path.
func (k kind) shown(v *driverVolume) bool { return k.stages && k.shows && !v.block }
