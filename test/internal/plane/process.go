package plane

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
)

// Process is one of our programs that runs beside a plane.
type Process struct {
	args   []string
	log    string
	cmd    *exec.Cmd
	exited chan struct{}
	// asked says that the program was asked to stop.
	asked atomic.Bool
}

// Invite gets the invitation of another node from the plane and returns the path of its
// kubeconfig.
func (p *Plane) Invite(node string, flags ...string) (string, error) {
	out, err := exec.Command(Bin("volplaned"), append([]string{"invite", node, "--data-dir", p.Dir}, flags...)...).Output()
	if err != nil {
		var ended *exec.ExitError
		if errors.As(err, &ended) {
			err = fmt.Errorf("%w: %s", err, ended.Stderr)
		}
		return "", fmt.Errorf("invite %s: %w", node, err)
	}
	path := filepath.Join(p.Dir, node+".kubeconfig")
	return path, os.WriteFile(path, out, 0o600)
}

// Pool returns the directory of the bundled driver's volumes.
func (p *Plane) Pool() string { return filepath.Join(p.Dir, "pool") }

// Run starts one of the built programs; its output goes to log.
func Run(log, program string, args ...string) (*Process, error) {
	p := &Process{args: append([]string{Bin(program)}, args...), log: log}
	return p, p.Restart()
}

// RunIn starts one of the built programs in a network namespace of that name,
// as on a host of its own: it shares nothing but the file system.
func RunIn(namespace, log, program string, args ...string) (*Process, error) {
	p := &Process{args: slices.Concat(In(namespace), []string{Bin(program)}, args), log: log}
	return p, p.Restart()
}

// In returns the words that begin the command of a program in a network namespace with that name. `ip netns exec` would
// also give it a mount namespace.
func In(namespace string) []string { return []string{"nsenter", "--net=/run/netns/" + namespace} }

// Restart starts the program with the same arguments after it ended.
func (p *Process) Restart() error {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	p.cmd = exec.Command(p.args[0], p.args[1:]...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.exited = make(chan struct{})
	p.asked.Store(false)
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.args[0], err)
	}
	cmd, exited := p.cmd, p.exited
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
	return nil
}

// PID returns the process id of the running program.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Stop ends the program as systemd would and waits for it.
func (p *Process) Stop() { p.end(syscall.SIGTERM) }

// Kill ends the program between any two of its instructions.
func (p *Process) Kill() { p.end(syscall.SIGKILL) }

// Died waits until the program has ended and says whether it did so on its own.
func (p *Process) Died() bool {
	<-p.exited
	return !p.asked.Load()
}

func (p *Process) end(s syscall.Signal) {
	p.asked.Store(true)
	_ = p.cmd.Process.Signal(s)
	<-p.exited
}
