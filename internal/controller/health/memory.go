package health

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// record is what is known of a volume from earlier cycles.
type record struct {
	// absences is in how many complete lists of its driver a volume was absent that was not well. Without it, the count
	// begins anew.
	absences int
	// told is what was told of it by events only, because its claim cannot hold it. Without it, it is told again.
	told *corev1.VolumeHealthStatus
}

// memory holds the records of each driver's volumes.
type memory struct {
	mu  sync.Mutex
	all map[string]map[types.UID]record
}

func newMemory() *memory { return &memory{all: map[string]map[types.UID]record{}} }

// known returns the records of a driver's volumes, which nobody changes.
func (m *memory) known(driver string) map[types.UID]record {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.all[driver]
}

func (m *memory) remember(driver string, all map[types.UID]record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all[driver] = all
}

func (m *memory) forget(driver string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.all, driver)
}
