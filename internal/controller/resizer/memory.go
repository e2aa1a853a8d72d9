package resizer

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/volume"
)

// memory is what is known of calls that went wrong, which nobody writes to an object.
// Losing it makes the resizer more careful, or has it ask once more.
type memory struct {
	mu sync.Mutex
	// refused is the size that a claim's driver said no to at last.
	refused map[types.UID]string
	// pauses end when a size that can never be is asked for again.
	pauses map[types.UID]pause
}

type pause struct {
	// of is what was refused: another refusal begins another pause.
	of    string
	until time.Time
}

func newMemory() *memory {
	return &memory{refused: map[types.UID]string{}, pauses: map[types.UID]pause{}}
}

func allocated(c *corev1.PersistentVolumeClaim) string {
	return c.Status.AllocatedResources.Storage().String()
}

// note remembers what became of a call for a claim. Whatever comes after a refusal
// takes it back: that call may have done it.
func (m *memory) note(c *corev1.PersistentVolumeClaim, o volume.Outcome) {
	if o == volume.Done {
		m.forget(c.UID)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.refused, c.UID)
	if o == volume.Failed {
		m.refused[c.UID] = allocated(c)
	}
}

func (m *memory) wasRefused(c *corev1.PersistentVolumeClaim) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.refused[c.UID] == allocated(c)
}

// pause says for how long the claim is left alone; a pause begins with the
// first question.
func (m *memory) pause(c *corev1.PersistentVolumeClaim) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	of, now := string(state(c))+" "+allocated(c), time.Now()
	p := m.pauses[c.UID]
	if p.of != of {
		p = pause{of: of, until: now.Add(infeasiblePause)}
		m.pauses[c.UID] = p
	}
	return max(0, p.until.Sub(now))
}

func (m *memory) forget(claim types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.refused, claim)
	delete(m.pauses, claim)
}
