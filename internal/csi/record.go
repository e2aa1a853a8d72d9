package csi

import (
	"context"
	"log/slog"
	"path"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

// slowCall is how long a call may take before it is logged at level info.
const slowCall = 10 * time.Second

// withLog logs each call without secrets. Since the error is returned as well, it is not logged as
// an error.
func withLog(log *slog.Logger, d *Driver) decorator {
	return func(next invoker) invoker {
		return func(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
			start := time.Now()
			err := next(ctx, method, req, reply, opts...)
			took, level := time.Since(start), slog.LevelDebug
			if took > slowCall {
				level = slog.LevelInfo
			}
			log.LogAttrs(ctx, level, "driver was called", slog.String("driver", d.Name), slog.String("op", path.Base(method)),
				slog.Any("request", loggable{req}), slog.Duration("took", took), slog.String("err", Describe(err)))
			return err
		}
	}
}

// Observation is the measurement of one call. Upstream's sidecars publish the same as
// csi_sidecar_operations_seconds.
type Observation struct {
	// Driver is the driver's name, empty until Dial has read it.
	Driver string
	// Method is the full name of the gRPC method, "/csi.v1.Node/NodeStageVolume".
	Method string
	Code   codes.Code
	// Took is how long the call took, without the wait for the volume's lock.
	Took time.Duration
}

func withObserver(observe func(Observation), d *Driver) decorator {
	return func(next invoker) invoker {
		return func(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
			start := time.Now()
			err := next(ctx, method, req, reply, opts...)
			observe(Observation{Driver: d.Name, Method: method, Code: Code(err), Took: time.Since(start)})
			return err
		}
	}
}
