package doctor

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/flex/check"
	"volplane.dev/volplane/internal/flex/driver"
	"volplane.dev/volplane/internal/mount"
)

// call is one start of the driver and its result.
type call struct {
	// Call has the output. Its exit code is also -1 if the driver was not started, as err says.
	decide.Call
	took time.Duration
	// overdue says that the driver was killed at its time limit, and holds that one of its
	// processes has kept the output open.
	overdue, holds bool
	answer         decide.Answer
	err            error
	// byHost says that the driver leaves the work to the host, which has done it.
	byHost bool
	// odd says that no host makes such a call, so that its form is not judged.
	odd bool
	// hide removes secrets from a text.
	hide func(string) string
	// before and after are the mount table before and after the call.
	before, after []mount.Point
}

// drainTimeout is how long the end of the output is waited for after the driver has ended.
const drainTimeout = time.Second

// call starts the driver and waits until it ends. If the examination was stopped, the driver is not
// started.
func (x *exam) call(ctx context.Context, op decide.Operation, args ...string) call {
	return x.finish(x.begin(ctx, op, args...))
}

var (
	errStopped = errors.New("the examination was stopped")
	errHung    = errors.New("the driver does not end")
)

// unjudged records that no host makes a call like the last one.
func (x *exam) unjudged() {
	if len(x.calls) > 0 {
		x.calls[len(x.calls)-1].odd = true
	}
}

// running is a call in flight.
type running struct {
	call
	ctx            context.Context //nolint:containedctx // of the process
	cancel         context.CancelFunc
	cmd            *exec.Cmd
	stdout, stderr check.Output
	begun          time.Time
	args           []string
	limit          time.Duration
	// mayHang says that the driver may hang without a finding.
	mayHang bool
}

// begin and beginWithin start the driver as a host does: in a session of its own, and with no
// environment but the mark by which its processes are found.
func (x *exam) begin(ctx context.Context, op decide.Operation, args ...string) *running {
	limit := x.Limit
	if op == decide.OpInit {
		limit = min(limit, initLimit)
	}
	return x.beginWithin(ctx, limit, op, args...)
}

func (x *exam) beginWithin(ctx context.Context, limit time.Duration, op decide.Operation, args ...string) *running {
	r := &running{args: args, limit: limit}
	r.Op, r.Exit, r.err, r.hide = op, -1, errStopped, x.given.Hide
	if x.stopped() {
		return r
	}
	r.before = x.table()
	r.ctx, r.cancel = context.WithTimeout(ctx, r.limit)
	r.err = driver.WhenClosed(busyTries, func() error {
		r.cmd = x.command(r)
		r.begun = time.Now()
		return r.cmd.Start()
	})
	if r.err != nil {
		r.cancel()
		r.cmd = nil
	}
	return r
}

// busyTries is how often the start of an executable is retried while a process has it open for
// writing.
const busyTries = 10

func (x *exam) command(r *running) *exec.Cmd {
	cmd := check.Command(r.ctx, x.Path, r.Op, r.args...)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &r.stdout, &r.stderr, drainTimeout
	cmd.Env, cmd.SysProcAttr.Pdeathsig = append(cmd.Env, x.dir.Mark), syscall.SIGKILL
	return cmd
}

// finish waits until a call ends.
func (x *exam) finish(r *running) call {
	if r.cmd == nil {
		return r.call
	}
	defer r.cancel()
	c := r.call
	err := r.cmd.Wait()
	c.took = time.Since(r.begun)
	c.Exit = r.cmd.ProcessState.ExitCode()
	c.after = x.table()
	c.Stdout, c.Stderr = r.stdout.Kept, r.stderr.Kept
	// On a busy host, another child of this process may have the output open for a moment. If the
	// driver has no processes, it is not its fault.
	c.holds = errors.Is(err, exec.ErrWaitDelay) && len(x.dir.Processes()) > 0
	c.overdue = errors.Is(r.ctx.Err(), context.DeadlineExceeded)
	c.answer, c.err = c.Read()
	if len(r.args) > 0 {
		c.Seen = decide.SeenBy(c.Op, len(within(c.before, r.args[0])), len(within(c.after, r.args[0])))
	}
	x.calls = append(x.calls, c)
	if c.overdue && !r.mayHang {
		x.stop(fmt.Errorf("%w: %s within %v", errHung, c.Op, r.limit))
	}
	return c
}

// ok says that the driver succeeded.
func (c call) ok() bool { return c.err == nil && c.answer.Status == decide.Success }

// unsupported says that the driver leaves the operation to the host.
func (c call) unsupported() bool { return c.err == nil && c.answer.Status == decide.NotSupported }

// why returns why a call did not succeed.
func (c call) why() string {
	switch {
	case c.overdue:
		return fmt.Sprintf("%s did not end in time", c.Op)
	case c.err != nil && c.Exit < 0 && len(c.Stdout)+len(c.Stderr) == 0:
		return fmt.Sprintf("%s: %v", c.Op, c.err)
	case c.err != nil:
		return fmt.Sprintf("%s: %v; %s", c.Op, c.err, c.Quote(c.hide))
	case c.answer.Message != "":
		return fmt.Sprintf("%s answers %q: %s", c.Op, c.answer.Status, c.answer.Message)
	}
	return fmt.Sprintf("%s answers %q without a message", c.Op, c.answer.Status)
}

// added returns the mounts that a call has made.
func (c call) added() []mount.Point { return minus(c.after, c.before) }

// minus returns the mounts of a that are not in b.
func minus(a, b []mount.Point) []mount.Point {
	return slices.DeleteFunc(slices.Clone(a), func(p mount.Point) bool { return slices.Contains(b, p) })
}

// table returns what is mounted in the scratch directory. If that cannot be read, the examination is stopped.
func (x *exam) table() []mount.Point {
	points, err := mount.Below(x.root)
	if err != nil {
		x.stop(err)
	}
	return points
}

// at returns the mounts at a path; within returns those at and below it.
func at(points []mount.Point, path string) []mount.Point {
	return slices.DeleteFunc(slices.Clone(points), func(p mount.Point) bool { return p.Path != path })
}

func within(points []mount.Point, dir string) []mount.Point {
	return slices.DeleteFunc(slices.Clone(points),
		func(p mount.Point) bool { return p.Path != dir && !strings.HasPrefix(p.Path, dir+"/") })
}
