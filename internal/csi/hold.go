package csi

import (
	"context"
	"slices"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

// WithHold calls hold before each call of the controller service that deletes or unpublishes
// something. If hold fails, the driver is not called, and the call fails with ErrHeld. Nil disables
// it.
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
