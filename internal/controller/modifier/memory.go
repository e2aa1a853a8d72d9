package modifier

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/decide/modify"
)

// memory holds facts about failed calls that no object has. Without them, the modifier assumes that a call is still in
// progress, or repeats it.
type memory struct {
	mu sync.Mutex
	// refused holds the claims whose driver has answered the last call with a final no.
	refused map[types.UID]bool
	// pauses holds until when claims whose class was refused for good are left alone.
	pauses map[types.UID]pause
}

type pause struct {
	// class is the one that was refused: another one starts another pause.
	class string
	until time.Time
}

func newMemory() *memory {
	return &memory{refused: map[types.UID]bool{}, pauses: map[types.UID]pause{}}
}

// record records whether a call for a claim was refused, so that it is not in progress.
func (m *memory) record(c *corev1.PersistentVolumeClaim, refused bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.refused, c.UID)
	delete(m.pauses, c.UID)
	if refused {
		m.refused[c.UID] = true
	}
}

func (m *memory) wasRefused(c *corev1.PersistentVolumeClaim) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.refused[c.UID]
}

// pause returns for how long a claim is left alone because its class was refused for good. The first call for a class
// starts the pause.
func (m *memory) pause(c *corev1.PersistentVolumeClaim) time.Duration {
	if !modify.IsRefusedForGood(c) {
		return 0
	}
	class := c.Status.ModifyVolumeStatus.TargetVolumeAttributesClassName
	m.mu.Lock()
	defer m.mu.Unlock()
	p, now := m.pauses[c.UID], time.Now()
	if p.class != class {
		p = pause{class: class, until: now.Add(refusedPause)}
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
