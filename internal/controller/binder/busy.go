package binder

import "sync"

// busy is the set of volumes whose status is being written beside their claims. A claim that is written first has its
// volume looked at, whose status would be written twice, and one of the writes refused. It is safe for concurrent use.
type busy struct {
	mu sync.Mutex
	// asked says by name whether somebody has asked for a volume of the set.
	asked map[string]bool
}

// begin adds a volume.
func (b *busy) begin(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.asked == nil {
		b.asked = map[string]bool{}
	}
	b.asked[name] = false
}

// has says whether a volume is in the set, and remembers that it was asked for.
func (b *busy) has(name string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, in := b.asked[name]
	if in {
		b.asked[name] = true
	}
	return in
}

// end removes a volume, and says whether it was asked for.
func (b *busy) end(name string) (asked bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	asked = b.asked[name]
	delete(b.asked, name)
	return asked
}
