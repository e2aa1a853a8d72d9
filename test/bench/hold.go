package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/test/internal/plane"
)

// settling is how long the storm's work is left to end, watching how long
// nobody asks for anything.
const settling, watching = 20 * time.Second, 30 * time.Second

// measureHolding has volplane's controllers, as a process of their own, and
// Kubernetes' hold so many attachments while nothing happens.
func measureHolding(ctx context.Context, figures map[string]any, volumes int) error {
	for _, p := range []struct {
		name string
		run  func(*arena) ([]*plane.Process, error)
	}{
		{"volplane", (*arena).oursApart},
		{"kubernetes_raised", (*arena).theirsHold},
	} {
		if err := measureHold(ctx, figures, p.name, volumes, p.run); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

func measureHold(ctx context.Context, figures map[string]any, name string, volumes int, run func(*arena) ([]*plane.Process, error)) error {
	a, err := newArena(ctx, 0)
	if a != nil {
		defer a.close()
	}
	if err != nil {
		return err
	}
	if err := a.makeNodes(ctx); err != nil {
		return err
	}
	if err := a.each(volumes+1, func(name string) error { return a.wire(ctx, name) }); err != nil {
		return err
	}
	s, err := a.observe(ctx)
	if err != nil {
		return err
	}
	defer s.stop()
	programs, err := run(a)
	if err != nil {
		return err
	}
	if err := a.attachAll(ctx, s, volumes); err != nil {
		return err
	}
	if err := idle(figures, "held_"+name, programs); err != nil {
		return err
	}
	for _, p := range programs {
		p.Kill()
	}
	return a.restart(ctx, s, figures, name, volumes, run)
}

// attachAll attaches volumes to the nodes, which use them from then on.
func (a *arena) attachAll(ctx context.Context, s *sights, volumes int) error {
	if err := a.eachOnNode(volumes, func(name, node string) error { return a.use(ctx, name, node) }); err != nil {
		return err
	}
	if err := s.wait(ctx, func() bool { return len(s.told) == volumes }); err != nil {
		return err
	}
	return a.mounted(ctx, volumes)
}

// restart starts the programs again and takes the time to the next volume
// attached.
func (a *arena) restart(ctx context.Context, s *sights, figures map[string]any, name string, volumes int, run func(*arena) ([]*plane.Process, error)) error {
	calls, began := a.driver.attached.Load(), time.Now()
	programs, err := run(a)
	if err != nil {
		return err
	}
	next := fmt.Sprint("c", volumes)
	if err := a.use(ctx, next, nodeNamed(0)); err != nil {
		return err
	}
	if err := s.wait(ctx, func() bool { return !s.told[next].IsZero() }); err != nil {
		return err
	}
	figures["restart_to_attached_s_"+name] = time.Since(began).Seconds()
	if err := idle(figures, "restarted_"+name, programs); err != nil {
		return err
	}
	// One of them is for the next volume.
	figures["restart_calls_"+name] = a.driver.attached.Load() - calls + a.driver.detached.Load()
	return nil
}

// idle measures the memory of programs, and their processor time while nobody
// asks for anything.
func idle(figures map[string]any, name string, programs []*plane.Process) error {
	time.Sleep(settling)
	var use [2]usage
	for i := range use {
		for _, p := range programs {
			u, err := readUsage(p.PID())
			if err != nil {
				return err
			}
			use[i].rssKiB += u.rssKiB
			use[i].cpu += u.cpu
		}
		if i == 0 {
			time.Sleep(watching)
		}
	}
	figures[name+"_rss_mib"] = float64(use[1].rssKiB) / 1024
	figures[name+"_idle_cpu_percent"] = 100 * (use[1].cpu - use[0].cpu).Seconds() / watching.Seconds()
	return nil
}

// apart is the argument by which this program runs as volplane's controllers,
// to be measured apart from the API server.
const apart = "controllers"

// oursApart runs all controllers of volplane that need no heartbeats, in one
// process.
func (a *arena) oursApart() ([]*plane.Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p, err := plane.Run(filepath.Join(a.dir, "volplane.log"), self, apart, a.server.AdminKubeconfig(), a.driver.socket)
	if err != nil {
		return nil, err
	}
	a.stops = append(a.stops, p.Kill)
	return []*plane.Process{p}, nil
}

func runApart(kubeconfig, socket string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	conn, err := csi.Dial(ctx, socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	drivers := csi.NewSet()
	drivers.Put(conn)
	var roles []string
	for _, d := range app.Declarations() {
		if d.Name != "nodelife" {
			roles = append(roles, d.Name)
		}
	}
	return app.ControlPlane(ctx, app.ControlPlaneOptions{
		ConfigFor: func(string) (*rest.Config, error) { return rest.CopyConfig(config), nil },
		Roles:     roles, Drivers: drivers, Log: slog.New(slog.DiscardHandler),
	}, func() {})
}

// theirsHold runs the programs of Kubernetes that do the same work.
func (a *arena) theirsHold() ([]*plane.Process, error) {
	file := "--kubeconfig=" + a.server.AdminKubeconfig()
	controllers := "persistentvolume-binder-controller,persistentvolume-protection-controller,persistentvolumeclaim-protection-controller," +
		"persistentvolume-attach-detach-controller,persistentvolume-expander-controller,ephemeral-volume-controller"
	beside := []string{file, "--csi-address=" + a.driver.socket, "--kube-api-qps=1000", "--kube-api-burst=2000", "--worker-threads=100"}
	var all []*plane.Process
	for program, args := range map[string][]string{
		"kube-controller-manager": {file, "--leader-elect=false", "--secure-port=0", "--kube-api-qps=1000", "--kube-api-burst=2000", "--controllers=" + controllers},
		"csi-provisioner":         beside, "csi-attacher": beside,
	} {
		p, err := plane.Run(filepath.Join(a.dir, program+".log"), program, args...)
		if err != nil {
			return nil, err
		}
		a.stops = append(a.stops, p.Kill)
		all = append(all, p)
	}
	return all, nil
}
