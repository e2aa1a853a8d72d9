package csi

import (
	"cmp"
	"context"
	"net"
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
