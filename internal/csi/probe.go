package csi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/status"
)

// Probe asks the driver at a socket, over a new connection, whether it is ready. An answer without the field counts as
// ready. Until ctx ends it waits for a listener at the socket, because the driver may be restarting. It may be
// repeated.
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

// awaitListener connects to a socket as soon as there is a listener.
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

const (
	// awaitPause limits one attempt of Await to reach a driver.
	awaitPause = 5 * time.Second
	// maxSilence is the longest interval of the notices of a driver that does not answer.
	maxSilence = 10 * time.Minute
)

// Await waits until a driver answers at a socket, and returns it as Dial does (S3-007). It fails only if ctx ends or
// the driver has an invalid name. It calls notReady with the cause while the driver is not ready, less and less often.
// It may be repeated.
func Await(ctx context.Context, socket string, notReady func(cause error), opts ...Option) (*Driver, error) {
	silence, told := awaitPause, time.Now()
	for {
		try, cancel := context.WithTimeout(ctx, awaitPause)
		d, err := Dial(try, socket, opts...)
		if err == nil || errors.Is(err, ErrName) {
			cancel()
			return d, err
		}
		<-try.Done()
		cancel()
		if ctx.Err() != nil {
			return nil, err
		}
		if time.Since(told) >= silence {
			notReady(err)
			silence, told = min(2*silence, maxSilence), time.Now()
		}
	}
}

// LogNotReady returns a function for Await that writes a warning to a log.
func LogNotReady(log *slog.Logger, socket string) func(cause error) {
	return func(cause error) { log.Warn("the driver does not answer yet", "socket", socket, "err", cause) }
}
