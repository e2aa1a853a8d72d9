package differential

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// DriverName is the driver of all volumes.
const DriverName = "test.csi.example.com"

// Sequence is a list of operations of users. Its objects have names of their own, so that many sequences
// can be played at the same time.
type Sequence struct {
	Seed uint64
	Ops  []Op
}

// Op is one operation of a user, the same on both sides.
type Op struct {
	Text string
	Do   func(ctx context.Context, s Side, space string) error
	// Restart says how the controllers are restarted around it.
	Restart restart
}

func (s Sequence) String() string {
	var b strings.Builder
	for i, o := range s.Ops {
		fmt.Fprintf(&b, "  %d. %s%s\n", i+1, o.Text, o.Restart)
	}
	return b.String()
}

// Dice draws the sequences. No size is drawn twice, because it is not specified which of two equal volumes
// a claim gets.
type Dice struct {
	*rand.Rand

	Volumes, Claims, Pods int
}

// NewRand returns the random numbers of a seed.
func NewRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 7)) }

// NewDice returns the dice of a seed.
func NewDice(seed uint64) *Dice { return &Dice{Rand: NewRand(seed)} }

// Volume draws the name of a volume: one of those made so far, or the next one.
func (d *Dice) Volume() string { return fmt.Sprint("v", d.IntN(d.Volumes+1)) }

// Pick draws one of some values.
func Pick[T any](d interface{ IntN(n int) int }, all ...T) T { return all[d.IntN(len(all))] }

// VolumeMode draws the mode of a volume, which is mostly left out.
func (d *Dice) VolumeMode() *corev1.PersistentVolumeMode {
	return Pick(d, nil, nil, nil, ptr.To(corev1.PersistentVolumeFilesystem), ptr.To(corev1.PersistentVolumeBlock))
}
