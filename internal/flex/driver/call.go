package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/process/redact"
	"volplane.dev/volplane/internal/volume"
)

// call is one operation and its arguments.
type call struct {
	op decide.Operation
	// key names the object of the call: the driver is never called twice at the same time for one
	// object.
	key string
	// args are the arguments after the operation.
	args []string
	// volume is the volume's name, if key has the driver's name of the volume.
	volume string
	// secrets holds the values that must not appear in any text.
	secrets map[string]string
	// keep is that of task.
	keep bool
}

// task returns a task that makes the call by do.
func (d *Driver) task(c call, do func(ctx context.Context, overdue func()) (any, error)) task {
	what := append([]string{string(c.op)}, c.args...)
	return task{key: d.Name.String() + " " + c.key, what: strings.Join(what, "\x00"), keep: c.keep, do: do}
}

// ask makes a call that mounts nothing. A failure that the driver reports is an error; the answer
// that it does not support the operation is not.
func (d *Driver) ask(ctx context.Context, c call) (decide.Answer, error) {
	result, err := d.o.Calls.join(ctx, d.task(c, func(_ context.Context, overdue func()) (any, error) {
		a, err := d.start(c, overdue)
		switch {
		case isNotStarted(err):
			return a, d.fail(c.op, volume.Failed, err)
		case err != nil:
			// The driver's answer is unusable, so the outcome is unknown.
			return a, d.fail(c.op, volume.Unknown, err)
		case a.Status == decide.Failure:
			return a, d.fail(c.op, volume.Failed, failure(a))
		case a.Status == decide.NotSupported && c.op == decide.OpInit:
			return a, d.fail(c.op, volume.Failed, ErrNotSupported)
		}
		return a, nil
	}))
	if err != nil {
		return decide.Answer{}, d.stillRunning(c.op, err)
	}
	return result.(decide.Answer), nil
}

// isNotStarted says whether the driver was not started, so that it has done nothing.
func isNotStarted(err error) bool { return errors.Is(err, errNotStarted) || errors.Is(err, ErrChanged) }

// stillRunning returns the error of a call that continues after its caller has stopped
// waiting because of err.
func (d *Driver) stillRunning(op decide.Operation, err error) error {
	var own *CallError
	if errors.As(err, &own) {
		return err
	}
	return d.fail(op, volume.Unknown, fmt.Errorf("it has not ended: %w", err))
}

// failure returns the error that a driver has reported.
func failure(a decide.Answer) error {
	if a.Message == "" {
		return errors.New("the driver failed and gives no reason")
	}
	return errors.New(a.Message)
}

// start starts the driver once. Its results hold no secret.
func (d *Driver) start(c call, overdue func()) (decide.Answer, error) {
	if d.isUnsupported(c.op) {
		return decide.Answer{Status: decide.NotSupported}, nil
	}
	checked, err := d.open()
	if err != nil {
		return decide.Answer{}, err
	}
	defer checked.Close()
	d.o.Calls.secrets.AddData(c.secrets)
	traced, err := d.openTrace(c)
	if err != nil {
		traced.close()
		return decide.Answer{}, fmt.Errorf("%w: %w", errNotStarted, err)
	}
	p := process{
		program: checked, args: append([]string{string(c.op)}, c.args...), cgroup: d.o.Cgroup, trace: traced,
		limit: d.o.Settings.Limit(c.op), overdue: overdue,
	}
	e, err := p.run()
	traced.close()
	a := decide.Answer{}
	if err == nil {
		a, err = decide.ParseAnswer(c.op, e.exit, e.stdout, e.stderr)
	}
	a.Message = decide.Redact(a.Message, &d.o.Calls.secrets)
	switch {
	case err != nil && !errors.Is(err, errNotStarted):
		err = e.explain(err, &d.o.Calls.secrets)
	case a.Status == decide.NotSupported && c.op.Optional():
		d.markUnsupported(c.op)
	}
	if d.o.ended != nil {
		d.o.ended(c.op)
	}
	return a, err
}

// maxExcerpt is how many bytes of a driver's output are quoted in an error.
const maxExcerpt = 300

// explain adds the driver's output to an error.
func (e exit) explain(err error, secrets *redact.Secrets) error {
	if e.cut {
		// The excerpt may begin within a secret, which could not be recognized.
		return fmt.Errorf("%w; it printed more than %d bytes", err, decide.MaxOutput)
	}
	said := decide.Redact(string(slices.Concat(e.stderr, []byte(" "), e.stdout)), secrets)
	if said == "" {
		return fmt.Errorf("%w; it printed nothing", err)
	}
	return fmt.Errorf("%w; it printed: %s", err, redact.Bounded(said, maxExcerpt))
}

// isUnsupported says whether the driver has answered that it does not support an operation.
func (d *Driver) isUnsupported(op decide.Operation) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.unsupported[op]
}

func (d *Driver) markUnsupported(op decide.Operation) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unsupported[op] = true
}

// argument returns the JSON argument for a volume.
func (d *Driver) argument(op decide.Operation, v decide.Volume) (string, error) {
	arg, err := decide.Argument(op, v)
	if err != nil {
		return "", d.fail(op, volume.Failed, err)
	}
	return arg, nil
}
