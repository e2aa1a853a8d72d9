package healthz

import (
	"context"
	"net/http"
	"net/url"
	"sync"
	"time"
)

// Answer is what a path answers.
type Answer struct {
	// Code is the HTTP status.
	Code int
	// Type is the content type; empty means plain text.
	Type string
	Body []byte
}

// Respond answers a request for a path. It must return when ctx ends.
type Respond func(ctx context.Context, query url.Values) Answer

// Text returns an answer in plain text.
func Text(code int, text string) Answer { return Answer{Code: code, Body: []byte(text)} }

// shared makes one check at a time. Who asks while it is made gets its answer, so that a driver which hangs costs one
// connection and not one for each request.
type shared struct {
	limit time.Duration
	check func(ctx context.Context) Answer

	mu      sync.Mutex
	running *result
}

// result is that of a check, when done is closed.
type result struct {
	done   chan struct{}
	answer Answer
}

// Check returns a Respond that makes a check, within a time limit, for each request that comes while none is made. The
// check must return when its context ends.
func Check(limit time.Duration, check func(ctx context.Context) Answer) Respond {
	s := &shared{limit: limit, check: check}
	return func(ctx context.Context, _ url.Values) Answer {
		r := s.join(ctx)
		select {
		case <-r.done:
			return r.answer
		case <-ctx.Done():
			return Text(http.StatusServiceUnavailable, "the program ends")
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
		r.answer = s.check(ctx)
		s.mu.Lock()
		s.running = nil
		s.mu.Unlock()
		close(r.done)
	}()
	return r
}
