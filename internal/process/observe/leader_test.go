package observe

import (
	"errors"
	"testing"
)

// led is a process with one lease.
type led struct {
	holds bool
	err   error
}

func (l *led) Check() error          { return l.err }
func (l *led) Held() map[string]bool { return map[string]bool{"l": l.holds} }

func (l *led) Reread() map[string]int64 { return map[string]int64{"l": 3} }

// TestLeading: the registry reports the state of the process's leases.
func TestLeading(t *testing.T) {
	r, l := New(""), &led{}
	if err := r.wellLed(); err != nil {
		t.Errorf("without leases: %v", err)
	}
	r.Follow(l)
	has(t, r, `leader_election_master_status{name="l"} 0`)
	has(t, r, "# TYPE leader_election_slowpath_total counter")
	has(t, r, `leader_election_slowpath_total{name="l"} 3`)
	l.holds, l.err = true, errors.New("late")
	has(t, r, `leader_election_master_status{name="l"} 1`)
	if err := r.wellLed(); !errors.Is(err, l.err) {
		t.Errorf("%v is not told", l.err)
	}
}
