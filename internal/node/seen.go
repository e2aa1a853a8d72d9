package node

import (
	"maps"
	"sync"

	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/node/health"
)

// Seen is what an agent has seen last.
type Seen struct {
	// Volumes are the mounted volumes that have been inspected.
	Volumes []health.Stats
	// Storage is what each registered driver has reported about its storage.
	Storage map[string][]storagev1.StorageHealthCondition
	// UnknownMounts is how many mounts no record explains, and UnreadableRecords how many records could not be read at
	// the start.
	UnknownMounts, UnreadableRecords int
}

// Seen returns what the agent has seen. It may be called at any time.
func (a *Agent) Seen() Seen {
	a.seen.mu.Lock()
	defer a.seen.mu.Unlock()
	out := a.seen.last
	out.Storage = maps.Clone(out.Storage)
	maps.DeleteFunc(out.Storage, func(driver string, _ []storagev1.StorageHealthCondition) bool {
		_, registered := a.Drivers.Get(driver)
		return !registered
	})
	if a.seen.monitor != nil {
		out.Volumes = a.seen.monitor.All()
	}
	return out
}

// seen holds what the parts of an agent have observed.
type seen struct {
	mu      sync.Mutex
	last    Seen
	monitor *health.Monitor
}

func (s *seen) begin(m *health.Monitor) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.monitor = m
}

func (s *seen) unknown(mounts int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last.UnknownMounts = mounts
}

func (s *seen) unreadable(records int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last.UnreadableRecords = records
}

func (s *seen) storageOf(driver string, all []storagev1.StorageHealthCondition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last.Storage == nil {
		s.last.Storage = map[string][]storagev1.StorageHealthCondition{}
	}
	s.last.Storage[driver] = all
}
