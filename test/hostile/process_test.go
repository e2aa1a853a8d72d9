package hostile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/node"
)

// roleEnv is the environment variable with the role of a process of this test.
const roleEnv = "VOLPLANE_HOSTILE_ROLE"

// TestMain runs the tests, or a control plane or a node agent when roleEnv is set, since only a process can
// be killed.
func TestMain(m *testing.M) {
	text, ok := os.LookupEnv(roleEnv)
	if !ok {
		os.Exit(m.Run())
	}
	var r role
	err := json.Unmarshal([]byte(text), &r)
	if err == nil {
		err = r.live(context.Background())
	}
	fmt.Fprintln(os.Stderr, r.Place, err)
	os.Exit(1)
}

// role says whether a process has the controllers or a node's agent.
type role struct {
	// Place is "plane" or the node's name.
	Place, Dir, Kubeconfig string
	// Sockets are those of the drivers, for the controllers.
	Sockets []string
}

func (r role) live(ctx context.Context) error {
	config, err := clientcmd.BuildConfigFromFlags("", r.Kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	if r.Place == plane() {
		return r.controllers(ctx, config, log)
	}
	return r.agent(ctx, config, log)
}

func (r role) controllers(ctx context.Context, config *rest.Config, log *slog.Logger) error {
	drivers := csi.NewSet()
	for _, socket := range r.Sockets {
		go func() {
			for ctx.Err() == nil {
				try, cancel := context.WithTimeout(ctx, 2*time.Second)
				d, err := csi.Dial(try, socket)
				cancel()
				if err == nil {
					drivers.Put(d)
					return
				}
				pause(ctx, 50*time.Millisecond)
			}
		}()
	}
	o := app.ControlPlaneOptions{
		Drivers: drivers, Log: log,
		ConfigFor: func(name string) (*rest.Config, error) { return as(config, app.User(name)), nil },
	}
	o.ReconcileSync, o.CapacityPoll = time.Second, time.Second
	return app.ControlPlane(ctx, o, func() { log.Info("controllers work") })
}

func (r role) agent(ctx context.Context, config *rest.Config, log *slog.Logger) error {
	client, err := kubernetes.NewForConfig(as(config, "system:node:"+r.Place, "system:nodes"))
	if err != nil {
		return err
	}
	a, err := node.New(node.Options{
		Name: r.Place, RootDir: r.Dir, Client: client, Caches: kube.NewNodeCaches(client, r.Place), Drivers: csi.NewSet(),
		Events: kube.NewRecorder(ctx, client, "node"), Log: log,
		RetryMin: 50 * time.Millisecond, RetryMax: time.Second, PollEvery: time.Second, StatsEvery: time.Second,
	})
	if err != nil {
		return err
	}
	return a.Run(ctx)
}

// as returns the client configuration of another user.
func as(config *rest.Config, user string, groups ...string) *rest.Config {
	c := rest.CopyConfig(config)
	c.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groups}
	return c
}

// program is a process that is killed and started again.
type program struct {
	role
	log string

	mu     sync.Mutex
	cmd    *exec.Cmd
	ended  chan struct{}
	deaths int
}

func (p *program) start() error {
	text, err := json.Marshal(p.role)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deaths++
	p.cmd, p.ended = exec.Command(os.Args[0]), make(chan struct{})
	p.cmd.Env, p.cmd.Stderr, p.cmd.Stdout = append(os.Environ(), roleEnv+"="+string(text)), log, log
	if err := p.cmd.Start(); err != nil {
		return err
	}
	cmd, ended := p.cmd, p.ended
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	return nil
}

// note writes a line of the test into the process's log.
func (p *program) note(format string, args ...any) error {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(log, format+"\n", args...)
	return errors.Join(err, log.Close())
}

// kill sends SIGKILL. It may be repeated.
func (p *program) kill() {
	p.mu.Lock()
	cmd, ended := p.cmd, p.ended
	p.mu.Unlock()
	if cmd != nil {
		_ = cmd.Process.Kill()
		<-ended
	}
}

// died returns the number of deaths so far.
func (p *program) died() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.deaths
}

// alone says that the process ended although it was not killed.
func (p *program) alone() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

func (r role) registry() string { return filepath.Join(r.Dir, "plugins_registry") }
