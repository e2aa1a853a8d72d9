package resizer

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
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

func (m *memory) refuse(c *corev1.PersistentVolumeClaim) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refused[c.UID] = allocated(c)
}

// uncertain takes back a refusal: a later call may have done it.
func (m *memory) uncertain(c *corev1.PersistentVolumeClaim) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.refused, c.UID)
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
