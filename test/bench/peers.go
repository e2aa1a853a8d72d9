package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/standalone/apiserver"
	"volplane.dev/volplane/test/internal/plane"
)

// arena is an API server over an empty directory on the disk, and a driver, for
// one peer.
type arena struct {
	server *apiserver.Server
	client kubernetes.Interface
	driver *driver
	dir    string
	stops  []func()
	// stopOurs stops volplane's controllers; nil if they do not run.
	stopOurs func()
}

func newArena(ctx context.Context, delay time.Duration) (*arena, error) {
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return nil, err
	}
	a := &arena{dir: dir}
	a.stops = append(a.stops, func() { _ = os.RemoveAll(dir) })
	if a.server, err = apiserver.Start(ctx, apiserver.Options{DataDir: filepath.Join(dir, "api"), Listen: "127.0.0.1:0", RBAC: app.RBAC()}); err != nil {
		return a, err
	}
	a.stops = append(a.stops, a.server.Stop)
	config := a.server.AdminConfig()
	config.QPS = -1
	if a.client, err = kubernetes.NewForConfig(config); err != nil {
		return a, err
	}
	d, stop, err := serveDriver(delay)
	if err != nil {
		return a, err
	}
	a.driver, a.stops = d, append(a.stops, stop)
	return a, nil
}

func (a *arena) close() {
	for i := range a.stops {
		a.stops[len(a.stops)-1-i]()
	}
}

// ours runs volplane's controllers, as they come: those that make volumes, or
// others.
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

// theirs runs Kubernetes' own programs: at their defaults, or with their limits
// raised.
func (a *arena) theirs(raised bool) error {
	file := a.server.AdminKubeconfig()
	controllers := "persistentvolume-binder-controller,persistentvolume-protection-controller,persistentvolumeclaim-protection-controller"
	kcm := []string{"--kubeconfig=" + file, "--leader-elect=false", "--secure-port=0", "--controllers=" + controllers}
	provisioner := []string{"--kubeconfig=" + file, "--csi-address=" + a.driver.socket, "--leader-election=false"}
	if raised {
		kcm = append(kcm, "--kube-api-qps=1000", "--kube-api-burst=2000")
		provisioner = append(provisioner, "--kube-api-qps=1000", "--kube-api-burst=2000", "--worker-threads=100")
	}
	return a.start(map[string][]string{"kube-controller-manager": kcm, "csi-provisioner": provisioner})
}

// theirsAttach runs Kubernetes' own programs that attach: at their defaults, or
// with their limits raised.
func (a *arena) theirsAttach(raised bool) error {
	file := a.server.AdminKubeconfig()
	kcm := []string{"--kubeconfig=" + file, "--leader-elect=false", "--secure-port=0", "--controllers=persistentvolume-attach-detach-controller"}
	attacher := []string{"--kubeconfig=" + file, "--csi-address=" + a.driver.socket}
	if raised {
		kcm = append(kcm, "--kube-api-qps=1000", "--kube-api-burst=2000")
		attacher = append(attacher, "--kube-api-qps=1000", "--kube-api-burst=2000", "--worker-threads=100")
	}
	return a.start(map[string][]string{"kube-controller-manager": kcm, "csi-attacher": attacher})
}

func (a *arena) start(programs map[string][]string) error {
	for program, args := range programs {
		p, err := plane.Run(filepath.Join(a.dir, program+".log"), program, args...)
		if err != nil {
			return err
		}
		a.stops = append(a.stops, p.Kill)
	}
	return nil
}
