package observe

import (
	"sync"
	"time"
)

// paceTime is the time over which calls are counted for a pace, in so many slots.
const (
	paceTime  = time.Minute
	paceSlots = 6
	paceSlot  = paceTime / paceSlots
)

// pace counts the calls of drivers in the last minute.
type pace struct {
	mu  sync.Mutex
	all map[string]*calls
}

// calls are those of one driver, by the slot in which they ended; numbers says which slot an entry counts.
type calls struct{ numbers, counts [paceSlots]int64 }

func (p *pace) count(driver string, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all == nil {
		p.all = map[string]*calls{}
	}
	c := p.all[driver]
	if c == nil {
		c = &calls{}
		p.all[driver] = c
	}
	number := now.UnixNano() / int64(paceSlot)
	i := number % paceSlots
	if c.numbers[i] != number {
		c.numbers[i], c.counts[i] = number, 0
	}
	c.counts[i]++
}

func (p *pace) at(now time.Time) map[string]float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	oldest, out := now.UnixNano()/int64(paceSlot)-paceSlots, map[string]float64{}
	for driver, c := range p.all {
		n := int64(0)
		for i, number := range c.numbers {
			if number > oldest {
				n += c.counts[i]
			}
		}
		out[driver] = float64(n) / paceTime.Seconds()
	}
	return out
}

// Pace returns how many calls of each driver have ended in a second, on average over the last minute. Drivers that
// were never called are left out.
func (r *Registry) Pace() map[string]float64 { return r.pace.at(time.Now()) }

// gauges are the functions that set gauges, by name.
type gauges struct{ sync.Map }

// Values calls set with the present values of a gauge; never if no function sets the gauge.
func (r *Registry) Values(name string, set Set) {
	if g, ok := r.gauges.Load(name); ok {
		g.(gaugeFunc).set(set)
	}
}
