package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/standalone/apiserver"
	"volplane.dev/volplane/test/internal/plane"
)

// arena is an API server over an empty directory on the disk, and a driver, for one peer.
type arena struct {
	server *apiserver.Server
	client kubernetes.Interface
	// dynamic is the client of custom resources.
	dynamic dynamic.Interface
	driver  *driver
	dir     string
	stops   []func()
	// running are the programs that were started.
	running []*plane.Process
	// stopOurs stops volplane's controllers; nil if they do not run.
	stopOurs func()
	// fail ends what is measured.
	fail context.CancelCauseFunc
}

// newArena starts an arena, which the caller must close. Its context ends when a program of the arena exits
// unexpectedly.
func newArena(ctx context.Context, delay time.Duration) (*arena, context.Context, error) {
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return nil, nil, err
	}
	ctx, fail := context.WithCancelCause(ctx)
	a := &arena{dir: dir, fail: fail, stops: []func(){func() { fail(nil) }, func() { _ = os.RemoveAll(dir) }}}
	if err := a.open(ctx, delay); err != nil {
		a.close()
		return nil, nil, err
	}
	return a, ctx, nil
}

func (a *arena) open(ctx context.Context, delay time.Duration) error {
	var err error
	if a.server, err = apiserver.Start(ctx,
		apiserver.Options{DataDir: filepath.Join(a.dir, "api"), Listen: "127.0.0.1:0", RBAC: app.RBAC()}); err != nil {
		return err
	}
	a.stops = append(a.stops, a.server.Stop)
	config := a.server.AdminConfig()
	config.QPS = -1
	if a.client, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	if a.dynamic, err = dynamic.NewForConfig(config); err != nil {
		return err
	}
	d, stop, err := serveDriver(delay)
	if err != nil {
		return err
	}
	a.driver, a.stops = d, append(a.stops, stop)
	return nil
}

// newWired starts an arena with nodes and volumes that can be attached to them. The caller must close it.
func newWired(ctx context.Context, volumes int) (*arena, context.Context, error) {
	a, ctx, err := newArena(ctx, 0)
	if err != nil {
		return nil, nil, err
	}
	if err := errors.Join(a.makeNodes(ctx),
		a.each(volumes, func(name string) error { return a.wire(ctx, name) })); err != nil {
		a.close()
		return nil, nil, err
	}
	return a, ctx, nil
}

func (a *arena) close() {
	for i := range a.stops {
		a.stops[len(a.stops)-1-i]()
	}
}

// ours runs volplane's controllers with their defaults: those that provision, or others.
func (a *arena) ours(ctx context.Context, roles ...string) error {
	if len(roles) == 0 {
		roles = []string{"binder", "provisioner", "protection"}
	}
	conn, err := csi.Dial(ctx, a.driver.socket)
	if err != nil {
		return err
	}
	drivers := csi.NewSet()
	drivers.Put(conn)
	running, cancel := context.WithCancel(ctx)
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- app.ControlPlane(running, app.ControlPlaneOptions{
			ConfigFor: func(role string) (*rest.Config, error) { return a.server.ClientConfig(app.User(role)), nil },
			Roles:     roles, Drivers: drivers, Log: slog.New(slog.DiscardHandler),
		}, func() { close(ready) })
	}()
	a.stopOurs = sync.OnceFunc(func() { cancel(); <-ended; _ = conn.Close() })
	a.stops = append(a.stops, a.stopOurs)
	select {
	case <-ready:
		return nil
	case err := <-ended:
		ended <- nil
		return fmt.Errorf("controllers ended: %w", err)
	}
}

// theirs runs Kubernetes' own programs with their defaults, or with raised limits.
func (a *arena) theirs(raised bool) error {
	file := a.server.AdminKubeconfig()
	controllers := "persistentvolume-binder-controller,persistentvolume-protection-controller," +
		"persistentvolumeclaim-protection-controller"
	kcm := []string{"--kubeconfig=" + file, "--leader-elect=false", "--secure-port=0", "--controllers=" + controllers}
	provisioner := []string{"--kubeconfig=" + file, "--csi-address=" + a.driver.socket, "--leader-election=false"}
	if raised {
		kcm = append(kcm, "--kube-api-qps=1000", "--kube-api-burst=2000")
		provisioner = append(provisioner, "--kube-api-qps=1000", "--kube-api-burst=2000", "--worker-threads=100")
	}
	return a.start(map[string][]string{"kube-controller-manager": kcm, "csi-provisioner": provisioner})
}

// theirsAttach runs Kubernetes' own programs that attach, with their defaults or with raised limits.
func (a *arena) theirsAttach(raised bool) error {
	file := a.server.AdminKubeconfig()
	kcm := []string{
		"--kubeconfig=" + file, "--leader-elect=false", "--secure-port=0",
		"--controllers=persistentvolume-attach-detach-controller",
	}
	attacher := []string{"--kubeconfig=" + file, "--csi-address=" + a.driver.socket}
	if raised {
		kcm = append(kcm, "--kube-api-qps=1000", "--kube-api-burst=2000")
		attacher = append(attacher, "--kube-api-qps=1000", "--kube-api-burst=2000", "--worker-threads=100")
	}
	return a.start(map[string][]string{"kube-controller-manager": kcm, "csi-attacher": attacher})
}

func (a *arena) start(programs map[string][]string) error {
	for program, args := range programs {
		if _, err := a.run(program, args...); err != nil {
			return err
		}
	}
	return nil
}

// run starts a program. The measurement ends when the program does.
func (a *arena) run(program string, args ...string) (*plane.Process, error) {
	log := filepath.Join(a.dir, program+".log")
	p, err := plane.Run(log, program, args...)
	if err != nil {
		return nil, err
	}
	a.stops, a.running = append(a.stops, p.Kill), append(a.running, p)
	go func() {
		if p.Died() {
			// It need not have said anything.
			said, _ := os.ReadFile(log)
			a.fail(fmt.Errorf("%s has ended: %s", program, said[max(0, len(said)-1000):]))
		}
	}()
	return p, nil
}

// programs returns the process ids of the programs that were started.
func (a *arena) programs() []int {
	var all []int
	for _, p := range a.running {
		all = append(all, p.PID())
	}
	return all
}
