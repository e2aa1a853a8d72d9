package capacity

import (
	"maps"
	"slices"
	"sync"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/decide/capacity"
)

// memory is what drivers are asked about, and who is being asked: what is decided and
// under way, which no cache shows. It is safe for concurrent use.
type memory struct {
	mu sync.Mutex
	// items are found by their drivers and names.
	items map[string]map[string]capacity.Item
	// turns are found by the drivers.
	turns map[string]*turn
}

// turn keeps a driver from being asked twice at once.
type turn struct {
	busy bool
	// waiting are the keys that came meanwhile, each once.
	waiting []controller.Key
}

func newMemory() *memory {
	return &memory{items: map[string]map[string]capacity.Item{}, turns: map[string]*turn{}}
}

// remember replaces the items of a driver, and returns the names of those that
// are new.
func (m *memory) remember(driver string, items map[string]capacity.Item) (fresh []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, i := range items {
		// A class that was made again may have other parameters.
		if was, ok := m.items[driver][name]; !ok || was.Class.UID != i.Class.UID {
			fresh = append(fresh, name)
		}
	}
	if m.items[driver] = items; len(items) == 0 {
		delete(m.items, driver)
	}
	return fresh
}

func (m *memory) forget(driver string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.items, driver)
}

func (m *memory) item(driver, name string) (capacity.Item, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, ok := m.items[driver][name]
	return i, ok
}

func (m *memory) itemsOf(driver string) map[string]capacity.Item {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.items[driver])
}

// begin says that a key may ask its driver now, and must call end then. If not,
// end will name it when its turn comes.
func (m *memory) begin(key controller.Key) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.turns[key.Namespace]
	if t == nil {
		t = &turn{}
		m.turns[key.Namespace] = t
	}
	if t.busy && !slices.Contains(t.waiting, key) {
		t.waiting = append(t.waiting, key)
	}
	begun := !t.busy
	t.busy = true
	return begun
}

// end ends what begin began, and returns the key that is to begin next.
func (m *memory) end(driver string) (next controller.Key, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.turns[driver]
	if t.busy = false; len(t.waiting) == 0 {
		delete(m.turns, driver)
		return next, false
	}
	next, t.waiting = t.waiting[0], t.waiting[1:]
	return next, true
}
