package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/redact"
	"volplane.dev/volplane/internal/volume"
)

// call is what one operation is called with.
type call struct {
	op decide.Operation
	// key names what it works on: no other call of the driver does at the same
	// time.
	key string
	// args follow the operation; shown are those for observers, nil for args.
	args, shown []string
	// volume is the volume's name, when the key has the driver's.
	volume string
	// secrets may not appear in any words.
	secrets map[string]string
	// keep is task's.
	keep bool
}

// task returns the call as a task, with what is done for it.
func (d *Driver) task(c call, do func(ctx context.Context, overdue func()) (any, error)) task {
	what := append([]string{string(c.op)}, c.args...)
	return task{key: d.Name.String() + " " + c.key, what: strings.Join(what, "\x00"), keep: c.keep, do: do}
}

// ask makes a call that mounts nothing. A failure that the driver tells is an
// error; that it does not support the operation is none.
func (d *Driver) ask(ctx context.Context, c call) (decide.Answer, error) {
	result, err := d.o.Calls.join(ctx, d.task(c, func(_ context.Context, overdue func()) (any, error) {
		a, err := d.start(c, overdue)
		switch {
		case notAsked(err):
			return a, d.fail(c.op, volume.Failed, err)
		case err != nil:
			// What it did before it said nothing of use, nobody knows.
			return a, d.fail(c.op, volume.Unknown, err)
		case a.Status == decide.Failure:
			return a, d.fail(c.op, volume.Failed, failure(a))
		case a.Status == decide.NotSupported && c.op == decide.OpInit:
			return a, d.fail(c.op, volume.Failed, ErrNotSupported)
		}
		return a, nil
	}))
	if err != nil {
		return decide.Answer{}, d.waited(c.op, err)
	}
	return result.(decide.Answer), nil
}

// notAsked says whether the driver has done nothing, because it was not started.
func notAsked(err error) bool { return errors.Is(err, errNotStarted) || errors.Is(err, ErrChanged) }

// waited says of an error that is not the call's own that the call goes on.
func (d *Driver) waited(op decide.Operation, err error) error {
	var own *CallError
	if errors.As(err, &own) {
		return err
	}
	return d.fail(op, volume.Unknown, fmt.Errorf("it has not ended: %w", err))
}

// failure is a driver's own.
func failure(a decide.Answer) error {
	if a.Message == "" {
		return errors.New("the driver failed and says not why")
	}
	return errors.New(a.Message)
}

// start starts the driver once. Nothing that it returns or tells an observer has
// a secret in it.
func (d *Driver) start(c call, overdue func()) (decide.Answer, error) {
	if d.refuses(c.op) {
		return decide.Answer{Status: decide.NotSupported}, nil
	}
	checked, err := d.open()
	if err != nil {
		return decide.Answer{}, err
	}
	defer checked.Close()
	d.o.Calls.given.AddData(c.secrets)
	traced, err := d.begin(c)
	if err != nil {
		traced.strike()
		return decide.Answer{}, fmt.Errorf("%w: %w", errNotStarted, err)
	}
	began := time.Now()
	p := process{
		program: checked, args: append([]string{string(c.op)}, c.args...), cgroup: d.o.Cgroup, trace: traced,
		limit: d.o.Settings.Limit(c.op), overdue: overdue,
	}
	e, err := p.run()
	traced.strike()
	seen := Call{Driver: d.Name, Op: c.op, Args: c.args, Took: time.Since(began), Exit: e.exit}
	if c.shown != nil {
		seen.Args = c.shown
	}
	a := decide.Answer{}
	if err == nil {
		a, err = decide.ParseAnswer(c.op, e.exit, e.stdout, e.stderr)
	}
	a.Message = decide.Redact(a.Message, &d.o.Calls.given)
	seen.Status = a.Status
	switch {
	case errors.Is(err, errNotStarted):
		seen.Exit = -1
	case err != nil:
		err = e.explain(err, &d.o.Calls.given)
	case a.Status == decide.NotSupported && c.op.Optional():
		d.refuse(c.op)
	}
	if err != nil {
		seen.Err = err.Error()
	}
	if d.o.Observe != nil {
		d.o.Observe(seen)
	}
	return a, err
}

// maxExcerpt is how much, in bytes, of a driver's output is told in an error.
const maxExcerpt = 300

// explain adds what the driver printed to an error about it.
func (e ending) explain(err error, secrets *redact.Secrets) error {
	if e.cut {
		// It may begin within a secret.
		return fmt.Errorf("%w; it printed more than %d bytes", err, decide.MaxOutput)
	}
	said := decide.Redact(string(slices.Concat(e.stderr, []byte(" "), e.stdout)), secrets)
	if said == "" {
		return fmt.Errorf("%w; it printed nothing", err)
	}
	if len(said) > maxExcerpt {
		said = strings.ToValidUTF8(said[:maxExcerpt], "") + "..."
	}
	return fmt.Errorf("%w; it printed: %s", err, said)
}

// refuses says whether the driver is known not to support an operation.
func (d *Driver) refuses(op decide.Operation) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.unsupported[op]
}

func (d *Driver) refuse(op decide.Operation) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unsupported[op] = true
}

// argument returns the JSON of a volume for an operation, and the same without
// its secrets.
func (d *Driver) argument(op decide.Operation, v decide.Volume) (arg, shown string, err error) {
	arg, err = decide.Argument(op, v)
	if err == nil {
		v.Secrets = nil
		shown, err = decide.Argument(op, v)
	}
	if err != nil {
		return "", "", d.fail(op, volume.Failed, err)
	}
	return arg, shown, nil
}
