package kube

import (
	"bytes"
	"context"
	"log/slog"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/standalone/apiserver"
	"volplane.dev/volplane/standalone/standalonetest"
)

// The Makefile builds them from Kubernetes' own modules.
const (
	theirProgram     = "../../bin/kube-controller-manager"
	theirProvisioner = "../../bin/csi-provisioner"
)

// syncPeriod is how often Kubernetes' binder looks at everything anew. Much of
// what it does, it does only then.
const syncPeriod = 200 * time.Millisecond

// longestRetry is the longest pause of Kubernetes' provisioner between two
// attempts at the same thing.
const longestRetry = 400 * time.Millisecond

// side is an API server with somebody's controllers.
type side struct {
	name   string
	server *apiserver.Server
	client kubernetes.Interface
	// storage is the side's driver, memory what was seen of its claims.
	storage *storage
	memory  *memory
}

func newSide(t *testing.T, name string) side {
	t.Helper()
	s := side{name: name, server: standalonetest.Start(t, app.RBAC()...), storage: newStorage(), memory: newMemory()}
	config := s.server.AdminConfig()
	config.QPS = -1
	var err error
	if s.client, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	return s
}

// ours runs controllers of volplane until the test ends.
func (s side) ours(t *testing.T, drivers *csi.Set, roles ...string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- app.ControlPlane(ctx, app.ControlPlaneOptions{
			ConfigFor: func(role string) (*rest.Config, error) { return s.server.ClientConfig(app.User(role)), nil },
			Roles:     roles, Drivers: drivers, Log: slog.New(slog.DiscardHandler),
		}, func() {})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// theirs runs controllers of Kubernetes until the test ends.
func (s side) theirs(t *testing.T, controllers ...string) {
	t.Helper()
	s.run(t, theirProgram, "--leader-elect=false", "--secure-port=0", "--kube-api-qps=5000", "--kube-api-burst=5000",
		"--pvclaimbinder-sync-period="+syncPeriod.String(), "--controllers="+strings.Join(controllers, ","))
}

// theirProvisioner runs Kubernetes' provisioner for a driver until the test ends.
func (s side) theirProvisioner(t *testing.T, driver *csitest.Driver) {
	t.Helper()
	s.run(t, theirProvisioner, "--csi-address="+driver.Socket, "--leader-election=false", "--kube-api-qps=5000", "--kube-api-burst=5000",
		"--timeout=1m", "--retry-interval-start=100ms", "--retry-interval-max="+longestRetry.String())
}

// run runs a program of Kubernetes over the side's API server until the test
// ends; the program does not outlive a test that is killed.
func (s side) run(t *testing.T, path string, args ...string) {
	t.Helper()
	program := exec.Command(path, append(args, "--kubeconfig="+s.server.AdminKubeconfig())...)
	log := &lastWords{}
	program.Stdout, program.Stderr = log, log
	program.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, ended := make(chan error, 1), make(chan error, 1)
	go func() {
		// The signal comes when the thread ends that started the program.
		runtime.LockOSThread()
		err := program.Start()
		started <- err
		if err == nil {
			ended <- program.Wait()
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		select {
		case err := <-ended:
			t.Errorf("%s ended: %v\n%s", filepath.Base(path), err, log)
		default:
			_ = program.Process.Kill()
			<-ended
		}
	})
}

// lastWords keeps the end of what a program says.
type lastWords struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lastWords) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.text.Len() > 1<<16 {
		l.text.Reset()
	}
	return l.text.Write(p)
}

func (l *lastWords) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
