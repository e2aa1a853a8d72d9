package attachdetach

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// memory is what the controller knows and the caches do not tell, or not yet.
// Losing it costs time, never safety.
type memory struct {
	mu sync.Mutex
	// waiting is since when an attachment has waited for its node to unmount.
	waiting map[types.UID]time.Time
	// going are attachments whose deletion was asked for, until they show it:
	// what is going must not be told to the node again.
	going map[types.UID]bool
	// taken is the node that is about to get a volume that only one may have,
	// by volume, until its attachment shows.
	taken map[string]string
	// told is the last warning to a Pod about a volume.
	told map[types.UID]map[string]string
}

func newMemory() *memory {
	return &memory{
		waiting: map[types.UID]time.Time{}, going: map[types.UID]bool{}, taken: map[string]string{},
		told: map[types.UID]map[string]string{},
	}
}

// take reserves a volume for a node, unless another node has it or seen finds
// an attachment to another node.
func (m *memory) take(volume, node string, seen func() bool) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if holder, taken := m.taken[volume]; taken && holder != node {
		return false
	}
	// Reservations end after the caches have the attachment, so that one of the
	// two is always seen.
	if seen() {
		return false
	}
	m.taken[volume] = node
	return true
}

// free ends a node's reservation of a volume.
func (m *memory) free(volume, node string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.taken[volume] == node {
		delete(m.taken, volume)
	}
}

// freeUnwanted ends a node's reservations of volumes that it does not want any
// more and returns them.
func (m *memory) freeUnwanted(node string, wanted map[string]bool) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var freed []string
	for volume, holder := range m.taken {
		if holder == node && !wanted[volume] {
			delete(m.taken, volume)
			freed = append(freed, volume)
		}
	}
	return freed
}

// wait says how long an attachment may still wait for its node to unmount;
// 0 is no longer.
func (m *memory) wait(a types.UID, now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	since, ok := m.waiting[a]
	if !ok {
		since = now
		m.waiting[a] = now
	}
	return max(0, maxUnmount-now.Sub(since))
}

// overdue says whether an attachment has waited for too long.
func (m *memory) overdue(a types.UID, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	since, ok := m.waiting[a]
	return ok && now.Sub(since) >= maxUnmount
}

// wantedAgain has a later wait begin anew.
func (m *memory) wantedAgain(a types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.waiting, a)
}

func (m *memory) isGoing(a types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.going[a]
}

// goes says that an attachment may be on its way out from here, and whether
// this is new.
func (m *memory) goes(a types.UID) (first bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	first = !m.going[a]
	m.going[a] = true
	return first
}

// stays takes back what goes has said.
func (m *memory) stays(a types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.going, a)
}

// shown forgets an attachment that is seen to be going, or gone.
func (m *memory) shown(a types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.waiting, a)
	delete(m.going, a)
}

// news says whether a Pod has not been told this about the volume just before.
func (m *memory) news(pod types.UID, volume, message string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.told[pod][volume] == message {
		return false
	}
	if m.told[pod] == nil {
		m.told[pod] = map[string]string{}
	}
	m.told[pod][volume] = message
	return true
}

func (m *memory) forgetPod(pod types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.told, pod)
}
