package health

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// memory holds in how many complete lists of its driver a volume was absent that is not well according to its claim.
// Without it, the count begins anew.
type memory struct {
	mu     sync.Mutex
	absent map[string]map[types.UID]int
}

func newMemory() *memory { return &memory{absent: map[string]map[types.UID]int{}} }

func (m *memory) absences(driver string, volume types.UID) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.absent[driver][volume]
}

func (m *memory) remember(driver string, all map[types.UID]int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.absent[driver] = all
}

func (m *memory) forget(driver string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.absent, driver)
}
