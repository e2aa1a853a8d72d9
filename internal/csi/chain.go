package csi

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/grpc"
)

// invoker makes one call; decorator adds something to all calls.
type (
	invoker   func(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error
	decorator func(next invoker) invoker
)

// options is what Options set.
type options struct {
	log        *slog.Logger
	observe    func(Observation)
	controller time.Duration
	fault      func(method string, call func() error) error
	memory     *Memory
	hold       func(ctx context.Context) error
	turns      *Turns
}

// Option changes how a Driver makes its calls.
type Option func(*options)

// WithLog has each call written to log at level debug (slow ones at info),
// without secrets.
func WithLog(log *slog.Logger) Option { return func(o *options) { o.log = log } }

// WithObserver has f called after each call, for metrics. f must not block and
// may be called concurrently.
func WithObserver(f func(Observation)) Option { return func(o *options) { o.observe = f } }

// WithControllerTimeout bounds calls that are neither of the node service nor
// CreateVolume and whose context has no deadline; the default is 15 s.
func WithControllerTimeout(limit time.Duration) Option {
	return func(o *options) { o.controller = limit }
}

// WithTurns has the calls take turns at each volume with those of every Driver
// that has the same Turns; the default is turns of its own.
func WithTurns(t *Turns) Option { return func(o *options) { o.turns = t } }

// WithFault is for tests: f stands in the place of each call, makes it or not,
// and returns how it went.
func WithFault(f func(method string, call func() error) error) Option {
	return func(o *options) { o.fault = f }
}

// chain puts the decorators around the connection, the outermost first: the
// time limit covers the wait for a turn, the records do not, and nothing that
// is recorded has secrets.
func (o *options) chain(d *Driver, last invoker) invoker {
	all := []decorator{withDeadline(o.controller), withHold(o.hold), serialise(o.turns)}
	if o.observe != nil {
		all = append(all, withObserver(o.observe, d))
	}
	if o.log != nil {
		all = append(all, withLog(o.log, d))
	}
	all = append(all, hideSecrets(o.memory, d), checkIDs, checkAnswer)
	if o.fault != nil {
		all = append(all, withFault(o.fault))
	}
	for i := len(all) - 1; i >= 0; i-- {
		last = all[i](last)
	}
	return last
}

func withFault(fault func(method string, call func() error) error) decorator {
	return func(next invoker) invoker {
		return func(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
			return fault(method, func() error { return next(ctx, method, req, reply, opts...) })
		}
	}
}
