package csi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
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

// withMetrics measures each call in seconds under the name and labels of
// today's sidecars. Drivers that share a registry share the histogram.
func withMetrics(registry prometheus.Registerer, d *Driver) (decorator, error) {
	seconds := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "csi_sidecar_operations_seconds",
		Help:    "Duration of calls of CSI drivers, by gRPC status code.",
		Buckets: []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600},
	}, []string{"driver_name", "method_name", "grpc_status_code", "migrated"})
	if err := registry.Register(seconds); err != nil {
		var already prometheus.AlreadyRegisteredError
		if !errors.As(err, &already) {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
		known, ok := already.ExistingCollector.(*prometheus.HistogramVec)
		if !ok {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
		seconds = known
	}
	return func(next invoker) invoker {
		return func(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
			start := time.Now()
			err := next(ctx, method, req, reply, opts...)
			name := d.Name
			if name == "" {
				name = "unknown-driver"
			}
			seconds.WithLabelValues(name, method, Code(err).String(), "false").Observe(time.Since(start).Seconds())
			return err
		}
	}, nil
}
