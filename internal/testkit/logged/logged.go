// Package logged collects log output for tests that read it while it is written.
package logged

import (
	"strings"
	"sync"
)

// Text collects everything that is written to it. The zero Text is empty. It is safe for concurrent
// use, and must not be copied.
type Text struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write appends, and never fails.
func (t *Text) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.Write(p)
}

// String returns everything that was written.
func (t *Text) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}
