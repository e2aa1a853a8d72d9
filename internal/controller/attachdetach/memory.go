package attachdetach

import (
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/decide/attach"
)

// memory is what the controller knows and the caches do not tell: what it is about
// to do, and what was once. None of it makes up for a late watch, as the caches show
// own writes. Losing it costs time, never safety.
type memory struct {
	mu sync.Mutex
	// waiting is since when an attachment has waited for its node to unmount.
	waiting map[types.UID]time.Time
	// going are attachments whose deletion was decided, until they show it. What is
	// going must not be told to the node again, from before the request is made and
	// when nobody knows its outcome.
	going map[types.UID]bool
	// taken is the node that is about to get a volume that only one may have,
	// by the volume's name at its driver, until its attachment is made: two nodes
	// are looked at at once.
	taken map[string]string
	// told is the last warning to a Pod, or about an attachment, of a volume.
	told map[types.UID]map[string]string
	// making are attachments that are about to be made, by name: what has an
	// unknown outcome is repeated until it has another one.
	making map[string]*creation
	// rests is when a node may be looked at again.
	rests map[string]time.Time
	// had is what the caches tell no more. It has a lock of its own: it is asked
	// while a reservation is made.
	had history
}

// history is what has been attached to nodes.
type history struct {
	mu sync.Mutex
	// volumes are those that each node may still have, by their names in its
	// status.
	volumes map[string]map[string]bool
}

// creation is the way of an attachment from the decision until it is made.
type creation struct {
	attach.Attachable
	// refused says that the API server has refused it last, so that nothing is
	// under way.
	refused bool
}

func newMemory() *memory {
	return &memory{
		waiting: map[types.UID]time.Time{}, going: map[types.UID]bool{}, taken: map[string]string{},
		told: map[types.UID]map[string]string{}, making: map[string]*creation{}, rests: map[string]time.Time{},
		had: history{volumes: map[string]map[string]bool{}},
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

// freeUnwanted ends a node's reservations of volumes that it does not want any
// more and returns them. A volume whose attachment is being made stays
// reserved: nobody knows yet whether it is there.
func (m *memory) freeUnwanted(node string, wanted map[string]bool) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	making := map[string]bool{}
	for name, c := range m.making {
		switch v := attach.Key(c.Volume); {
		case c.Attachment.Spec.NodeName != node:
		case c.refused && !wanted[v]:
			delete(m.making, name)
		default:
			making[v] = true
		}
	}
	var freed []string
	for volume, holder := range m.taken {
		if holder == node && !wanted[volume] && !making[volume] {
			delete(m.taken, volume)
			freed = append(freed, volume)
		}
	}
	return freed
}

// make notes an attachment that is to be made; false is that it was noted
// before.
func (m *memory) make(a attach.Attachable) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.making[a.Attachment.Name] != nil {
		return false
	}
	m.making[a.Attachment.Name] = &creation{Attachable: a}
	return true
}

// toMake returns an attachment that is noted.
func (m *memory) toMake(name string) (attach.Attachable, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.making[name]
	if c == nil {
		return attach.Attachable{}, false
	}
	c.refused = false
	return c.Attachable, true
}

// isRefused says that an attachment has not been made by the last try.
func (m *memory) isRefused(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.making[name]; c != nil {
		c.refused = true
	}
}

// isMade ends the creation of an attachment, which the caches show from now on, and
// with it its volume's reservation.
func (m *memory) isMade(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.making[name]
	if c == nil {
		return
	}
	delete(m.making, name)
	if v := attach.Key(c.Volume); m.taken[v] == c.Attachment.Spec.NodeName {
		delete(m.taken, v)
	}
}

// unmake forgets an attachment that will not be made.
func (m *memory) unmake(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.making, name)
}

// beingMade returns the drivers of a node's attachments that are noted, by name.
func (m *memory) beingMade(node string) map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	drivers := map[string]string{}
	for name, c := range m.making {
		if c.Attachment.Spec.NodeName == node {
			drivers[name] = c.Attachment.Spec.Attacher
		}
	}
	return drivers
}

// rest has a node not looked at for a while.
func (m *memory) rest(node string, until time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rests[node] = until
}

// resting says for how long a node is not to be looked at; 0 is that it may be.
func (m *memory) resting(node string, now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	left := m.rests[node].Sub(now)
	if left <= 0 {
		delete(m.rests, node)
	}
	return max(0, left)
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
	return max(0, attach.MaxUnmount-now.Sub(since))
}

// overdue says whether an attachment has waited for too long.
func (m *memory) overdue(a types.UID, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	since, ok := m.waiting[a]
	return ok && now.Sub(since) >= attach.MaxUnmount
}

// wantedAgain has a later wait begin anew.
func (m *memory) wantedAgain(a types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.waiting, a)
	delete(m.told, a)
}

func (m *memory) isGoing(a types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.going[a]
}

// allGoing returns the attachments that are going and do not show it. It is to
// be asked before the attachments are read: then each shows it, or is here.
func (m *memory) allGoing() map[types.UID]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.going)
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

// shown forgets an attachment that is seen to be going, or gone.
func (m *memory) shown(a types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.waiting, a)
	delete(m.going, a)
	delete(m.told, a)
}

// news says whether of a Pod, or an attachment, this was not the last that was
// told about the volume.
func (m *memory) news(of types.UID, volume, message string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.told[of][volume] == message {
		return false
	}
	if m.told[of] == nil {
		m.told[of] = map[string]string{}
	}
	m.told[of][volume] = message
	return true
}

func (m *memory) forgetPod(pod types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.told, pod)
}

// gets notes that a volume is attached to a node.
func (h *history) gets(node, unique string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.volumes[node] == nil {
		h.volumes[node] = map[string]bool{}
	}
	h.volumes[node][unique] = true
}

// has says whether a volume has been attached to a node that may still have it.
func (h *history) has(node, unique string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.volumes[node][unique]
}

// keep forgets what has been attached to a node but for what it may still have.
func (h *history) keep(node string, may func(unique string) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.DeleteFunc(h.volumes[node], func(unique string, _ bool) bool { return !may(unique) })
	if len(h.volumes[node]) == 0 {
		delete(h.volumes, node)
	}
}
