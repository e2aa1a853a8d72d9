package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/volume"
)

// Errors that callers distinguish.
var (
	// ErrNotSupported says that neither the driver nor the host can do the operation. It is final.
	ErrNotSupported = errors.New("the driver does not support it")
	// ErrChanged says that the executable is not the one that was probed; it was not started. It must be probed again.
	ErrChanged = errors.New("the driver's executable has changed since it was probed")
	// ErrExchanged says that the executable was replaced during the call: which program ran is unknown.
	ErrExchanged = errors.New("the driver's executable was exchanged while it was called")
)

// Options configure a Driver. The zero value is usable.
type Options struct {
	// Settings holds the administrator's settings for the driver.
	Settings decide.Settings
	// Calls is shared by all Drivers of one name, before and after an upgrade, so that their calls
	// are serialized. Nil creates one for this Driver.
	Calls *Calls
	// Cgroup is the directory of a cgroup v2 in which the executable is started (see Cgroup); if
	// empty, it is that of this process.
	Cgroup string
	// Traces is the directory of trace files, which EndLeft reads after this process was killed; if
	// empty, none are written.
	Traces string

	// ended is called by tests at the end of each call; nil otherwise.
	ended func(decide.Operation)
}

// CallError is the error of an operation that was not done.
type CallError struct {
	Driver decide.Name
	Op     decide.Operation
	// Outcome is volume.Failed or volume.Unknown.
	Outcome volume.Outcome
	// Message says why, in the driver's words if there are any. It holds no secret.
	Message string
	cause   error
}

// Error returns the driver's name, the operation and the message.
func (e *CallError) Error() string {
	return "driver " + e.Driver.String() + ": " + string(e.Op) + ": " + e.Message
}

// Unwrap returns the cause: ErrNotSupported, ErrChanged, an error of decide/flex or of a context, for example.
func (e *CallError) Unwrap() error { return e.cause }

// Driver is one executable in the version that was probed. It is safe for concurrent use.
type Driver struct {
	Name decide.Name
	// Path is the path of the executable and its argv[0]; drivers use its last component.
	Path string
	// Hash is the first 16 hexadecimal digits of the executable's SHA-256.
	Hash string
	// Capabilities are those that init returned.
	Capabilities decide.Capabilities

	o Options
	// dead detects filesystems whose server has ended.
	dead mount.Liveness

	mu sync.Mutex
	// file identifies the file that Hash is of.
	file identity
	// unsupported holds the optional operations that the driver has refused (H11).
	unsupported map[decide.Operation]bool
}

// Probe hashes an executable and starts it with init. If init fails, the Driver is returned
// together with the error, so that its Hash can be shown. It may be repeated.
func Probe(ctx context.Context, name decide.Name, path string, o Options) (*Driver, error) {
	d, err := Known(name, path, decide.Capabilities{}, o)
	if err != nil {
		return nil, err
	}
	a, err := d.Init(ctx)
	if errors.Is(err, ErrExchanged) {
		// The program that ran is unknown, but init changes nothing. The caller probes it again.
		err = d.fail(decide.OpInit, volume.Failed, ErrChanged)
	}
	d.Capabilities = a.Capabilities
	return d, err
}

// Known returns the Driver of an executable whose capabilities are known from an earlier init. It may be repeated.
func Known(name decide.Name, path string, can decide.Capabilities, o Options) (*Driver, error) {
	o.Calls = cmp.Or(o.Calls, &Calls{})
	file, hash, err := identify(path)
	if err != nil {
		return nil, fmt.Errorf("stat driver %s: %w", name, err)
	}
	return &Driver{
		Name: name, Path: path, Hash: hash, Capabilities: can, o: o, file: file, unsupported: map[decide.Operation]bool{},
	}, nil
}

// Init starts the driver with init and returns its answer.
func (d *Driver) Init(ctx context.Context) (decide.Answer, error) {
	return d.ask(ctx, call{op: decide.OpInit, key: "init of " + d.Hash})
}

// fail returns the error of an operation.
func (d *Driver) fail(op decide.Operation, outcome volume.Outcome, err error) error {
	return &CallError{Driver: d.Name, Op: op, Outcome: outcome, Message: err.Error(), cause: err}
}
