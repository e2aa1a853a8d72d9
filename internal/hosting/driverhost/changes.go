package driverhost

import "sync"

// changes notifies subscribers that something has changed. It is safe for concurrent use.
type changes struct {
	mu          sync.Mutex
	subscribers map[chan struct{}]bool
}

// subscribe returns a channel that receives after each change, at least once after several, until cancel is called.
func (c *changes) subscribe() (changed <-chan struct{}, cancel func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.subscribers == nil {
		c.subscribers = map[chan struct{}]bool{}
	}
	s := make(chan struct{}, 1)
	c.subscribers[s] = true
	return s, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.subscribers, s)
	}
}

func (c *changes) notify() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.subscribers {
		select {
		case s <- struct{}{}:
		default:
		}
	}
}
