package plane

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// Bin returns the path of one of the built programs, which `make build` puts
// into bin/ at the top of the repository that the working directory is in. A path
// is itself.
func Bin(name string) string {
	dir, err := os.Getwd()
	if filepath.IsAbs(name) || err != nil {
		return name
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "standalone", "go.mod")); err == nil {
			break
		}
	}
	return filepath.Join(dir, "bin", name)
}

// FreeAddress returns an address of a host with a port below the range of ephemeral ports: no other process gets it
// before a server starts or while it restarts, not even a client whose connection fails.
func FreeAddress(host string) string {
	for {
		address := net.JoinHostPort(host, strconv.Itoa(20000+rand.IntN(10000)))
		if l, err := net.Listen("tcp", address); err == nil {
			_ = l.Close()
			return address
		}
	}
}

// Plane is a running `volplaned up`.
type Plane struct {
	Dir string
	// Took is the time from the start of the process to its report that everything works.
	Took time.Duration

	cmd    *exec.Cmd
	exited chan struct{}
}

var errNotReady = errors.New("ended before it was ready")

// Start runs `volplaned up` with the data directory dir and returns when it reports that it is up. Its log goes to
// dir.log.
func Start(ctx context.Context, dir string, flags ...string) (*Plane, error) {
	return StartUnder(ctx, nil, dir, flags...)
}

// StartUnder is Start with words that begin the command: a program that becomes volplaned, such as nsenter with its
// arguments, because signals must reach volplaned itself.
func StartUnder(ctx context.Context, under []string, dir string, flags ...string) (*Plane, error) {
	log, err := os.OpenFile(dir+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	args := append([]string{"up", "--data-dir", dir, "--listen", "127.0.0.1:0", "--name", "node1"}, flags...)
	command := slices.Concat(under, []string{Bin("volplaned")}, args)
	p := &Plane{Dir: dir, cmd: exec.Command(command[0], command[1:]...), exited: make(chan struct{})}
	p.cmd.Stderr = log
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start volplaned (run `make build` first): %w", err)
	}
	up := make(chan bool, 1)
	go func() {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if strings.Contains(lines.Text(), " is up ") {
				up <- true
			}
		}
		_ = p.cmd.Wait()
		close(p.exited)
	}()
	select {
	case <-up:
		p.Took = time.Since(begin)
		return p, nil
	case <-p.exited:
		return nil, fmt.Errorf("volplaned %w, see %s.log", errNotReady, dir)
	case <-ctx.Done():
		p.Kill()
		return nil, ctx.Err()
	}
}

// PID returns the process's id.
func (p *Plane) PID() int { return p.cmd.Process.Pid }

// Kubeconfig returns the path of the administrator's kubeconfig.
func (p *Plane) Kubeconfig() string { return filepath.Join(p.Dir, "admin.kubeconfig") }

// Ended returns a channel that is closed when the process has ended.
func (p *Plane) Ended() <-chan struct{} { return p.exited }

// Client returns the administrator's client, without a rate limit.
func (p *Plane) Client() (kubernetes.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", p.Kubeconfig())
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	return kubernetes.NewForConfig(config)
}

// Stop ends the process as systemd would and waits for it.
func (p *Plane) Stop() { p.end(syscall.SIGTERM) }

// Kill ends the process between any two of its instructions.
func (p *Plane) Kill() { p.end(syscall.SIGKILL) }

func (p *Plane) end(s syscall.Signal) {
	_ = p.cmd.Process.Signal(s)
	<-p.exited
}
