package driver

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/volume"
)

// Reasons that a caller tells apart.
var (
	// ErrNotSupported says that the driver leaves the operation to the host and
	// the host cannot do it either. It is final.
	ErrNotSupported = errors.New("the driver does not support it")
	// ErrChanged says that the executable is not the one that was probed; it was
	// not started. Probe it anew.
	ErrChanged = errors.New("the driver's executable has changed since it was probed")
	// ErrExchanged says that it has changed while it was called: nobody knows
	// which program ran.
	ErrExchanged = errors.New("the driver's executable was exchanged while it was called")
)

// Options are how a Driver is called. The zero value is usable.
type Options struct {
	// Settings are the administrator's.
	Settings decide.Settings
	// Calls joins calls of all Drivers that share it: those of one name before
	// and after an upgrade must. Nil makes one for this Driver only.
	Calls *Calls
	// Observe, if any, is told of each call when it has ended. It may be called
	// by many at once.
	Observe func(Call)
	// Cgroup is a directory of cgroup v2 in which the executable is started
	// (Cgroup); empty starts it where we are.
	Cgroup string
	// Traces is a directory in which calls are written down while they run, for
	// EndLeft when we are killed; empty writes nothing.
	Traces string
}

// Call is one start of a driver, for observers.
type Call struct {
	Driver decide.Name
	Op     decide.Operation
	// Args are the arguments after the operation, those of mount without the
	// secrets.
	Args []string
	Took time.Duration
	// Exit is the exit code, -1 when a signal ended it or it did not start.
	Exit int
	// Status is the driver's word; empty when there was no answer, which Err
	// tells then. Err holds no secret.
	Status decide.Status
	Err    string
}

// CallError is a call that was not done.
type CallError struct {
	Driver decide.Name
	Op     decide.Operation
	// Outcome is volume.Failed or volume.Unknown.
	Outcome volume.Outcome
	// Message says why, in the driver's words where it has any, without secrets.
	Message string
	cause   error
}

// Error names driver, operation and cause.
func (e *CallError) Error() string {
	return "driver " + e.Driver.String() + ": " + string(e.Op) + ": " + e.Message
}

// Unwrap returns the cause: ErrNotSupported, ErrChanged, an error of decide/flex
// or of a context, for example.
func (e *CallError) Unwrap() error { return e.cause }

// Driver is one executable as it was when it was probed. It is safe for
// concurrent use.
type Driver struct {
	Name decide.Name
	// Path is the executable's and its argv[0]; drivers look at its last
	// component.
	Path string
	// Hash is the start of the executable's SHA-256, 16 hexadecimal digits.
	Hash string
	// Capabilities are what init said.
	Capabilities decide.Capabilities

	o Options
	// dead finds filesystems whose server is gone.
	dead mount.Liveness

	mu sync.Mutex
	// file is the executable that Hash is of.
	file identity
	// unsupported are optional operations that the driver refused (H11).
	unsupported map[decide.Operation]bool
}

// Probe looks at an executable and starts it with init. The Driver is returned
// with an error of init as well, so that its Hash can be shown.
func Probe(ctx context.Context, name decide.Name, path string, o Options) (*Driver, error) {
	d, err := Known(name, path, decide.Capabilities{}, o)
	if err != nil {
		return nil, err
	}
	a, err := d.Init(ctx)
	if errors.Is(err, ErrExchanged) {
		// It has done nothing, and is probed anew.
		err = d.fail(decide.OpInit, volume.Failed, ErrChanged)
	}
	d.Capabilities = a.Capabilities
	return d, err
}

// Known looks at an executable of which an earlier init has said what it can do.
func Known(name decide.Name, path string, can decide.Capabilities, o Options) (*Driver, error) {
	if o.Calls == nil {
		o.Calls = &Calls{}
	}
	file, hash, err := look(path)
	if err != nil {
		return nil, fmt.Errorf("look at driver %s: %w", name, err)
	}
	return &Driver{
		Name: name, Path: path, Hash: hash, Capabilities: can, o: o, file: file, unsupported: map[decide.Operation]bool{},
	}, nil
}

// Init starts the driver with init once more and returns its answer.
func (d *Driver) Init(ctx context.Context) (decide.Answer, error) {
	return d.ask(ctx, call{op: decide.OpInit, key: "init of " + d.Hash})
}

// fail makes the error of an operation.
func (d *Driver) fail(op decide.Operation, outcome volume.Outcome, err error) error {
	return &CallError{Driver: d.Name, Op: op, Outcome: outcome, Message: err.Error(), cause: err}
}
