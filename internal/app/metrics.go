package app

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/controller/capacity"
	"volplane.dev/volplane/internal/controller/provisioner"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/snapshot"
	"volplane.dev/volplane/internal/gather/world"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/node"
	"volplane.dev/volplane/internal/process/observe"
)

// readiness says how far a process of Controllers is.
type readiness struct{ driver, leads, works atomic.Bool }

var errNoDriverYet = errors.New("the driver does not answer yet")

// checks returns what must be so for the process to be ready. One that waits for a lease that another process holds is
// ready: it takes over immediately.
func (r *readiness) checks() []observe.Check {
	return []observe.Check{
		{Name: "driver", Ready: func() error { return kube.Unless(r.driver.Load(), errNoDriverYet) }},
		{Name: "controllers", Ready: func() error {
			return kube.Unless(!r.leads.Load() || r.works.Load(), world.ErrNotRead)
		}},
	}
}

func (r *readiness) rests() {
	r.leads.Store(false)
	r.works.Store(false)
}

// measure counts what a controller does.
func measure(r *observe.Registry, name string, c *controller.Controller) {
	if r != nil {
		c.Measure(keys{r.Queue(name, func() observe.Load { return observe.Load(c.Load()) })})
	}
}

// keys counts the keys of a controller.
type keys struct{ *observe.Queue }

// Ended implements queue.Meter.
func (k keys) Ended(key controller.Key, took time.Duration, err error) {
	result := "ok"
	if err != nil {
		if result = "error"; apierrors.IsConflict(err) {
			result = "conflict"
		}
		k.Retried()
	}
	k.Queue.Ended(key.Kind, result, took)
}

// attempts counts those of the provisioner.
type attempts struct{ *observe.Registry }

// Intents implements provisioner.Meter.
func (a attempts) Intents(count func() int) {
	a.Gauge(observe.Intents, func(set observe.Set) { set(float64(count())) })
}

func provisionMeter(r *observe.Registry) provisioner.Meter {
	if r == nil {
		return nil
	}
	return attempts{r}
}

func countCapacities(r *observe.Registry) func(func() capacity.Count) {
	if r == nil {
		return nil
	}
	return func(count func() capacity.Count) {
		for name, of := range map[string]func(capacity.Count) int{
			observe.CapacitiesGoal:     func(c capacity.Count) int { return c.Goal },
			observe.CapacitiesCurrent:  func(c capacity.Count) int { return c.Current },
			observe.CapacitiesObsolete: func(c capacity.Count) int { return c.Obsolete },
		} {
			r.Gauge(name, func(set observe.Set) { set(float64(of(count()))) })
		}
	}
}

// measureDrivers tells which drivers are connected. One that has gone is told as such while it is wanted.
func measureDrivers(r *observe.Registry, drivers *csi.Set, wanted func(name string) bool) {
	var known sync.Map
	note := func(name string) { known.Store(name, nil) }
	drivers.Subscribe(note)
	for _, name := range drivers.Names() {
		note(name)
	}
	r.Gauge(observe.DriverUp, func(set observe.Set) {
		known.Range(func(name, _ any) bool {
			d, ok := drivers.Get(name.(string))
			switch {
			case ok && d.Connected():
				set(1, name.(string))
			case ok || wanted(name.(string)):
				set(0, name.(string))
			}
			return true
		})
	})
}

// measureNode tells what a node agent has seen, under a kubelet's names.
func measureNode(r *observe.Registry, agent *node.Agent) {
	for name, of := range map[string]func(mount.Usage) int64{
		observe.VolumeCapacity:   func(u mount.Usage) int64 { return u.Total },
		observe.VolumeAvailable:  func(u mount.Usage) int64 { return u.Available },
		observe.VolumeUsed:       func(u mount.Usage) int64 { return u.Used },
		observe.VolumeInodes:     func(u mount.Usage) int64 { return u.Inodes },
		observe.VolumeInodesFree: func(u mount.Usage) int64 { return u.InodesAvailable },
		observe.VolumeInodesUsed: func(u mount.Usage) int64 { return u.InodesUsed },
	} {
		r.Gauge(name, func(set observe.Set) {
			for _, v := range agent.Seen().Volumes {
				// A driver that tells no inodes has none to run out of.
				if v.ClaimName != "" && measured(name, v.Usage) {
					set(float64(of(v.Usage)), v.ClaimNamespace, v.ClaimName)
				}
			}
		})
	}
	r.Gauge(observe.VolumeReadOnly, func(set observe.Set) {
		for _, v := range agent.Seen().Volumes {
			if v.ClaimName != "" {
				set(map[bool]float64{true: 1}[v.ReadOnly], v.ClaimNamespace, v.ClaimName)
			}
		}
	})
	r.Gauge(observe.StorageHealth, func(set observe.Set) {
		for driver, all := range agent.Seen().Storage {
			for _, c := range all {
				set(1, driver, string(c.Status), c.Reason)
			}
		}
	})
	r.Gauge(observe.Leftover, func(set observe.Set) {
		seen := agent.Seen()
		set(float64(seen.UnknownMounts), "mount")
		set(float64(seen.UnreadableRecords), "record")
	})
}

// measured says whether a volume's usage has what a gauge tells: a driver may report bytes or inodes only.
func measured(name string, u mount.Usage) bool {
	switch name {
	case observe.VolumeInodes, observe.VolumeInodesFree, observe.VolumeInodesUsed:
		return u.Inodes > 0
	}
	return u.Total > 0
}

// measureSnapshots measures how long snapshots take.
func measureSnapshots(r *observe.Registry, caches *kube.Caches) {
	to, contents, classes := r.Snapshots(), caches.SnapshotContents(), caches.SnapshotClasses()
	caches.Snapshots().Watch(func(before, after *snapshotv1.VolumeSnapshot) {
		s := controller.Latest(before, after)
		driver := ""
		if c, ok := contents.Get(snapshot.ContentName(s)); ok {
			driver = c.Spec.Driver
		} else if name := s.Spec.VolumeSnapshotClassName; name != nil {
			if class, ok := classes.Get(*name); ok {
				driver = class.Driver
			}
		}
		to.Changed(observe.Snapshot{
			UID: string(s.UID), Driver: driver, PreProvisioned: s.Spec.Source.VolumeSnapshotContentName != nil,
			Created: s.Status != nil && s.Status.CreationTime != nil, Ready: snapshot.IsReady(s),
			Deleting: s.DeletionTimestamp != nil, Gone: after == nil,
		})
	})
}
