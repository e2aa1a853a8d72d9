package healthz

import (
	"context"
	"net/http"
	"sync"
	"time"
)

// shared makes one check at a time. A request that arrives while it is made gets its answer, so that a driver which
// hangs costs one call and not one for each request.
type shared struct {
	limit time.Duration
	check func(ctx context.Context) (code int, text string)

	mu      sync.Mutex
	running *result
}

// result is that of a check, when done is closed.
type result struct {
	done chan struct{}
	code int
	text string
}

// Check returns a handler that makes a check, within a time limit, for each request that arrives while none is made.
// The check must return when its context ends.
func Check(limit time.Duration, check func(ctx context.Context) (code int, text string)) http.HandlerFunc {
	s := &shared{limit: limit, check: check}
	return func(w http.ResponseWriter, req *http.Request) {
		r := s.join(context.WithoutCancel(req.Context()))
		select {
		case <-r.done:
			Text(w, r.code, r.text)
		case <-req.Context().Done():
			Text(w, http.StatusServiceUnavailable, "the program ends")
		}
	}
}

// join returns the check that is made, or starts one.
func (s *shared) join(ctx context.Context) *result {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running != nil {
		return s.running
	}
	r := &result{done: make(chan struct{})}
	s.running = r
	go func() {
		ctx, cancel := context.WithTimeout(ctx, s.limit)
		defer cancel()
		r.code, r.text = s.check(ctx)
		s.mu.Lock()
		s.running = nil
		s.mu.Unlock()
		close(r.done)
	}()
	return r
}
