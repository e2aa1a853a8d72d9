package attachdetach

import (
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/decide/attach"
)

// memory holds the controller's decisions that the caches do not show yet, and past states that they do not show any
// more. The caches show own writes immediately, so nothing here compensates for a slow watch. Losing the memory costs
// time, never safety.
type memory struct {
	// maxUnmount is that of Options.
	maxUnmount time.Duration

	mu sync.Mutex
	// unmounts holds since when an attachment has waited for its node to unmount the volume.
	unmounts map[types.UID]time.Time
	// deleting holds the attachments whose deletion was decided, until the caches show it. They
	// must not be added to volumesAttached again, even if the outcome of the request is unknown.
	deleting map[types.UID]bool
	// reserved holds, by a volume's key, the node for which an attachment is about to be created, if only one node may use
	// the volume: two nodes may be reconciled at the same time.
	reserved map[string]string
	// warnings holds the last warning about each volume on a Pod or attachment.
	warnings map[types.UID]map[string]string
	// creations holds the attachments to create, by name. A creation with an unknown outcome is
	// repeated until the outcome is known.
	creations map[string]*creation
	// delays holds when a node may be reconciled again.
	delays map[string]time.Time
	// history has a lock of its own, because it is read while a reservation is made.
	history history
}

// history holds which volumes have been attached to nodes.
type history struct {
	mu sync.Mutex
	// volumes holds, by node, the unique names of the volumes that may still be attached.
	volumes map[string]map[string]bool
}

// creation is an attachment whose creation was decided.
type creation struct {
	attach.Attachable
	// refused says that the API server has refused the last request, so no request is in flight.
	refused bool
}

func newMemory(maxUnmount time.Duration) *memory {
	return &memory{
		maxUnmount: maxUnmount,
		unmounts:   map[types.UID]time.Time{}, deleting: map[types.UID]bool{}, reserved: map[string]string{},
		warnings: map[types.UID]map[string]string{}, creations: map[string]*creation{}, delays: map[string]time.Time{},
		history: history{volumes: map[string]map[string]bool{}},
	}
}

// reserve reserves a volume for a node, unless it is reserved for another node or attached says
// that it is attached to one.
func (m *memory) reserve(volume, node string, attached func() bool) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if holder, ok := m.reserved[volume]; ok && holder != node {
		return false
	}
	// A reservation ends after the caches show the attachment, so one of the two is always visible.
	if attached() {
		return false
	}
	m.reserved[volume] = node
	return true
}

// releaseUnwanted ends a node's reservations of volumes that it no longer wants, and returns them. A volume stays
// reserved while the outcome of its attachment's creation is unknown.
func (m *memory) releaseUnwanted(node string, wanted map[string]bool) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	creating := map[string]bool{}
	for name, c := range m.creations {
		switch v := attach.Key(c.Volume); {
		case c.Attachment.Spec.NodeName != node:
		case c.refused && !wanted[v]:
			delete(m.creations, name)
		default:
			creating[v] = true
		}
	}
	var released []string
	for volume, holder := range m.reserved {
		if holder == node && !wanted[volume] && !creating[volume] {
			delete(m.reserved, volume)
			released = append(released, volume)
		}
	}
	return released
}

// addCreation adds an attachment to create, and says whether it is new.
func (m *memory) addCreation(a attach.Attachable) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.creations[a.Attachment.Name] != nil {
		return false
	}
	m.creations[a.Attachment.Name] = &creation{Attachable: a}
	return true
}

// startCreation returns an attachment to create; its request is in flight from now on.
func (m *memory) startCreation(name string) (attach.Attachable, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.creations[name]
	if c == nil {
		return attach.Attachable{}, false
	}
	c.refused = false
	return c.Attachable, true
}

// creationRefused records that the API server has refused the last request.
func (m *memory) creationRefused(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c := m.creations[name]; c != nil {
		c.refused = true
	}
}

// creationDone ends the creation of an attachment that the caches show now, and the reservation of
// its volume.
func (m *memory) creationDone(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.creations[name]
	if c == nil {
		return
	}
	delete(m.creations, name)
	if v := attach.Key(c.Volume); m.reserved[v] == c.Attachment.Spec.NodeName {
		delete(m.reserved, v)
	}
}

// cancelCreation drops an attachment that will not be created.
func (m *memory) cancelCreation(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.creations, name)
}

// creationsOn returns the drivers of the attachments to create for a node, by attachment name.
func (m *memory) creationsOn(node string) map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	drivers := map[string]string{}
	for name, c := range m.creations {
		if c.Attachment.Spec.NodeName == node {
			drivers[name] = c.Attachment.Spec.Attacher
		}
	}
	return drivers
}

// delay postpones the next reconciliation of a node.
func (m *memory) delay(node string, until time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.delays[node] = until
}

// delayLeft returns for how long a node must not be reconciled yet.
func (m *memory) delayLeft(node string, now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	left := m.delays[node].Sub(now)
	if left <= 0 {
		delete(m.delays, node)
	}
	return max(0, left)
}

// awaitUnmount starts the wait for a node to unmount an attachment's volume, unless it was started,
// and returns how much of it is left.
func (m *memory) awaitUnmount(a types.UID, now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	since, ok := m.unmounts[a]
	if !ok {
		since = now
		m.unmounts[a] = now
	}
	return max(0, m.maxUnmount-now.Sub(since))
}

// overdue says whether a node has not unmounted an attachment's volume in time.
func (m *memory) overdue(a types.UID, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	since, ok := m.unmounts[a]
	return ok && now.Sub(since) >= m.maxUnmount
}

// cancelUnmount ends the wait for an attachment that is wanted again.
func (m *memory) cancelUnmount(a types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.unmounts, a)
	delete(m.warnings, a)
}

func (m *memory) isDeleting(a types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.deleting[a]
}

// allDeleting returns the attachments whose deletion was decided and that the caches do not show
// as deleted. It must be called before the attachments are read from the caches, so that each
// deletion is in one of the two.
func (m *memory) allDeleting() map[types.UID]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.deleting)
}

// startDeletion records that the deletion of an attachment was decided, and says whether it is new.
func (m *memory) startDeletion(a types.UID) (first bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	first = !m.deleting[a]
	m.deleting[a] = true
	return first
}

// forgetAttachment drops an attachment that the caches show as deleted.
func (m *memory) forgetAttachment(a types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.unmounts, a)
	delete(m.deleting, a)
	delete(m.warnings, a)
}

// addWarning records a warning about a volume on a Pod or attachment, and says whether it differs
// from the last one.
func (m *memory) addWarning(on types.UID, volume, message string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.warnings[on][volume] == message {
		return false
	}
	if m.warnings[on] == nil {
		m.warnings[on] = map[string]string{}
	}
	m.warnings[on][volume] = message
	return true
}

func (m *memory) forgetPod(pod types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.warnings, pod)
}

// add records that a volume is attached to a node.
func (h *history) add(node, unique string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.volumes[node] == nil {
		h.volumes[node] = map[string]bool{}
	}
	h.volumes[node][unique] = true
}

// has says whether a volume was attached to a node and may still be attached.
func (h *history) has(node, unique string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.volumes[node][unique]
}

// retain drops a node's volumes that cannot be attached any more.
func (h *history) retain(node string, may func(unique string) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.DeleteFunc(h.volumes[node], func(unique string, _ bool) bool { return !may(unique) })
	if len(h.volumes[node]) == 0 {
		delete(h.volumes, node)
	}
}
