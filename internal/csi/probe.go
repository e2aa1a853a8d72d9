package csi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/status"
)

// Probe asks the driver at a socket, over a new connection, whether it is ready. An answer without the field counts as
// ready. Until ctx ends it waits for somebody who listens at the socket, because a driver may just be restarting. It
// may be repeated.
func Probe(ctx context.Context, socket string, opts ...Option) (ready bool, err error) {
	conn, err := awaitListener(ctx, socket)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	o := newOptions(socket, opts)
	o.dial = func(context.Context) (net.Conn, error) { return conn, nil }
	d := newDriver(socket, o)
	defer d.Close()
	r, err := d.IdentityClient().Probe(ctx, &csipb.ProbeRequest{})
	if err != nil {
		return false, status.Error(Code(err), line(status.Convert(err).Message()))
	}
	return r.GetReady() == nil || r.GetReady().GetValue(), nil
}

// awaitListener connects to a socket as soon as somebody listens there.
func awaitListener(ctx context.Context, socket string) (net.Conn, error) {
	connect := dialUnix(socket)
	for pause := probePause; ; pause = min(2*pause, maxProbePause) {
		conn, err := connect(ctx)
		if err == nil {
			return conn, nil
		}
		select {
		case <-time.After(pause):
			continue
		case <-ctx.Done():
		}
		if errors.Is(err, ctx.Err()) {
			return nil, fmt.Errorf("connect to driver at %s: %w", socket, err)
		}
		return nil, fmt.Errorf("%w: %w", ctx.Err(), err)
	}
}
