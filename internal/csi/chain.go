package csi

import (
	"cmp"
	"context"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
)

// An invoker makes one call. A decorator adds something to each call.
type (
	invoker   func(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error
	decorator func(next invoker) invoker
)

// options holds what Options have set.
type options struct {
	trace      func(Call)
	calls      *CallLog
	called     string
	controller time.Duration
	fault      func(ctx context.Context, driver, method string, call func() error) error
	witness    func(method string, reply any, err error)
	meter      func(driver, method, code string, took time.Duration)
	memory     *Memory
	hold       func(ctx context.Context) error
	locks      *VolumeLocks
	dial       func(context.Context) (net.Conn, error)
	nameOnly   bool
	nodeOnly   bool
	name       time.Duration
}

func newOptions(socket string, opts []Option) *options {
	o := &options{controller: controllerLimit, memory: NewMemory(nil), locks: NewVolumeLocks(), dial: dialUnix(socket)}
	for _, set := range opts {
		set(o)
	}
	return o
}

// Option configures the calls of a Driver.
type Option func(*options)

// WithTrace shows f each call after it has ended, without secrets. f must not block and may be called concurrently.
func WithTrace(f func(Call)) Option { return func(o *options) { o.trace = f } }

// WithExpectedName sets the driver's name for traces and faults until Dial has read it.
func WithExpectedName(name string) Option { return func(o *options) { o.called = name } }

// WithControllerTimeout limits the time of each call that has no deadline of its own, except
// CreateVolume and the node service, which have their own limits. The default is 15 s.
func WithControllerTimeout(limit time.Duration) Option {
	return func(o *options) { o.controller = limit }
}

// WithVolumeLocks serializes the calls for each volume with those of every Driver that has the same
// VolumeLocks. By default a Driver has its own.
func WithVolumeLocks(t *VolumeLocks) Option { return func(o *options) { o.locks = t } }

// WithDialer makes connections with dial instead of to the socket: tests reach a driver in memory.
func WithDialer(dial func(context.Context) (net.Conn, error)) Option {
	return func(o *options) { o.dial = dial }
}

// WithNameOnly makes Dial ask for the driver's name and version only, as soon as the driver answers. That is all that
// a registrar needs, and a driver that is not ready yet, or whose controller does not answer, can be registered.
func WithNameOnly() Option { return func(o *options) { o.nameOnly = true } }

// WithNameTimeout limits the time of each call of WithNameOnly, which is then repeated. The default is that of other
// calls.
func WithNameTimeout(limit time.Duration) Option { return func(o *options) { o.name = limit } }

// WithNodeOnly makes Dial skip the controller service: the driver has it at another socket, or not at all.
func WithNodeOnly() Option { return func(o *options) { o.nodeOnly = true } }

// WithWitness passes f each answer and each error as received from the driver: unchecked, and with secrets. It is for
// examining drivers, and f must not show what it receives. It may be called concurrently.
func WithWitness(f func(method string, reply any, err error)) Option {
	return func(o *options) { o.witness = f }
}

// WithMeter calls f after each call has ended, with the driver's name, empty if it is not known yet, the full name of
// the method, the gRPC code, and how long the driver took. f must not block and may be called concurrently.
func WithMeter(f func(driver, method, code string, took time.Duration)) Option {
	return func(o *options) { o.meter = f }
}

// WithFault has f replace each call. It may make the call, and returns its error, or one of Planted.
func WithFault(f func(ctx context.Context, driver, method string, call func() error) error) Option {
	return func(o *options) { o.fault = f }
}

// chain wraps the connection in the decorators, the outermost first. So the deadline includes the
// wait for the volume's lock, the traced time does not, and traces and the log are free of secrets and show faults.
func (o *options) chain(d *Driver, last invoker) invoker {
	all := []decorator{withDeadline(o.controller), withHold(o.hold), serialise(o.locks), checkTerm}
	name := func() string { return cmp.Or(d.Name, o.called) }
	if o.trace != nil {
		all = append(all, withTrace(o.trace, o.memory, name))
	}
	if o.calls != nil {
		all = append(all, withCallLog(o.calls, o.memory, name))
	}
	all = append(all, hideSecrets(o.memory, d), checkIDs, checkAnswer)
	if o.witness != nil {
		all = append(all, withWitness(o.witness))
	}
	if o.meter != nil {
		all = append(all, withMeter(o.meter, name))
	}
	if o.fault != nil {
		all = append(all, withFault(o.fault, name))
	}
	for i := len(all) - 1; i >= 0; i-- {
		last = all[i](last)
	}
	return last
}

func withWitness(witness func(method string, reply any, err error)) decorator {
	return func(next invoker) invoker {
		return func(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
			err := next(ctx, method, req, reply, opts...)
			witness(method, reply, err)
			return err
		}
	}
}

func withMeter(meter func(driver, method, code string, took time.Duration), name func() string) decorator {
	return func(next invoker) invoker {
		return func(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
			start := time.Now()
			err := next(ctx, method, req, reply, opts...)
			meter(name(), method, Code(err).String(), time.Since(start))
			return err
		}
	}
}

func withFault(
	fault func(ctx context.Context, driver, method string, call func() error) error, name func() string,
) decorator {
	return func(next invoker) invoker {
		return func(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
			return fault(ctx, name(), method, func() error { return next(ctx, method, req, reply, opts...) })
		}
	}
}

// These are the time limits of calls. After a limit the same call is repeated, which lets a slow driver continue its
// work.
const (
	// nodeLimit is for calls of the node service; it is a kubelet's limit.
	nodeLimit = 2 * time.Minute
	// controllerLimit is for other calls; it is the default of the external-attacher.
	controllerLimit = 15 * time.Second
	// createLimit is for CreateVolume, also if the caller allows more: the driver may have to copy
	// a volume, but the worker must become free again.
	createLimit = 5 * time.Minute
)

const methodCreateVolume = "/csi.v1.Controller/CreateVolume"

type (
	limitKey    struct{}
	ownLimitKey struct{}
)

// Limit limits the time of each single call that is made with the returned context, whatever its method is. It is the
// user's limit for the calls of a controller.
func Limit(ctx context.Context, limit time.Duration) context.Context {
	return context.WithValue(ctx, limitKey{}, limit)
}

// OwnLimit does the same for the caller's own reasons: a user's limit takes precedence.
func OwnLimit(ctx context.Context, limit time.Duration) context.Context {
	return context.WithValue(ctx, ownLimitKey{}, limit)
}

// limitOf returns the limit of a call; 0 if only its context limits it.
func limitOf(ctx context.Context, method string, controller time.Duration) time.Duration {
	for _, key := range []any{limitKey{}, ownLimitKey{}} {
		if limit, ok := ctx.Value(key).(time.Duration); ok {
			return limit
		}
	}
	_, has := ctx.Deadline()
	switch {
	case method == methodCreateVolume:
		return createLimit
	case has:
		return 0
	case strings.HasPrefix(method, "/csi.v1.Node/"):
		return nodeLimit
	}
	return controller
}

// withDeadline limits the time of each call. A caller's own deadline is kept, except that
// CreateVolume never takes longer than createLimit unless a user allows that.
func withDeadline(controller time.Duration) decorator {
	return func(next invoker) invoker {
		return func(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) error {
			limit := limitOf(ctx, method, controller)
			if limit == 0 {
				return next(ctx, method, req, reply, opts...)
			}
			ctx, cancel := context.WithTimeout(ctx, limit)
			defer cancel()
			return next(ctx, method, req, reply, opts...)
		}
	}
}
