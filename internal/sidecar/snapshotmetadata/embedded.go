package snapshotmetadata

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
)

// Path is how the paths of the service's methods begin.
const Path = "/snapshotmetadata.SnapshotMetadata/"

// Embedded serves the service at the listener of an HTTP server, which has TLS and HTTP/2. It finds out itself who a
// client is.
type Embedded struct {
	slots *slots
	// now is what serves; nil if nothing does.
	now atomic.Pointer[serving]
}

// serving is a server, how long a stream of it may take, and a context that ends with the service.
type serving struct {
	*grpc.Server
	limit time.Duration
	ctx   context.Context
}

// NewEmbedded returns one that refuses all requests until Run is called.
func NewEmbedded() *Embedded { return &Embedded{slots: newSlots(mostOpen, mostPerClient)} }

// Run answers requests until ctx ends, which ends the streams, too. It may be repeated.
func (e *Embedded) Run(ctx context.Context, o Options) {
	s := &serving{newServer(o), o.Limit, ctx}
	e.now.Store(s)
	<-ctx.Done()
	e.now.Store(nil)
	s.Stop()
}

// ServeHTTP serves one request.
func (e *Embedded) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s := e.now.Load()
	if s == nil {
		refuse(w)
		return
	}
	giveBack := e.slots.take(r.RemoteAddr)
	if giveBack == nil {
		refuse(w)
		return
	}
	defer giveBack()
	defer s.limitWrites(w)()
	// gRPC reads ahead, into memory, all that a client sends.
	r.Body = http.MaxBytesReader(w, r.Body, 2*requestSize)
	s.ServeHTTP(w, r)
}

// limitWrites ends the writes of a response that its client does not read: after the time that a stream may take, and
// when the service ends. A request of this process itself has no deadlines. The function that it returns must be called
// before the response ends.
func (s *serving) limitWrites(w http.ResponseWriter) (release func()) {
	response := http.NewResponseController(w)
	_ = response.SetWriteDeadline(time.Now().Add(requestLimit + reviewLimit + s.limit))
	ended := make(chan struct{})
	stop := context.AfterFunc(s.ctx, func() {
		defer close(ended)
		_ = response.SetWriteDeadline(time.Now())
	})
	return func() {
		if !stop() {
			<-ended // no deadline may be set after the response
		}
	}
}

// refuse answers what a gRPC client sees as UNAVAILABLE.
func refuse(w http.ResponseWriter) {
	http.Error(w, "no more requests are served now; try again later", http.StatusServiceUnavailable)
}
