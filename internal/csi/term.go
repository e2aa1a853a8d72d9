package csi

import (
	"context"
	"maps"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"volplane.dev/volplane/internal/volume"
)

// In returns the driver for a controller of the volumes in a scope. Both share one connection.
func (d *Driver) In(scope volume.Scope) *Driver {
	scoped := *d
	scoped.Scope = scope
	return &scoped
}

// On returns the driver for the controllers of the volumes of the node that it runs on. It has told the node's topology
// segment. Both share one connection.
func (d *Driver) On(node string, segment map[string]string) *Driver {
	placed := d.In(volume.Scope{Node: node})
	placed.Place = map[string]string{}
	maps.Copy(placed.Place, segment)
	return placed
}

// Within returns the driver for a caller that may call it during a term only, as the holder of a lease may. Once term
// has ended, calls fail with ErrTerm; those in flight end with it, and their outcome is unknown. Both share one
// connection: to close or retire one of them does so for both.
func (d *Driver) Within(term context.Context) *Driver {
	limited := *d
	limited.service.call = withTerm(term)(d.service.call)
	return &limited
}

func withTerm(term context.Context) decorator {
	return func(next invoker) invoker {
		return func(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
			if term.Err() != nil {
				return refuse(codes.Unavailable, ErrTerm, "")
			}
			ctx, end := context.WithCancel(ctx)
			defer end()
			defer context.AfterFunc(term, end)()
			return next(ctx, method, req, reply, opts...)
		}
	}
}
