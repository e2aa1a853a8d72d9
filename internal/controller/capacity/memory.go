package capacity

import (
	"maps"
	"slices"
	"sync"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/decide/capacity"
)

// memory holds the items of the drivers, and which drivers are being called. It is safe for
// concurrent use.
type memory struct {
	mu sync.Mutex
	// items holds the items of each driver by name.
	items map[string]map[string]capacity.Item
	// turns holds the drivers that are being called.
	turns map[string]*turn
}

// turn serializes the calls of one driver.
type turn struct {
	// busy says whether a key is calling the driver.
	busy bool
	// waiting holds the keys that call the driver next, each once.
	waiting []controller.Key
}

func newMemory() *memory {
	return &memory{items: map[string]map[string]capacity.Item{}, turns: map[string]*turn{}}
}

// remember replaces the items of a driver, and returns the names of the new ones.
func (m *memory) remember(driver string, items map[string]capacity.Item) (fresh []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, i := range items {
		// A class that was created again may have other parameters.
		if old, ok := m.items[driver][name]; !ok || old.Class.UID != i.Class.UID {
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

// begin says whether a key may call its driver now; then end must be called afterwards. Otherwise
// end returns the key when its turn has come.
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

// end ends the turn of the key that calls a driver, and returns the key whose turn is next.
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
