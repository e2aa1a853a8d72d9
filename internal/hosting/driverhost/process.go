package driverhost

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/registrar"
	"volplane.dev/volplane/internal/hosting/driverfile"
	"volplane.dev/volplane/internal/hosting/supervise"
	"volplane.dev/volplane/internal/process/lifecycle"
)

// path is the search path of drivers, which run mount, mkfs and their kind.
const path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// process is one process of a driver that is followed.
type process struct {
	driverfile.Process
	h      *Host
	driver driverfile.Driver
	socket string
}

// deeds returns what is done for a process concurrently; each function ends with its context.
func (p *process) deeds() []func(context.Context) {
	var out []func(context.Context)
	if len(p.Exec) > 0 {
		out = append(out, p.execute)
	}
	if p.Has(driverfile.RoleNode) {
		out = append(out, p.register)
	}
	if p.Has(driverfile.RoleController) {
		out = append(out, p.reach)
	}
	return out
}

func (p *process) name() string { return p.driver.ProcessName(p.Process) }

func subject(driver string) string { return "driver " + driver }

func (p *process) fail(err error) { p.h.fail(subject(p.driver.Name), p.name(), err) }

// failController reports an error in what the process answers; that its program runs does not clear it.
func (p *process) failController(err error) { p.h.fail(subject(p.driver.Name), p.controller(), err) }

func (p *process) controller() string { return p.name() + " controller" }

func (p *process) mend(by string) { p.h.mend(subject(p.driver.Name), by) }

// changed reports when the program does not run, and when it has run for a while. Its output may differ each time,
// and is in its log.
func (p *process) changed(r supervise.Record) {
	switch {
	case r.State == supervise.Running && r.Settled:
		p.mend(p.name())
	case r.State == supervise.CannotStart:
		p.fail(fmt.Errorf("its program %s cannot be started: %s", p.name(), r.Message))
	case r.State == supervise.BackingOff:
		p.fail(fmt.Errorf("its program %s has ended and is started again: %s; see 'volplane driver logs %s'", p.name(),
			r.LastExit, p.driver.Name))
	}
}

// repeat calls f until it succeeds or ctx ends, and reports why it fails.
func (p *process) repeat(ctx context.Context, fail func(error), f func(context.Context) error) {
	for failed := 0; ; failed++ {
		err := f(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		fail(err)
		if !lifecycle.Sleep(ctx, p.h.Retry.Pause(failed)) {
			return
		}
	}
}

// execute keeps the program of the process running.
func (p *process) execute(ctx context.Context) {
	p.repeat(ctx, p.fail, func(ctx context.Context) error {
		program, id, err := p.program(ctx)
		if err != nil {
			return err
		}
		if p.ServiceAccount != "" {
			defer p.keepIdentity(ctx, id)()
		}
		if err := os.MkdirAll(filepath.Dir(p.socket), 0o700); err != nil {
			return fmt.Errorf("make directory of socket: %w", err)
		}
		err = p.h.programs.Run(ctx, program, p.changed)
		if errors.Is(err, supervise.ErrStopped) {
			return nil
		}
		return err
	})
}

// program returns what is executed, and the identity that its account has now. The values of Secrets are read now: a
// driver gets a changed value when it is restarted.
func (p *process) program(ctx context.Context) (supervise.Program, Identity, error) {
	host := map[string]string{
		driverfile.VarEndpoint: "unix://" + p.socket, driverfile.VarNode: p.h.Node, "PATH": path, "HOME": "/root",
	}
	var id Identity
	handed := ""
	if p.ServiceAccount != "" {
		var err error
		if id, err = p.identify(ctx); err != nil {
			return supervise.Program{}, id, err
		}
		host[driverfile.VarServiceHost], host[driverfile.VarServicePort] = id.Host, id.Port
		handed = p.accountDir()
	}
	secrets := map[string]string{}
	for _, s := range p.EnvFromSecret {
		ns, name, _ := strings.Cut(s.Secret, "/")
		value, err := p.h.Secret(ctx, ns, name, s.Key)
		if s.Optional && errors.Is(err, ErrNoValue) {
			continue
		}
		if err != nil {
			return supervise.Program{}, id, fmt.Errorf("variable %s of %s: %w", s.Name, p.name(), err)
		}
		secrets[s.Name] = value
	}
	argv, env := p.Start(host, secrets)
	return supervise.Program{
		Name: p.name(), Argv: argv, Env: env, Dir: p.WorkingDir, Generation: p.driver.RestartedAt,
		Handed: handed, Prepare: p.removeStaleSocket,
	}, id, nil
}

// removeStaleSocket removes a socket at which no process listens: some drivers do not start while it exists. Only a
// socket in the opened directory is removed, even if another process changes what the path leads to.
func (p *process) removeStaleSocket() error {
	dir, name := filepath.Split(p.socket)
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	var is unix.Stat_t
	err = unix.Fstatat(fd, name, &is, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		return &os.PathError{Op: "stat", Path: p.socket, Err: err}
	case is.Mode&unix.S_IFMT != unix.S_IFSOCK:
		return fmt.Errorf("%s is not a socket: remove it", p.socket)
	}
	dialer := net.Dialer{Timeout: time.Second}
	if c, err := dialer.DialContext(context.Background(), "unix", p.socket); err == nil {
		_ = c.Close()
		return fmt.Errorf("another process listens at %s: end it, or use --socket if it is the driver", p.socket)
	}
	if err := unix.Unlinkat(fd, name, 0); err != nil {
		return &os.PathError{Op: "remove", Path: p.socket, Err: err}
	}
	return nil
}

// register registers the process with the node agent.
func (p *process) register(ctx context.Context) {
	p.repeat(ctx, p.fail, func(ctx context.Context) error {
		return registrar.Keeping{
			Name: p.driver.Name, Socket: p.socket, Endpoint: p.socket, Patient: true, Log: p.h.Log,
			NodeOnly: !p.Has(driverfile.RoleController),
			Dir:      registryDir(p.h.RootDir), Changes: p.h.registry.subscribe,
		}.Run(ctx)
	})
}

// reach follows the process with the controller: it reports what the process answers, and has it called.
func (p *process) reach(ctx context.Context) {
	var before *csi.Driver
	p.repeat(ctx, p.failController, func(ctx context.Context) error {
		for {
			d, err := csi.Await(ctx, p.socket, p.notReady, append(slices.Clone(p.h.Dial),
				csi.WithExpectedName(p.driver.Name))...)
			if err != nil {
				return err
			}
			if before != nil {
				before.Retire()
			}
			before = d
			p.whileThere(ctx, d)
		}
	})
	if before != nil {
		_ = before.Close()
	}
}

// notReady reports what the process answers while it is not ready. If it cannot be reached, the state of its
// program shows why.
func (p *process) notReady(cause error) {
	csi.LogNotReady(p.h.Log, p.socket)(cause)
	var said interface{ GRPCStatus() *status.Status }
	if !errors.As(cause, &said) || said.GRPCStatus().Code() == codes.Unavailable && len(p.Exec) > 0 {
		return
	}
	p.failController(fmt.Errorf("its process %s is not ready: %s", p.name(), csi.Describe(said.GRPCStatus().Err())))
}

// whileThere has the driver called as a controller until its connection is lost: while it is away, another host may
// call it. A driver in one process is called by the connection of the node agent.
func (p *process) whileThere(ctx context.Context, d *csi.Driver) {
	if err := p.driver.CheckController(p.Process, p.socket, d); err != nil {
		p.failController(err)
		_ = d.AwaitLoss(ctx)
		return
	}
	p.mend(p.name())
	p.mend(p.controller())
	if p.h.Reached != nil {
		p.h.Reached(ctx, p.driver, d)
	}
	if !p.Has(driverfile.RoleNode) {
		p.h.Controllers.Put(d)
		defer p.h.Controllers.Remove(d)
	}
	_ = d.AwaitLoss(ctx)
}

// plan says what is done about the drivers of a host.
type plan struct {
	// leave are drivers that are no longer followed, stop the programs that are ended then, and start the drivers that
	// are followed from then on.
	leave, stop []string
	start       []driverfile.Driver
}

// planOf decides what is done when drivers are followed, the files say what is wanted or cannot be used, and programs
// are known. Nothing is ended because of a file that cannot be used, and nothing at all if the directory of the files
// cannot be read.
func planOf(
	now map[string]driverfile.Driver, wanted []driverfile.Driver, broken map[string]error, known []string,
	dir driverfile.Dir,
) plan {
	var p plan
	if _, unread := broken[string(dir)]; unread {
		return p
	}
	kept := driverfile.Programs(wanted, broken, func(p driverfile.Process) bool { return len(p.Exec) > 0 })
	is := map[string]bool{}
	for _, d := range wanted {
		is[d.Name] = true
		was, follows := now[d.Name]
		if follows && reflect.DeepEqual(was, d) {
			continue
		}
		if follows {
			p.leave = append(p.leave, d.Name)
		}
		p.start = append(p.start, d)
	}
	for name := range now {
		if !is[name] && !kept[name] {
			p.leave = append(p.leave, name)
		}
	}
	for _, program := range known {
		if !kept[program] {
			p.stop = append(p.stop, program)
		}
	}
	return p
}
