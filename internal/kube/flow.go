package kube

import (
	"net/http"

	"k8s.io/client-go/rest"
)

// maxWrites is how many writes of a process are in flight at most. An API server accepts 200
// concurrent writes from all its clients and answers the next one with 429 (retry after a second);
// a hundred keep it as busy as more would.
const maxWrites = 100

// Flow limits how many writes of a process are in flight at the same time. It does not limit their
// rate: the server does that. It is safe for concurrent use.
type Flow chan struct{}

// NewFlow returns a Flow with no write in flight.
func NewFlow() Flow { return make(Flow, maxWrites) }

// Limit makes the writes of a client's config wait until the Flow allows them.
func (f Flow) Limit(config *rest.Config) {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &limited{f, next} })
}

type limited struct {
	flow Flow
	next http.RoundTripper
}

// RoundTrip delays a write until fewer than maxWrites are in flight or the request's context ends.
func (b *limited) RoundTrip(req *http.Request) (*http.Response, error) {
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
