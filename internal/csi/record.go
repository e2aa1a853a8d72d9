package csi

import (
	"context"
	"log/slog"
	"path"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

// slow is how long a call may take before it is worth a line in the log.
const slow = 10 * time.Second

// withLog writes each call to the log, without secrets: at level debug, or
// info when it was slow. Errors are returned, so they are details here.
func withLog(log *slog.Logger, d *Driver) decorator {
	return func(next invoker) invoker {
		return func(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
			start := time.Now()
			err := next(ctx, method, req, reply, opts...)
			took, level := time.Since(start), slog.LevelDebug
			if took > slow {
				level = slog.LevelInfo
			}
			log.LogAttrs(ctx, level, "driver was called", slog.String("driver", d.Name), slog.String("op", path.Base(method)),
				slog.Any("request", loggable{req}), slog.Duration("took", took), slog.String("err", Describe(err)))
			return err
		}
	}
}

// Observation is what is measured of one call: what the sidecars of today
// publish as csi_sidecar_operations_seconds.
type Observation struct {
	// Driver is the driver's name, empty until it has told it.
	Driver string
	// Method is the full name of the call, "/csi.v1.Node/NodeStageVolume".
	Method string
	Code   codes.Code
	Took   time.Duration
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
