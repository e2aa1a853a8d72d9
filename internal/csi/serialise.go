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
func serialise(next invoker) invoker {
	c := &calls{busy: map[string]chan struct{}{}}
	return func(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
		key := volumeOf(req)
		if key == "" {
			return next(ctx, method, req, reply, opts...)
		}
		if err := c.enter(ctx, key); err != nil {
			return refuse(codes.Aborted, ErrBusy, "")
		}
		defer c.leave(key)
		return next(ctx, method, req, reply, opts...)
	}
}

// volumeOf returns a key of the volume that a request is about. The prefixes
// keep names and ids apart.
func volumeOf(req any) string {
	switch r := req.(type) {
	case *csipb.CreateVolumeRequest:
		return "name " + r.GetName()
	case interface{ GetVolumeId() string }:
		if r.GetVolumeId() != "" {
			return "id " + r.GetVolumeId()
		}
	}
	return ""
}

// calls is a set of mutexes, one for each volume that has a call under way.
type calls struct {
	mu   sync.Mutex
	busy map[string]chan struct{}
}

func (c *calls) enter(ctx context.Context, key string) error {
	for {
		c.mu.Lock()
		wait, taken := c.busy[key]
		if !taken {
			c.busy[key] = make(chan struct{})
			c.mu.Unlock()
			return nil
		}
		c.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (c *calls) leave(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.busy[key])
	delete(c.busy, key)
}
