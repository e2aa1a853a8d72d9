package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"volplane.dev/volplane/test/internal/plane"
)

const (
	// resting is how long programs are left alone before their memory is read: longer than volplane waits before it
	// returns unused memory.
	resting = 30 * time.Second
	// leasing is how long the writes of leases are counted.
	leasing = time.Minute
	// tick is the pause between two checks of the programs.
	tick = 100 * time.Millisecond
)

// sidecars are the measured programs beside a driver, in their own cluster.
type sidecars struct {
	*arena
	name    string
	figures map[string]any
	// start starts them.
	start func(*arena) ([]*plane.Process, error)
	// alone says that a second set of them on one host waits until the first has ended. Upstream's programs hold
	// their leases in the name of the host, so two sets of them would work at the same time.
	alone bool
	// programs are those that work.
	programs []*plane.Process
	sights   *sights
	volumes  int
}

// measureLives measures the programs beside a driver, volplane's one and upstream's four, over the whole life of many
// volumes in a cluster of Kubernetes' own programs: create, attach, restart, detach, delete.
func measureLives(ctx context.Context, figures map[string]any, volumes int) error {
	for _, s := range []*sidecars{
		{name: "volplane", start: (*arena).ourSidecar, alone: true},
		{name: "upstream", start: (*arena).theirSidecars},
	} {
		s.figures, s.volumes = figures, volumes
		if err := s.measure(ctx); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

// ourSidecar runs volplane in the place of upstream's four programs.
func (a *arena) ourSidecar() ([]*plane.Process, error) {
	p, err := a.run("volplane", "controller", "--controllers=provisioner,attacher,resizer,snapshotter",
		"--csi-address="+a.driver.socket, "--kubeconfig="+a.peerKubeconfig(), "--leader-election-namespace="+space)
	return []*plane.Process{p}, err
}

// theirSidecars runs upstream's programs with raised limits.
func (a *arena) theirSidecars() ([]*plane.Process, error) {
	var all []*plane.Process
	for program, workers := range map[string]string{
		"csi-provisioner": "--worker-threads=100", "csi-attacher": "--worker-threads=100",
		"csi-snapshotter": "--worker-threads=100", "csi-resizer": "--workers=100",
	} {
		p, err := a.run(program, workers, "--csi-address="+a.driver.socket, "--kubeconfig="+a.peerKubeconfig(),
			"--leader-election", "--leader-election-namespace="+space, "--kube-api-qps=1000", "--kube-api-burst=2000")
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

func (s *sidecars) measure(ctx context.Context) error {
	a, ctx, err := newCluster(ctx)
	if err != nil {
		return err
	}
	defer a.close()
	s.arena = a
	if s.sights, err = a.observe(ctx); err != nil {
		return err
	}
	defer s.sights.stop()
	if s.programs, err = s.start(a); err != nil {
		return err
	}
	// They are ready when they serve. Later figures are compared with an attachment without a takeover.
	bound, err := s.appear(ctx, "first")
	s.figures["first_attach_s_"+s.name] = time.Since(bound).Seconds()
	if err := errors.Join(err, s.vanish(ctx, "first")); err != nil {
		return err
	}
	if err := s.idle(ctx); err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{s.begin, s.restart, s.end} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// rest waits until the programs are at rest, and reads their memory.
func (s *sidecars) rest(ctx context.Context, figure string) error {
	if err := pause(ctx, resting); err != nil {
		return err
	}
	sum := 0
	for _, p := range s.programs {
		u, err := readUsage(p.PID())
		if err != nil {
			return err
		}
		sum += u.rssKiB
	}
	s.figures[figure+"_rss_mib_"+s.name] = float64(sum) / 1024
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// idle measures the programs while nothing happens.
func (s *sidecars) idle(ctx context.Context) error {
	if err := s.rest(ctx, "idle"); err != nil {
		return err
	}
	before, err := s.audit()
	if err != nil {
		return err
	}
	if err := pause(ctx, leasing); err != nil {
		return err
	}
	after, err := s.audit()
	s.figures["lease_writes_per_minute_"+s.name] = (after.renewals - before.renewals) / leasing.Minutes()
	sum := 0
	for n := range maps.Values(after.watches) {
		sum += n
	}
	s.figures["watches_"+s.name], s.figures["watched_"+s.name] = sum, after.watches
	return err
}

// spent is what the programs have asked for and used.
type spent struct {
	asked
	cpu time.Duration
	// calls are those of the driver: create, attach, detach, delete.
	calls []int64
}

func (s *sidecars) spent() (spent, error) {
	out := spent{calls: []int64{
		s.driver.created.Load(), s.driver.attached.Load(), s.driver.detached.Load(), s.driver.deleted.Load(),
	}}
	for _, p := range s.programs {
		u, err := readUsage(p.PID())
		if err != nil {
			return out, err
		}
		out.cpu += u.cpu
	}
	var err error
	out.asked, err = s.audit()
	return out, err
}

// half measures one half of the life of all volumes, and the programs' memory after it.
func (s *sidecars) half(ctx context.Context, figure string, live func() error) error {
	before, err := s.spent()
	if err != nil {
		return err
	}
	if err := errors.Join(live(), s.rest(ctx, figure)); err != nil {
		return err
	}
	after, err := s.spent()
	if err != nil {
		return err
	}
	each, all, failed := after.since(before.asked, s.volumes)
	s.figures[figure+"_requests_"+s.name] = each
	s.sum("requests_each_", all)
	s.sum("requests_failed_each_", failed)
	s.figures[figure+"_cpu_ms_each_"+s.name] = milliseconds(after.cpu-before.cpu) / float64(s.volumes)
	s.sum("cpu_ms_each_", milliseconds(after.cpu-before.cpu)/float64(s.volumes))
	for i, call := range []string{"create", "attach", "detach", "delete"} {
		s.sum(call+"_calls_each_", float64(after.calls[i]-before.calls[i])/float64(s.volumes))
	}
	return nil
}

// sum adds to a figure of the whole life.
func (s *sidecars) sum(figure string, more float64) {
	before, _ := s.figures[figure+s.name].(float64)
	s.figures[figure+s.name] = before + more
}

// begin makes volumes and attaches them.
func (s *sidecars) begin(ctx context.Context) error {
	return s.half(ctx, "attached", func() error {
		if err := s.make(ctx, s.volumes, class); err != nil {
			return err
		}
		s.sights.clear()
		if err := s.eachOnNode(s.volumes, func(name, node string) error { return s.use(ctx, name, node) }); err != nil {
			return err
		}
		return s.sights.wait(ctx, func() bool { return len(s.sights.told) == s.volumes })
	})
}

// end detaches all volumes and deletes them.
func (s *sidecars) end(ctx context.Context) error {
	return s.half(ctx, "deleted", func() error {
		s.sights.clear()
		if err := s.each(s.volumes, func(name string) error { return s.unuse(ctx, name) }); err != nil {
			return err
		}
		if err := s.sights.wait(ctx, func() bool { return len(s.sights.gone) == s.volumes }); err != nil {
			return err
		}
		return s.remove(ctx, s.volumes)
	})
}

// restart starts new programs in the place of the old ones, first after a kill, then after a regular end, and measures
// how long it takes until a new volume is attached.
func (s *sidecars) restart(ctx context.Context) error {
	for _, how := range []struct {
		figure string
		end    func(*plane.Process)
	}{{"killed", (*plane.Process).Kill}, {"ended", (*plane.Process).Stop}} {
		if err := s.replace(ctx, how.figure, how.end); err != nil {
			return err
		}
		if how.figure == "killed" {
			if err := s.rest(ctx, "restarted"); err != nil {
				return err
			}
		}
	}
	return nil
}

// replace ends the programs and starts new ones in their place.
func (s *sidecars) replace(ctx context.Context, figure string, end func(*plane.Process)) error {
	before := s.programs
	var err error
	if s.alone {
		if s.programs, err = s.start(s.arena); err != nil {
			return err
		}
		if err := pause(ctx, 10*time.Second); err != nil {
			return err
		}
	}
	began := time.Now()
	for _, p := range before {
		end(p)
	}
	if !s.alone {
		if s.programs, err = s.start(s.arena); err != nil {
			return err
		}
	}
	bound, err := s.appear(ctx, figure)
	if err != nil {
		return err
	}
	if s.alone {
		s.figures[figure+"_takeover_bound_s_"+s.name] = bound.Sub(began).Seconds()
		s.figures[figure+"_takeover_s_"+s.name] = time.Since(began).Seconds()
	}
	return s.vanish(ctx, figure)
}

// appear returns when a new claim is bound, and its volume attached to the node of a new Pod, and when it was bound.
func (s *sidecars) appear(ctx context.Context, name string) (bound time.Time, err error) {
	s.sights.clear()
	claims := s.client.CoreV1().PersistentVolumeClaims(space)
	if _, err := claims.Create(ctx, claimOf(name, class), metav1.CreateOptions{}); err != nil {
		return bound, err
	}
	var handle string
	if err = wait.PollUntilContextCancel(ctx, tick, false, func(ctx context.Context) (bool, error) {
		c, err := claims.Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			handle = "id-" + c.Spec.VolumeName
		}
		return err == nil && c.Status.Phase == corev1.ClaimBound, err
	}); err != nil {
		return bound, err
	}
	bound = time.Now()
	if err = s.use(ctx, name, nodeNamed(0)); err != nil {
		return bound, err
	}
	return bound, s.sights.wait(ctx, func() bool { return !s.sights.told[handle].IsZero() })
}

// vanish returns when such a volume is detached and deleted.
func (s *sidecars) vanish(ctx context.Context, name string) error {
	if err := s.unuse(ctx, name); err != nil {
		return err
	}
	if err := s.sights.wait(ctx, func() bool { return len(s.sights.gone) == 1 }); err != nil {
		return err
	}
	claim, err := s.client.CoreV1().PersistentVolumeClaims(space).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if err := s.client.CoreV1().PersistentVolumeClaims(space).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return wait.PollUntilContextCancel(ctx, tick, false, func(ctx context.Context) (bool, error) {
		_, err := s.client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
}
