package users

import "sync"

// Signal wakes all who wait for a change.
type Signal struct {
	mu   sync.Mutex
	next chan struct{}
}

// NewSignal returns a signal that has not been sent yet.
func NewSignal() *Signal { return &Signal{next: make(chan struct{})} }

// Send wakes all who wait.
func (s *Signal) Send() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.next)
	s.next = make(chan struct{})
}

// Wait returns a channel that the next change closes.
func (s *Signal) Wait() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.next
}
