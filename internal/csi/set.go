package csi

import (
	"maps"
	"slices"
	"sync"
)

// Set is the drivers that a process reaches: the node agent puts those that
// register, and the controllers ask for them by name. It is safe for
// concurrent use.
type Set struct {
	mu      sync.Mutex
	drivers map[string]*Driver
	told    []*func(name string)
}

// NewSet returns an empty set.
func NewSet() *Set { return &Set{drivers: map[string]*Driver{}} }

// Put adds a driver, or takes the place of the one of the same name.
func (s *Set) Put(d *Driver) {
	s.mu.Lock()
	s.drivers[d.Name] = d
	told := slices.Clone(s.told)
	s.mu.Unlock()
	for _, f := range told {
		(*f)(d.Name)
	}
}

// Remove takes out the driver, unless another one has taken its place since.
func (s *Set) Remove(d *Driver) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.drivers[d.Name] == d {
		delete(s.drivers, d.Name)
	}
}

// Get returns the driver of that name.
func (s *Set) Get(name string) (*Driver, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d, ok := s.drivers[name]
	return d, ok
}

// Names returns the names of all drivers, sorted.
func (s *Set) Names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.drivers))
}

// Subscribe has f called with the name of each driver that is put from now on,
// until cancel is called. f must not block.
func (s *Set) Subscribe(f func(name string)) (cancel func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = append(s.told, &f)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.told = slices.DeleteFunc(s.told, func(known *func(name string)) bool { return known == &f })
	}
}
