package csi

import (
	"context"
	"sync"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

// serialise lets one call at a time through for each volume, as CSI asks of
// its callers. Who waits in vain gets Aborted, which is CSI's code for it: the
// call that is under way may still have its effect.
func serialise(t *Turns) decorator {
	return func(next invoker) invoker {
		return func(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
			key := volumeOf(req)
			if key == "" {
				return next(ctx, method, req, reply, opts...)
			}
			if err := t.enter(ctx, key); err != nil {
				return refuse(codes.Aborted, ErrBusy, "")
			}
			defer t.leave(key)
			return next(ctx, method, req, reply, opts...)
		}
	}
}

// volumeOf returns a key of the volume that a request is about. The prefixes
// keep names and ids apart.
func volumeOf(req any) string {
	if r, ok := req.(*csipb.CreateVolumeRequest); ok {
		return "name " + r.GetName()
	}
	if id := idOf(req); id != "" {
		return "id " + id
	}
	return ""
}

// Turns has the calls for each volume come one after the other. Drivers that
// share it, because one takes the place of another, take turns with each other.
type Turns struct {
	mu sync.Mutex
	// busy are the volumes that have a call under way.
	busy map[string]chan struct{}
}

// NewTurns returns one at which nothing is under way.
func NewTurns() *Turns { return &Turns{busy: map[string]chan struct{}{}} }

func (t *Turns) enter(ctx context.Context, key string) error {
	for {
		t.mu.Lock()
		wait, taken := t.busy[key]
		if !taken {
			t.busy[key] = make(chan struct{})
			t.mu.Unlock()
			return nil
		}
		t.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (t *Turns) leave(key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	close(t.busy[key])
	delete(t.busy, key)
}
