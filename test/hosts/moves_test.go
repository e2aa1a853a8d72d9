package hosts

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

const (
	// moves is how often the volume goes to another host.
	moves = 20
	// crashes is how often the control plane is killed meanwhile.
	crashes = 2
)

// TestMovesAmongFaults moves a volume from host to host while cables are pulled
// and processes killed at random. Each fault ends; then the volume must be where
// it was sent, and never have been at two hosts.
func TestMovesAmongFaults(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	names := []string{"vpx", "vpy", "vpz"}
	w := newWorld(t, names...)
	w.writers(names...)
	volume := w.claim("data")
	for i := range moves {
		host, pod := names[random.IntN(len(names))], fmt.Sprint("p", i)
		w.pod(pod, "data", host)
		w.fault(random, names)
		w.mounted(pod)
		w.writes(volume, host)
		w.has(volume, host)
		w.remove(pod, false)
		w.fault(random, names)
	}
	w.gone(fmt.Sprint("p", moves-1))
	for _, name := range names {
		w.unmounted(name)
	}
	w.nothingWrong(volume)
}

// fault has something happen to one of the processes or cables.
func (w *world) fault(random *rand.Rand, names []string) {
	w.t.Helper()
	name := names[random.IntN(len(names))]
	switch random.IntN(4) {
	case 0:
		if w.ends < crashes {
			w.crash()
		}
	case 1:
		w.hosts[name].agent.Kill()
		w.must(w.hosts[name].agent.Again())
	case 2:
		w.cut(name)
		w.meanwhile("node1")
		w.plug(name)
	}
}
