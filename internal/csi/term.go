package csi

import (
	"context"
	"maps"
	"slices"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
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

// On returns the driver for the controllers of the volumes of the node that it runs on. The driver reported the node's
// topology segment. Both share one connection.
func (d *Driver) On(node string, segment map[string]string) *Driver {
	placed := d.In(volume.Scope{Node: node})
	placed.Place = map[string]string{}
	maps.Copy(placed.Place, segment)
	return placed
}

// Within returns the driver for a caller that may call it during a term only, as the holder of a lease may. Once term
// has ended, calls fail with ErrTerm; those in flight end with it, and their outcome is unknown. Calls also fail with
// ErrTerm when certain returns false: after a suspension, the clock shows that the term may be over before it can be
// ended. Both drivers share one connection: closing or retiring one affects both.
func (d *Driver) Within(term context.Context, certain func() bool) *Driver {
	limited := *d
	limited.service.call = withTerm(term, certain)(d.service.call)
	return &limited
}

// lastsKey is the context key of the function that says whether a call's term lasts.
type lastsKey struct{}

func withTerm(term context.Context, certain func() bool) decorator {
	lasts := func() bool { return term.Err() == nil && certain() }
	return func(next invoker) invoker {
		return func(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
			ctx, end := context.WithCancel(context.WithValue(ctx, lastsKey{}, lasts))
			defer end()
			defer context.AfterFunc(term, end)()
			if !lasts() {
				return refuse(codes.Unavailable, ErrTerm, "")
			}
			return next(ctx, method, req, reply, opts...)
		}
	}
}

// checkTerm refuses a call whose term has ended while it waited for another one.
func checkTerm(next invoker) invoker {
	return func(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
		if lasts, limited := ctx.Value(lastsKey{}).(func() bool); limited && !lasts() {
			return refuse(codes.Unavailable, ErrTerm, "")
		}
		return next(ctx, method, req, reply, opts...)
	}
}

// WithHold calls hold before each call of the controller service that deletes or unpublishes something. If hold fails,
// the driver is not called, and the call fails with ErrHeld. Nil disables it.
func WithHold(hold func(ctx context.Context) error) Option {
	return func(o *options) { o.hold = hold }
}

func withHold(hold func(ctx context.Context) error) decorator {
	destructive := []string{
		csipb.Controller_DeleteVolume_FullMethodName, csipb.Controller_ControllerUnpublishVolume_FullMethodName,
		csipb.Controller_DeleteSnapshot_FullMethodName, csipb.GroupController_DeleteVolumeGroupSnapshot_FullMethodName,
	}
	return func(next invoker) invoker {
		return func(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
			if hold != nil && slices.Contains(destructive, method) {
				if err := hold(ctx); err != nil {
					return refuse(codes.Unavailable, ErrHeld, err.Error())
				}
			}
			return next(ctx, method, req, reply, opts...)
		}
	}
}
