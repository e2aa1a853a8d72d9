package observe

import (
	"sync"
)

// Leading is what a process reports about the leases for which it is a candidate.
type Leading interface {
	// Check returns an error if the process leads and has not renewed its leases for long. One that does not lead is well.
	Check() error
	// Held says of each lease whether the process holds it.
	Held() map[string]bool
	// Reread says of each lease how many renewals had to read it first.
	Reread() map[string]int64
}

// leading holds who is asked about the leases.
type leading struct {
	mu   sync.Mutex
	asks Leading
}

// Follow has the registry ask l about the leases.
func (r *Registry) Follow(l Leading) {
	if r == nil {
		return
	}
	r.leading.mu.Lock()
	defer r.leading.mu.Unlock()
	r.leading.asks = l
}

// wellLed returns an error if the process leads and has not renewed its leases for long.
func (r *Registry) wellLed() error {
	if l := r.leading.get(); l != nil {
		return l.Check()
	}
	return nil
}

func (l *leading) get() Leading {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.asks
}

func (l *leading) collect(set Set) {
	asks := l.get()
	if asks == nil {
		return
	}
	for name, holds := range asks.Held() {
		value := 0.0
		if holds {
			value = 1
		}
		set(value, name)
	}
}

func (l *leading) collectReread(set Set) {
	asks := l.get()
	if asks == nil {
		return
	}
	for name, n := range asks.Reread() {
		set(float64(n), name)
	}
}
