package resizer

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/volume"
)

// memory holds facts about failed calls that no object has. Without them, the resizer makes fewer
// assumptions, or repeats a call.
type memory struct {
	mu sync.Mutex
	// refused holds the size that a claim's driver has refused, if its last answer was a refusal.
	refused map[types.UID]string
	// pauses holds until when claims with an infeasible size are left alone.
	pauses map[types.UID]pause
}

type pause struct {
	// size is the infeasible size with its state: another size or state starts another pause.
	size  string
	until time.Time
}

func newMemory() *memory {
	return &memory{refused: map[types.UID]string{}, pauses: map[types.UID]pause{}}
}

func allocated(c *corev1.PersistentVolumeClaim) string {
	return c.Status.AllocatedResources.Storage().String()
}

// record records the outcome of a call for a claim. Every other outcome cancels an earlier refusal,
// because that call may have expanded the volume.
func (m *memory) record(c *corev1.PersistentVolumeClaim, o volume.Outcome) {
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

// pause returns for how long the claim is left alone. The first call starts the pause.
func (m *memory) pause(c *corev1.PersistentVolumeClaim) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	size, now := string(state(c))+" "+allocated(c), time.Now()
	p := m.pauses[c.UID]
	if p.size != size {
		p = pause{size: size, until: now.Add(infeasiblePause)}
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
