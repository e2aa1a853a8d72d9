package health

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/health"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

const (
	kindDriver = "driver"
	// every is the pause between two cycles.
	every = time.Minute
	// workers is the number of drivers that are asked at once.
	workers = 32
)

// Declaration is what the controller reads and writes.
func Declaration() controller.Declaration {
	return controller.Declaration{
		Name:   "health",
		Inputs: kube.Read("", "persistentvolumeclaims", "persistentvolumes"),
		Outputs: []kube.Access{
			kube.Write("", "persistentvolumeclaims/status", "update").Only("status.healthStatus"),
			kube.Write("", "secrets", "get"),
		},
	}
}

type monitor struct {
	controller.Env
	*controller.Controller
	*memory
	drivers *csi.Set
	claims  kube.Writer[*corev1.PersistentVolumeClaim]
	volumes *kube.Cache[*corev1.PersistentVolume]
}

// New returns the controller for the drivers of a set. It must be made before the caches start.
func New(env controller.Env, drivers *csi.Set) *controller.Controller {
	m := &monitor{
		Env: env, drivers: drivers, memory: newMemory(),
		Controller: &controller.Controller{
			Declaration: Declaration(), Workers: workers, RetryMin: time.Second, RetryMax: every, Log: env.Log,
		},
		claims: env.Caches.WriteClaims(env.Client), volumes: env.Caches.Volumes(),
	}
	m.Controller.Reconcile = m.reconcile
	drivers.Subscribe(func(name string) { m.Add(controller.Key{Kind: kindDriver, Name: name}) })
	for _, name := range drivers.Names() {
		m.Add(controller.Key{Kind: kindDriver, Name: name})
	}
	return m.Controller
}

// reconcile is one cycle of a driver: it is asked about all of its volumes.
func (m *monitor) reconcile(ctx context.Context, key controller.Key) (controller.Result, error) {
	d, ok := m.drivers.Get(key.Name)
	if !ok || !d.Controller.ListVolumeHealth && !d.Controller.GetVolumeHealth {
		m.forget(key.Name)
		return controller.Result{}, nil
	}
	c := &cycle{monitor: m, driver: d, secrets: map[corev1.SecretReference]secret{}}
	err := c.run(ctx)
	return controller.Result{After: every}, err
}

// volumesOf returns the volumes that claims have of a driver, and that this process calls it for.
func (m *monitor) volumesOf(d *csi.Driver) []*corev1.PersistentVolume {
	var out []*corev1.PersistentVolume
	for _, v := range m.volumes.List() {
		if s := v.Spec.CSI; s != nil && s.Driver == d.Name && v.Spec.ClaimRef != nil && d.Scope.Has(provision.MadeOn(v)) {
			out = append(out, v)
		}
	}
	slices.SortFunc(out, func(a, b *corev1.PersistentVolume) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// run asks the driver about its volumes, and writes what it tells.
func (c *cycle) run(ctx context.Context) error {
	volumes := c.volumesOf(c.driver)
	told, complete := c.list(ctx, volumes)
	absences := map[types.UID]int{}
	var failed error
	for _, v := range volumes {
		f := health.Facts{Volume: v, Absences: c.absences(c.driver.Name, v.UID), CanAsk: c.driver.Controller.GetVolumeHealth}
		f.Claim, _ = c.claims.Get(v.Spec.ClaimRef.Namespace + "/" + v.Spec.ClaimRef.Name)
		switch reports, ill := told[v.Spec.CSI.VolumeHandle]; {
		case ill:
			f.Answer, f.Reports = health.Told, reports
		case complete:
			f.Answer = health.Absent
		case !c.driver.Controller.ListVolumeHealth:
			f.Reports, f.Answer = c.ask(ctx, v)
		}
		n, err := c.settle(ctx, f)
		if n > 0 {
			absences[v.UID] = n
		}
		failed = errors.Join(failed, err)
	}
	c.remember(c.driver.Name, absences)
	return failed
}

// settle decides about one volume and writes it, and returns in how many complete lists it is absent now.
func (c *cycle) settle(ctx context.Context, f health.Facts) (absences int, err error) {
	f.Reports = c.hide(ctx, f.Volume, f.Reports)
	p := health.OfClaim(f, metav1.Now())
	if p.Ask {
		asked := f
		if asked.Reports, asked.Answer = c.ask(ctx, f.Volume); asked.Answer == health.Told {
			asked.Reports = c.hide(ctx, f.Volume, asked.Reports)
			p = health.OfClaim(asked, metav1.Now())
		}
	}
	if p.Health == nil || c.dropped {
		return p.Absences, nil
	}
	written, err := c.claims.UpdateStatus(ctx, health.With(f.Claim, p.Health))
	switch {
	case apierrors.IsNotFound(err):
		return 0, nil
	case err != nil:
		// It is decided anew.
		return f.Absences, fmt.Errorf("write health of claim %s: %w", cluster.Key(f.Claim), err)
	}
	// A server without the feature drops the field. Then one claim in each cycle is tried.
	if c.dropped = written.Status.HealthStatus == nil; !c.dropped {
		c.tell(f.Claim, p.Because)
	}
	return p.Absences, nil
}

func (m *monitor) tell(claim *corev1.PersistentVolumeClaim, b volume.Because) {
	if b.Reason == volume.ReasonHealthy {
		m.Events.Note(claim, b)
		return
	}
	m.Events.Warn(claim, b)
}
