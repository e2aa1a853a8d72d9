package nodesidecar

import (
	"cmp"
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/process/healthz"
	"volplane.dev/volplane/internal/process/lifecycle"
	"volplane.dev/volplane/internal/sidecar"
)

// The defaults of the liveness probe.
const (
	livenessAddress = "0.0.0.0:9808"
	livenessTimeout = 3 * time.Second
)

// Liveness answers whether a driver is ready, and how long its probes took, until ctx ends: each answer is that of a
// new connection. Before the driver answers for the first time, the answer is that it does not. Liveness fails if it
// cannot listen, or if the driver has an invalid name.
func Liveness(ctx context.Context, o sidecar.LivenessOptions) error {
	o.Address, o.Timeout = cmp.Or(o.Address, livenessAddress), cmp.Or(o.Timeout, livenessTimeout)
	l := &liveness{LivenessOptions: o}
	servers := map[string]healthz.Paths{o.Address: {"/healthz": healthz.Check(o.Timeout, l.check)}}
	for _, h := range o.HTTP {
		if servers[h.Address] == nil {
			servers[h.Address] = healthz.Paths{}
		}
		servers[h.Address][cmp.Or(h.MetricsPath, "/metrics")] = l.metrics.answer
	}
	var all []lifecycle.Part
	for address, paths := range servers {
		all = append(all, lifecycle.Part{Name: "health", Run: func(ctx context.Context) error {
			return healthz.Serve(ctx, address, paths, o.Log)
		}})
	}
	return lifecycle.Run(ctx, o.Log, append(all, lifecycle.Part{Name: "driver", Run: l.meet}))
}

// liveness is a running liveness probe.
type liveness struct {
	sidecar.LivenessOptions
	metrics metrics
	// driver is the driver's name, once it is known.
	driver atomic.Pointer[string]
	// told is the last text that was logged. Only one check at a time reads and writes it.
	told string
}

// meet waits for the driver and its name, says so, and then waits until ctx ends.
func (l *liveness) meet(ctx context.Context) error {
	d, err := csi.Await(ctx, l.Socket, csi.LogNotReady(l.Log, l.Socket), csi.WithNameOnly(),
		csi.WithNameTimeout(l.Timeout))
	if ctx.Err() != nil {
		return nil //nolint:nilerr // a requested end is not a failure
	}
	if err != nil {
		return err
	}
	l.Log.Info("the driver answers", "driver", d.Name, "socket", l.Socket)
	l.driver.Store(&d.Name)
	_ = d.Close()
	<-ctx.Done()
	return nil
}

// check asks the driver once, and writes into the log what has changed.
func (l *liveness) check(ctx context.Context) healthz.Answer {
	opts := []csi.Option{csi.WithMeter(l.metrics.call)}
	if name := l.driver.Load(); name != nil {
		opts = append(opts, csi.WithExpectedName(*name))
	}
	ready, err := csi.Probe(ctx, l.Socket, opts...)
	code, text := http.StatusInternalServerError, "driver responded but is not ready"
	switch {
	case err != nil:
		text = err.Error()
	case ready:
		code, text = http.StatusOK, "ok"
	}
	switch {
	case text == l.told:
	case code == http.StatusOK:
		l.Log.Info("the driver is ready", "socket", l.Socket)
	default:
		l.Log.Warn("the driver is not ready", "socket", l.Socket, "err", text)
	}
	l.told = text
	return healthz.Text(code, text)
}
