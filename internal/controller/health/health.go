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
	// every is the pause between two cycles, unless one is set.
	every = time.Minute
	// workers is the number of drivers that are called at the same time.
	workers = 32
)

// Options configure the controller; the zero value is for a control plane.
type Options struct {
	// Every is the pause between two cycles of a driver; 0 means a minute.
	Every time.Duration
	// Timeout is the time limit of a call; 0 means that of other calls.
	Timeout time.Duration
	// Volumes is the number of volumes that one driver is queried about at the same time; 0 means one.
	Volumes int
	// Wanted says that users have asked for the health of these drivers' volumes: the log then warns about drivers that
	// cannot report it.
	Wanted bool
}

// Declaration is what the controller reads and writes.
func Declaration() controller.Declaration {
	return controller.Declaration{
		Name:   "health",
		Inputs: kube.Read("", "persistentvolumeclaims", "persistentvolumes"),
		Outputs: []kube.Access{
			kube.Write("", "persistentvolumeclaims/status", "patch").Only("status.healthStatus"),
			kube.Write("", "secrets", "get"),
		},
	}
}

type monitor struct {
	controller.Env
	*controller.Controller
	*memory
	options Options
	drivers *csi.Set
	claims  kube.Writer[*corev1.PersistentVolumeClaim]
	volumes *kube.Cache[*corev1.PersistentVolume]
}

// New returns the controller for the drivers of a set. It must be made before the caches start.
func New(env controller.Env, drivers *csi.Set, o Options) *controller.Controller {
	o.Every, o.Volumes = cmp.Or(o.Every, every), max(o.Volumes, 1)
	m := &monitor{
		Env: env, options: o, drivers: drivers, memory: newMemory(),
		Controller: &controller.Controller{
			Declaration: Declaration(), Workers: workers, RetryMin: min(time.Second, o.Every), RetryMax: o.Every,
			Log: env.Log,
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

// reconcile is one cycle of a driver, which is queried about all of its volumes.
func (m *monitor) reconcile(ctx context.Context, key controller.Key) (controller.Result, error) {
	d, ok := m.drivers.Get(key.Name)
	if !ok {
		m.forget(key.Name)
		return controller.Result{}, nil
	}
	how, ok := callsOf(d)
	if !ok {
		if m.options.Wanted {
			m.Env.Log.Warn("driver cannot report the health of its volumes: it has neither the capability "+
				"LIST_VOLUME_HEALTH nor GET_VOLUME_HEALTH, nor VOLUME_CONDITION with LIST_VOLUMES or GET_VOLUME", "driver", d.Name)
		}
		m.forget(key.Name)
		return controller.Result{}, nil
	}
	c := &cycle{monitor: m, driver: d, calls: how, secrets: map[corev1.SecretReference]secret{}}
	err := c.run(ctx)
	return controller.Result{After: m.options.Every}, err
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

// run asks the driver about its volumes, and writes the reported health.
func (c *cycle) run(ctx context.Context) error {
	volumes := c.volumesOf(c.driver)
	told, complete := c.list(ctx, volumes)
	asked := c.askEach(ctx, volumes)
	known := c.known(c.driver.Name)
	after := map[types.UID]record{}
	var failed error
	for i, v := range volumes {
		last := known[v.UID]
		f := health.Facts{Volume: v, Absences: last.absences, CanAsk: c.one != nil}
		f.Claim, _ = c.claims.Get(v.Spec.ClaimRef.Namespace + "/" + v.Spec.ClaimRef.Name)
		if f.Claim != nil && last.told != nil {
			f.Claim = health.With(f.Claim, last.told)
		}
		switch reports, listed := told[v.Spec.CSI.VolumeHandle]; {
		case listed:
			f.Answer, f.Reports = health.Told, reports
		case complete && c.unhealthyOnly:
			f.Answer = health.Absent
		case c.page == nil:
			f.Reports, f.Answer = asked[i].reports, asked[i].answer
		}
		next, err := c.settle(ctx, f, last)
		if next != (record{}) {
			after[v.UID] = next
		}
		failed = errors.Join(failed, err)
	}
	c.remember(c.driver.Name, after)
	return failed
}

// settle decides about one volume, writes the result, and returns the record for the next cycle.
func (c *cycle) settle(ctx context.Context, f health.Facts, last record) (record, error) {
	f.Reports = c.hide(ctx, f.Volume, f.Reports)
	p := health.OfClaim(f, metav1.Now())
	if p.Ask {
		if asked := c.ask(ctx, f.Volume); asked.answer == health.Told {
			f.Answer, f.Reports = health.Told, c.hide(ctx, f.Volume, asked.reports)
			p = health.OfClaim(f, metav1.Now())
		}
	}
	next := record{absences: p.Absences, told: last.told}
	if p.Health == nil {
		return next, nil
	}
	kept, err := c.write(ctx, f.Claim, p.Health)
	switch {
	case apierrors.IsNotFound(err):
		return record{}, nil
	case err != nil:
		// It is decided again.
		return last, fmt.Errorf("write health of claim %s: %w", cluster.Key(f.Claim), err)
	}
	c.recordEvent(f.Claim, p.Because)
	if next.told = nil; !kept && len(p.Health.HealthConditions) > 0 {
		next.told = p.Health
	}
	return next, nil
}

// write writes the health of a claim, and says whether the claim has it now. A server without the feature drops the
// field, and upstream's manifests grant rights for events only; events alone then report the health, as upstream's do.
// After a failed write no other claim is tried in the cycle.
func (c *cycle) write(
	ctx context.Context, claim *corev1.PersistentVolumeClaim, h *corev1.VolumeHealthStatus,
) (kept bool, err error) {
	if c.eventsOnly {
		return false, nil
	}
	written, err := c.claims.Change(ctx, claim, health.With(claim, h), "status")
	if apierrors.IsForbidden(err) {
		c.eventsOnly = true
		return false, nil
	}
	if err != nil {
		return false, err
	}
	c.eventsOnly = written.Status.HealthStatus == nil
	return !c.eventsOnly, nil
}

func (m *monitor) recordEvent(claim *corev1.PersistentVolumeClaim, b volume.Because) {
	if b.Reason == volume.ReasonHealthy {
		m.Events.Note(claim, b)
		return
	}
	m.Events.Warn(claim, b)
}
