package hosts

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"volplane.dev/volplane/internal/testkit/seeds"
)

const (
	// fewMoves is how often the volume moves in `make test`.
	fewMoves = 4
	// maxRestarts is the largest number of times that the control plane is killed.
	maxRestarts = 2
)

// TestMovesAmongFaults moves a volume from host to host while hosts are disconnected and processes are
// killed at random. Each fault ends. Then the volume must be at the host of its new Pod, and it must never
// have been at two hosts.
func TestMovesAmongFaults(t *testing.T) {
	t.Parallel()
	seed, moves := seeds.First(t), seeds.Count(t, fewMoves)
	t.Logf("played %d moves, SEED=%d", moves, seed)
	random := rand.New(rand.NewPCG(seed, 0))
	names := []string{"vpx", "vpy", "vpz"}
	w := newNetwork(t, names...)
	w.startWriters(names...)
	volume := w.createClaim("data")
	for i := range moves {
		host, pod := names[random.IntN(len(names))], fmt.Sprint("p", i)
		w.createPod(pod, "data", host)
		w.injectFault(random, names)
		w.waitForMount(pod)
		w.waitForWrite(volume, host)
		w.waitForHolders(volume, host)
		w.deletePod(pod, false)
		w.injectFault(random, names)
	}
	w.waitForDeletion(fmt.Sprint("p", moves-1))
	for _, name := range names {
		w.waitForUnmount(name)
	}
	w.checkEnd(volume)
}

// injectFault restarts the control plane, restarts an agent, disconnects a host for a while, or does
// nothing.
func (w *network) injectFault(random *rand.Rand, names []string) {
	w.t.Helper()
	name := names[random.IntN(len(names))]
	switch random.IntN(4) {
	case 0:
		if w.restarts < maxRestarts {
			w.restartPlane()
		}
	case 1:
		w.hosts[name].agent.Kill()
		w.must(w.hosts[name].agent.Restart())
	case 2:
		w.disconnect(name)
		w.runAnotherVolume("node1")
		w.reconnect(name)
	}
}
