package controller

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Refusals remembers facts about claims that no object has: what the last call was refused for, and until when a
// permanent refusal is left alone. Without it, as after a restart, a controller assumes that a call is in progress, or
// repeats it.
type Refusals struct {
	mu      sync.Mutex
	refused map[types.UID]string
	pauses  map[types.UID]pause
}

// pause belongs to one refused request: another request starts another pause.
type pause struct {
	what  string
	until time.Time
}

// NewRefusals returns an empty memory.
func NewRefusals() *Refusals {
	return &Refusals{refused: map[types.UID]string{}, pauses: map[types.UID]pause{}}
}

// Record records whether the last call for a claim was refused, and for what. Every other end of a call cancels an
// earlier refusal, because that call may have taken effect.
func (r *Refusals) Record(claim types.UID, what string, refused bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.refused, claim)
	if refused {
		r.refused[claim] = what
	}
}

// Has says whether the last call for a claim was refused for this.
func (r *Refusals) Has(claim types.UID, what string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	of, refused := r.refused[claim]
	return refused && of == what
}

// Pause returns how long a claim is left alone because of a permanent refusal. The first call starts the pause.
func (r *Refusals) Pause(claim types.UID, what string, length time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	p, now := r.pauses[claim], time.Now()
	if p.what != what {
		p = pause{what: what, until: now.Add(length)}
		r.pauses[claim] = p
	}
	return max(0, p.until.Sub(now))
}

// Forget forgets a claim.
func (r *Refusals) Forget(claim types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.refused, claim)
	delete(r.pauses, claim)
}
