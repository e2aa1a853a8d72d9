package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/hosting/driverfile"
	"volplane.dev/volplane/internal/workshop/finding"
)

// process is a process of the driver behind a socket. It is called by the goroutine of the examination only.
type process struct {
	socket string
	// words are the command that starts it; nil if it is another program's.
	words, env []string
	cmd        *exec.Cmd
	// ended is closed when it has ended.
	ended chan struct{}
	// d and second are two connections to it.
	d, second *csi.Driver
}

// startLimit is how long a driver may take until it is ready, endLimit how long it may take to end when it is asked to,
// and endMoment how long the kernel may take to end it.
const (
	startLimit = 30 * time.Second
	endLimit   = 5 * time.Second
	endMoment  = 100 * time.Millisecond
)

// startedByUs says that the driver was started here, so that it can be killed.
func (p *process) startedByUs() bool { return p.words != nil }

// checkArguments refuses what cannot be examined, before anything is made.
func (x *exam) checkArguments() error {
	if x.Exec == "" && x.Socket == "" {
		return errors.New("there is neither a command that starts the driver nor a socket of a running one")
	}
	for _, text := range []string{x.Exec, x.ControllerExec} {
		if _, err := commandOf(text, nil); err != nil {
			return err
		}
	}
	if x.Size < 0 {
		return fmt.Errorf("a volume cannot have %d bytes", x.Size)
	}
	return nil
}

// processes says which processes the driver has.
func (x *exam) processes() (err error) {
	if x.node, err = x.process(x.Exec, x.Socket, "csi.sock"); err != nil {
		return err
	}
	if x.ControllerExec != "" || x.ControllerSocket != "" {
		x.controller, err = x.process(x.ControllerExec, x.ControllerSocket, "controller.sock")
	}
	return err
}

func (x *exam) process(command, socket, name string) (*process, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("name of this host: %w", err)
	}
	endpoint := "unix://" + x.path(name)
	references := map[string]string{"CSI_ENDPOINT": endpoint, "NODE_NAME": host, "SCRATCH": x.dir.Root}
	words, err := commandOf(command, references)
	if err != nil {
		return nil, err
	}
	env := append(os.Environ(), "CSI_ENDPOINT="+endpoint, "NODE_NAME="+host)
	for _, variable := range x.Env {
		env = append(env, driverfile.Expand(variable, references))
	}
	return &process{
		socket: cmp.Or(driverfile.Expand(socket, references), x.path(name)), words: words,
		env: append(env, x.dir.Mark),
	}, nil
}

// all returns the processes of the driver, each once.
func (x *exam) all() []*process {
	if x.controller == nil || x.controller == x.node {
		return []*process{x.node}
	}
	return []*process{x.node, x.controller}
}

// connect starts the driver if it is not running, and asks it what it can do.
func (x *exam) connect(ctx context.Context, p *process) (err error) {
	if p.startedByUs() {
		if err := x.start(p); err != nil {
			return err
		}
	}
	limit := startLimit
	if !p.startedByUs() {
		limit = x.Patience
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	defer p.whileItRuns(cancel)()
	options := []csi.Option{csi.WithMemory(x.memory), csi.WithWitness(x.witness.see), csi.WithControllerTimeout(x.Limit)}
	if p == x.node && x.controller != nil && x.controller != x.node {
		options = append(options, csi.WithNodeOnly())
	}
	if p.d, err = csi.Dial(ctx, p.socket, options...); err == nil {
		p.second, err = csi.Dial(ctx, p.socket, options...)
	}
	return x.withLastWords(p, err)
}

// withLastWords adds what a driver has printed that has ended.
func (x *exam) withLastWords(p *process, err error) error {
	if err == nil || !p.hasEnded() {
		return err
	}
	return fmt.Errorf("the driver has ended (%v); it printed last: %q", p.cmd.ProcessState, x.witness.lastWords())
}

// whileItRuns calls cancel when the process ends, until the returned function is called.
func (p *process) whileItRuns(cancel func()) func() {
	if !p.startedByUs() {
		return func() {}
	}
	over, ended := make(chan struct{}), p.ended
	go func() {
		select {
		case <-ended:
			cancel()
		case <-over:
		}
	}()
	return func() { close(over) }
}

func (p *process) hasEnded() bool {
	if p.ended == nil {
		return false
	}
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// ends says whether a process has ended. The connection is lost before that, so after a check that is not passed it may
// be a moment until it has.
func (p *process) ends(ctx context.Context, level finding.Level) bool {
	if level == finding.Pass {
		return p.hasEnded()
	}
	return p.endsWithin(ctx, endMoment)
}

func (p *process) endsWithin(ctx context.Context, limit time.Duration) bool {
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	select {
	case <-p.ended:
		return true
	case <-limited.Done():
		return false
	}
}

// start starts the process in a session of its own; what it prints, the witness sees.
func (x *exam) start(p *process) error {
	p.cmd = exec.Command(p.words[0], p.words[1:]...)
	p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr, p.cmd.WaitDelay = p.env, x.witness, x.witness, time.Second
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		p.cmd = nil
		return fmt.Errorf("start the driver: %w", err)
	}
	cmd, ended := p.cmd, make(chan struct{})
	p.ended = ended
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	return nil
}

// kill kills the process and those that it has started, as the end of a container does, and waits for its end.
func (p *process) kill() {
	if p.cmd == nil || p.hasEnded() {
		return
	}
	_ = unix.Kill(-p.cmd.Process.Pid, unix.SIGKILL)
	<-p.ended
}

// alive says that the examination goes on, and that no process of the driver has ended.
func (x *exam) alive() bool {
	for _, p := range x.all() {
		if p.startedByUs() && p.hasEnded() {
			return false
		}
	}
	return x.stopped() == nil
}

// mostDeaths is how often a driver may end by itself before the examination is stopped.
const mostDeaths = 3

// checkAlive starts processes again that have ended by themselves during a check.
func (x *exam) checkAlive(ctx context.Context, during string, level finding.Level) {
	for _, p := range x.all() {
		if x.stopped() != nil || !p.startedByUs() || !p.ends(ctx, level) {
			continue
		}
		x.deaths++
		x.add(finding.Finding{
			Check: "stays-up", Level: finding.Fail,
			Message: fmt.Sprintf("the driver has ended (%v) during the check %s; it printed last: %q", p.cmd.ProcessState,
				during, x.witness.lastWords()),
			Next: "end for no call, whatever is in it",
		})
		if x.deaths == mostDeaths {
			x.stop(fmt.Errorf("the driver has exited unexpectedly %d times", mostDeaths))
			return
		}
		_ = x.revive(ctx, p)
	}
}

// restart starts a process that has ended, and waits until it is ready.
func (x *exam) restart(ctx context.Context, p *process) error {
	if err := x.start(p); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	defer p.whileItRuns(cancel)()
	return x.withLastWords(p, repeat(ctx, func() (bool, error) {
		r, err := p.d.IdentityClient().Probe(ctx, &csipb.ProbeRequest{})
		return err != nil || r.GetReady() != nil && !r.GetReady().GetValue(), err
	}))
}

// revive restarts a process for the next check. If that is not possible, the examination is stopped.
func (x *exam) revive(ctx context.Context, p *process) error {
	err := x.restart(ctx, p)
	if err != nil {
		// A socket file that stops it is a finding of its own.
		p.kill()
		_ = os.Remove(p.socket)
		if again := x.restart(ctx, p); again != nil {
			x.stop(fmt.Errorf("the driver does not start again: %w", again))
		}
	}
	return err
}

// reset replaces a driver that hangs by a new one, so that it can take back what it has done.
func (x *exam) reset(ctx context.Context) {
	for _, p := range x.all() {
		if p.startedByUs() {
			p.kill()
			_ = x.restart(ctx, p)
		}
	}
}

// terminate ends the processes that were started here, and the connections.
func (x *exam) terminate(ctx context.Context) {
	if x.node == nil {
		return
	}
	for _, p := range x.all() {
		if p.cmd != nil && !p.terminates(ctx) {
			p.kill()
		}
		for _, d := range []*csi.Driver{p.d, p.second} {
			if d != nil {
				_ = d.Close()
			}
		}
	}
}

// terminates asks a process to end and says whether it does.
func (p *process) terminates(ctx context.Context) bool {
	_ = p.cmd.Process.Signal(unix.SIGTERM)
	return p.endsWithin(ctx, endLimit)
}

// repeat calls f until it says that no further try is needed, or ctx ends; it returns the last error.
func repeat(ctx context.Context, f func() (again bool, err error)) error {
	pause := time.NewTicker(20 * time.Millisecond)
	defer pause.Stop()
	for {
		again, err := f()
		if !again {
			return err
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return cmp.Or(err, ctx.Err())
		}
	}
}

// commandOf returns the words of a command with its references replaced; none of a text that is empty, because the
// driver runs already.
func commandOf(text string, references map[string]string) ([]string, error) {
	if text == "" {
		return nil, nil
	}
	words, err := driverfile.Words(text)
	if err != nil {
		return nil, fmt.Errorf("command %.80q: %w", text, err)
	}
	for i := range words {
		words[i] = driverfile.Expand(words[i], references)
	}
	return words, nil
}
