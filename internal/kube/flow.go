package kube

import (
	"net/http"

	"k8s.io/client-go/rest"
)

// crowded is how many writes of a process are under way at most. An API server
// takes 200 of all its clients, refuses the next one, and has it wait for a
// second; a hundred keep it as busy as more would.
const crowded = 100

// Flow bounds how many writes of a process are under way at once: not their
// rate, which is the server's to say. It is safe for concurrent use.
type Flow chan struct{}

// NewFlow returns a flow in which nothing is under way.
func NewFlow() Flow { return make(Flow, crowded) }

// Bound has the writes of a client wait for their turn.
func (f Flow) Bound(config *rest.Config) {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &bounded{f, next} })
}

type bounded struct {
	flow Flow
	next http.RoundTripper
}

// RoundTrip waits before a write until fewer are under way, or its context ends.
func (b *bounded) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method == http.MethodGet {
		return b.next.RoundTrip(req)
	}
	select {
	case b.flow <- struct{}{}:
		defer func() { <-b.flow }()
		return b.next.RoundTrip(req)
	case <-req.Context().Done():
		return nil, req.Context().Err()
	}
}
