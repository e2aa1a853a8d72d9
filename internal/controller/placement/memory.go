package placement

import (
	"maps"
	"slices"
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
	// free are the names of volumes without a claim, by class.
	free map[string]map[string]bool
}

type placed struct {
	pod  *corev1.Pod
	node string
}

func newMemory() *memory {
	return &memory{placed: map[types.UID]placed{}, free: map[string]map[string]bool{}}
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

// setFree notes whether a claim may get a volume.
func (m *memory) setFree(v *corev1.PersistentVolume, free bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	class := v.Spec.StorageClassName
	if !free {
		delete(m.free[class], v.Name)
		return
	}
	if m.free[class] == nil {
		m.free[class] = map[string]bool{}
	}
	m.free[class][v.Name] = true
}

func (m *memory) freeOf(class string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.free[class]))
}
