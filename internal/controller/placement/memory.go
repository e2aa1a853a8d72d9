package placement

import (
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/decide/bind"
)

// memory holds decisions that are not written yet, so that no cache shows them.
type memory struct {
	// choosing is held while facts are gathered and a node is chosen, so each decision sees all earlier ones. It also
	// guards free and reserved.
	choosing sync.Mutex
	// free holds the volumes that no claim has and that were not chosen for one.
	free *bind.Free
	// reserved holds the names of chosen volumes by claim, until the volume's reference is written.
	reserved map[string]string

	mu sync.Mutex
	// placed holds the Pods for which a node was chosen, until the node is written to them. Their claims may have to be
	// bound first.
	placed map[types.UID]placed
	// unplaced holds the claims for which no node was found.
	unplaced map[controller.Key]bool
}

type placed struct {
	pod  *corev1.Pod
	node string
}

func newMemory() *memory {
	return &memory{
		free: bind.NewFree(), reserved: map[string]string{}, placed: map[types.UID]placed{},
		unplaced: map[controller.Key]bool{},
	}
}

// reserve reserves a volume for the claim to which it refers. choosing must be held.
func (m *memory) reserve(v *corev1.PersistentVolume) {
	m.free.Remove(v.Name)
	m.reserved[claimOf(v)] = v.Name
}

// setVolume adds or removes a changed volume, and says whether it is free.
func (m *memory) setVolume(v *corev1.PersistentVolume, deleted bool) (free bool) {
	m.choosing.Lock()
	defer m.choosing.Unlock()
	if deleted {
		m.free.Remove(v.Name)
		return false
	}
	m.free.Set(v)
	return bind.IsFree(v)
}

// reservationWritten drops the reservation of a volume, whose reference the caches show now.
func (m *memory) reservationWritten(v *corev1.PersistentVolume) {
	m.choosing.Lock()
	defer m.choosing.Unlock()
	delete(m.reserved, claimOf(v))
}

// unreserve drops the reservation of a volume that could not be written. current is the volume's
// state in the cache, or nil.
func (m *memory) unreserve(v, current *corev1.PersistentVolume) {
	m.choosing.Lock()
	defer m.choosing.Unlock()
	delete(m.reserved, claimOf(v))
	if current != nil {
		m.free.Set(current)
	}
}

func claimOf(v *corev1.PersistentVolume) string {
	return v.Spec.ClaimRef.Namespace + "/" + v.Spec.ClaimRef.Name
}

// hasFree says whether a free volume fits a claim.
func (m *memory) hasFree(claim *corev1.PersistentVolumeClaim) bool {
	m.choosing.Lock()
	defer m.choosing.Unlock()
	return m.free.Best(claim, nil) != nil
}

// place records the node that was chosen for a Pod; "" means none.
func (m *memory) place(pod *corev1.Pod, node string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if node == "" {
		delete(m.placed, pod.UID)
		return
	}
	m.placed[pod.UID] = placed{pod: pod, node: node}
}

// forgetPod drops a Pod that the caches show on its node, or as finished or deleted.
func (m *memory) forgetPod(pod types.UID) {
	// A worker that is choosing a node for the Pod at this moment must not add it afterwards.
	m.choosing.Lock()
	defer m.choosing.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.placed, pod)
}

// setUnplaced remembers that a claim waits for a node, or forgets it.
func (m *memory) setUnplaced(claim controller.Key, waits bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if waits {
		m.unplaced[claim] = true
	} else {
		delete(m.unplaced, claim)
	}
}

func (m *memory) unplacedClaims() []controller.Key {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.unplaced))
}

func (m *memory) isPlaced(pod types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.placed[pod]
	return ok
}

// placedByNode returns the placed Pods except one, by node.
func (m *memory) placedByNode(except types.UID) map[string][]*corev1.Pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string][]*corev1.Pod{}
	for uid, p := range m.placed {
		if uid != except {
			out[p.node] = append(out[p.node], p.pod)
		}
	}
	return out
}
