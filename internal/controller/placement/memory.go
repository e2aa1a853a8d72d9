package placement

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// memory is what the caches do not tell, or not yet. The mutex is also held
// from the facts to the choice, so that each choice knows of all before it.
type memory struct {
	choosing sync.Mutex

	mu sync.Mutex
	// placed are Pods with a node chosen whose caches do not show it.
	placed map[types.UID]placed
}

type placed struct {
	pod  *corev1.Pod
	node string
}

func newMemory() *memory {
	return &memory{placed: map[types.UID]placed{}}
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
