package trace

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"volplane.dev/volplane/internal/csi"
)

// These limit what is remembered. A driver that is called often does not displace the calls of another one, as long as
// there is room for both.
const (
	maxAge     = time.Hour
	maxCalls   = 1000
	maxBytes   = 512 << 10
	maxAll     = 4 << 20
	maxDrivers = 256
	// overhead is about what a call takes in addition to its text, in bytes.
	overhead = 96
)

// Entry is a remembered call. Number counts the calls of the process to the driver: a gap means dropped calls.
type Entry struct {
	Number uint64 `json:"number"`
	csi.Call
}

// ring has the last calls to each driver. Its memory grows with the calls. It is safe for concurrent use.
type ring struct {
	mu      sync.Mutex
	drivers map[string]*history
	// bytes is the size of all calls.
	bytes int
	// last is the number of the last call to any driver.
	last uint64
	// added is closed when a call is added.
	added chan struct{}
}

// history has the last calls to one driver, oldest first.
type history struct {
	calls []kept
	bytes int
	// count is how many calls there were.
	count uint64
}

// kept is a call as a line of JSON.
type kept struct {
	// order is the number of the call among those to all drivers.
	order uint64
	at    time.Time
	line  []byte
}

func newRing() *ring { return &ring{drivers: map[string]*history{}, added: make(chan struct{})} }

func (r *ring) add(c csi.Call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := r.drivers[c.Driver]
	if h == nil {
		r.makeRoom()
		h = &history{}
		r.drivers[c.Driver] = h
	}
	h.count++
	line, err := json.Marshal(Entry{h.count, c})
	if err != nil {
		return // nothing in a call can fail, and if it did, its number would be missing
	}
	r.last++
	end := c.Time.Add(time.Duration(c.Seconds * float64(time.Second)))
	h.calls = append(h.calls, kept{r.last, end, append(line, '\n')})
	h.bytes += len(line) + overhead
	r.bytes += len(line) + overhead
	r.forget(end.Add(-maxAge))
	close(r.added)
	r.added = make(chan struct{})
}

// makeRoom forgets the driver that was not called for longest if there are too many.
func (r *ring) makeRoom() {
	if len(r.drivers) < maxDrivers {
		return
	}
	oldest, order := "", uint64(0)
	for name, h := range r.drivers {
		last := uint64(0)
		if n := len(h.calls); n > 0 {
			last = h.calls[n-1].order
		}
		if oldest == "" || last < order {
			oldest, order = name, last
		}
	}
	r.bytes -= r.drivers[oldest].bytes
	delete(r.drivers, oldest)
}

// forget drops entries that are older than a time, or exceed the limits.
func (r *ring) forget(before time.Time) {
	var largest *history
	for _, h := range r.drivers {
		for len(h.calls) > 0 && (len(h.calls) > maxCalls || h.bytes > maxBytes || h.calls[0].at.Before(before)) {
			r.drop(h)
		}
		if largest == nil || h.bytes > largest.bytes {
			largest = h
		}
	}
	for r.bytes > maxAll && len(largest.calls) > 0 {
		r.drop(largest)
	}
}

func (r *ring) drop(h *history) {
	n := len(h.calls[0].line) - 1 + overhead
	h.bytes -= n
	r.bytes -= n
	h.calls[0] = kept{}
	h.calls = h.calls[1:]
}

// since returns the calls to a driver after the one of that order, and the order of the last one. added is closed when
// there may be more.
func (r *ring) since(driver string, order uint64) (lines [][]byte, last uint64, added <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forget(time.Now().Add(-maxAge))
	if h := r.drivers[driver]; h != nil {
		for _, c := range h.calls {
			if c.order > order {
				lines = append(lines, c.line)
			}
		}
	}
	return lines, r.last, r.added
}

// follow writes the calls to a driver, and until ctx ends those that are added; without more, only those that there
// are.
func (r *ring) follow(ctx context.Context, driver string, more bool, write func(line []byte) error) error {
	for order := uint64(0); ; {
		lines, last, added := r.since(driver, order)
		order = last
		for _, line := range lines {
			if err := write(line); err != nil {
				return err
			}
		}
		if err := write(nil); err != nil || !more {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-added:
		}
	}
}
