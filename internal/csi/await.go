package csi

import (
	"context"
	"errors"
	"time"
)

const (
	// awaitPause limits one attempt of Await to reach a driver.
	awaitPause = 10 * time.Second
	// maxSilence is the longest interval of the notices of a driver that does not answer.
	maxSilence = 10 * time.Minute
)

// Await waits until a driver answers at a socket, and returns it as Dial does (S3-007). It fails only if ctx ends or
// the driver has an invalid name. It calls silent with the cause while the driver does not answer, less and less often.
// It may be repeated.
func Await(ctx context.Context, socket string, silent func(cause error), opts ...Option) (*Driver, error) {
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
			silent(err)
			silence, told = min(2*silence, maxSilence), time.Now()
		}
	}
}
