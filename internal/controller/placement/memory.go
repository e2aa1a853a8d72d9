package placement

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/decide/bind"
)

// memory is what was chosen and is not written yet, of which no cache can tell. The
// mutex is also held from the facts to the choice, so that each choice knows of all
// before it.
type memory struct {
	choosing sync.Mutex
	// free are the volumes that no claim has and that were chosen for none,
	// reserved those that were chosen, by claim, until that is written. Both are
	// guarded by choosing.
	free     *bind.Free
	reserved map[string]string

	mu sync.Mutex
	// placed are Pods with a node chosen, which some wait for their claims to be
	// bound with, until the node is written to them.
	placed map[types.UID]placed
}

type placed struct {
	pod  *corev1.Pod
	node string
}

func newMemory() *memory {
	return &memory{free: bind.NewFree(), reserved: map[string]string{}, placed: map[types.UID]placed{}}
}

// reserve keeps a volume from all claims but the one that it was chosen for.
// choosing must be held.
func (m *memory) reserve(v *corev1.PersistentVolume) {
	m.free.Remove(v.Name)
	m.reserved[claimOf(v)] = v.Name
}

// seen takes notice of a volume as it is, or as it was when it is gone, and
// says whether claims may get it.
func (m *memory) seen(v *corev1.PersistentVolume, gone bool) (free bool) {
	m.choosing.Lock()
	defer m.choosing.Unlock()
	if gone {
		m.free.Remove(v.Name)
		return false
	}
	m.free.Set(v)
	return bind.IsFree(v)
}

// written ends the time in which nobody else can know that a volume was chosen.
func (m *memory) written(v *corev1.PersistentVolume) {
	m.choosing.Lock()
	defer m.choosing.Unlock()
	delete(m.reserved, claimOf(v))
}

// unreserve offers a volume again that could not be written; now is what it is.
func (m *memory) unreserve(v, now *corev1.PersistentVolume) {
	m.choosing.Lock()
	defer m.choosing.Unlock()
	delete(m.reserved, claimOf(v))
	if now != nil {
		m.free.Set(now)
	}
}

func claimOf(v *corev1.PersistentVolume) string {
	return v.Spec.ClaimRef.Namespace + "/" + v.Spec.ClaimRef.Name
}

// offers says whether there is a volume for a claim somewhere.
func (m *memory) offers(claim *corev1.PersistentVolumeClaim) bool {
	m.choosing.Lock()
	defer m.choosing.Unlock()
	return m.free.Best(claim, nil) != nil
}

// place remembers the node that was chosen for a Pod; "" is none.
func (m *memory) place(pod *corev1.Pod, node string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if node == "" {
		delete(m.placed, pod.UID)
		return
	}
	m.placed[pod.UID] = placed{pod: pod, node: node}
}

// arrived forgets a Pod that the caches show on its node, or that is gone.
func (m *memory) arrived(pod types.UID) {
	// Who chooses for the Pod at this moment does so before it has arrived.
	m.choosing.Lock()
	defer m.choosing.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.placed, pod)
}

func (m *memory) isPlaced(pod types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, ok := m.placed[pod]
	return ok
}

// onTheWay returns the Pods that were placed, except one, by node.
func (m *memory) onTheWay(except types.UID) map[string][]*corev1.Pod {
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
