package csi

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

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
