package main

import (
	"context"
	"fmt"
	"time"

	"volplane.dev/volplane/test/internal/plane"
)

// settling is the time for the storm's work to end, and watching the time of observation without requests.
const settling, watching = 20 * time.Second, 30 * time.Second

// measureHolding measures volplane's controllers, in a process of their own, and Kubernetes' controllers
// while many attachments exist and nothing happens.
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

func measureHold(
	ctx context.Context, figures map[string]any, name string, volumes int, run func(*arena) ([]*plane.Process, error),
) error {
	a, ctx, err := newWired(ctx, volumes+1)
	if err != nil {
		return err
	}
	defer a.close()
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

// restart restarts the programs and measures the time to the next volume attached.
func (a *arena) restart(
	ctx context.Context, s *sights, figures map[string]any, name string, volumes int,
	run func(*arena) ([]*plane.Process, error),
) error {
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

// idle measures the memory of programs, and their processor time without requests.
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

// oursApart runs all controllers of volplane that need no heartbeats, in one process.
func (a *arena) oursApart() ([]*plane.Process, error) {
	p, err := a.run("bench-controllers", a.server.AdminKubeconfig(), a.driver.socket)
	if err != nil {
		return nil, err
	}
	return []*plane.Process{p}, nil
}

// theirsHold runs the programs of Kubernetes that do the same work.
func (a *arena) theirsHold() ([]*plane.Process, error) {
	file := "--kubeconfig=" + a.server.AdminKubeconfig()
	controllers := "persistentvolume-binder-controller,persistentvolume-protection-controller," +
		"persistentvolumeclaim-protection-controller," +
		"persistentvolume-attach-detach-controller,persistentvolume-expander-controller,ephemeral-volume-controller"
	beside := []string{
		file, "--csi-address=" + a.driver.socket, "--kube-api-qps=1000", "--kube-api-burst=2000", "--worker-threads=100",
	}
	var all []*plane.Process
	for program, args := range map[string][]string{
		"kube-controller-manager": {
			file, "--leader-elect=false", "--secure-port=0", "--kube-api-qps=1000", "--kube-api-burst=2000",
			"--controllers=" + controllers,
		},
		"csi-provisioner": beside, "csi-attacher": beside,
	} {
		p, err := a.run(program, args...)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}
