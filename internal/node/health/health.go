package health

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/csi"
	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/node/journal"
)

// Options says what the volumes of a node are looked at with.
type Options struct {
	// Node is the Node's name, Root the agent's root directory.
	Node, Root string
	// TrustDrivers says that the mount table is not looked at.
	TrustDrivers bool
	Journal      *journal.Journal
	Drivers      *csi.Set
	Pods         *kube.Cache[*corev1.Pod]
	Claims       cluster.Objects[*corev1.PersistentVolumeClaim]
	Volumes      cluster.Objects[*corev1.PersistentVolume]
	Liveness     *mount.Liveness
	Events       *kube.Recorder
	Log          *slog.Logger
	// Every is the pause between two looks.
	Every time.Duration
	// Changed is told the keys of the Pods of a volume that fell ill or is well again.
	Changed func(pod string)
	// Looked is given the mount table of each look.
	Looked func(points map[string]mount.Point)
}

// Monitor looks at the volumes of a node.
type Monitor struct {
	Options

	mu sync.Mutex
	// last is what is known of each volume, by its key.
	last map[string]Stats
	// healthy says which drivers tell of health.
	healthy map[*csi.Driver]bool
	// asking are the drivers that have not answered yet.
	asking map[string]bool
	// writable are the paths that could once be written to.
	writable map[string]bool
}

// New returns a Monitor that knows nothing yet.
func New(o Options) *Monitor {
	return &Monitor{
		Options: o, last: map[string]Stats{}, healthy: map[*csi.Driver]bool{}, asking: map[string]bool{},
		writable: map[string]bool{},
	}
}

// Of returns what is known of a volume, by its key, and whether it was looked at.
func (m *Monitor) Of(key string) (Stats, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, ok := m.last[key]
	return s, ok
}

// Run asks the drivers about their volumes, one after the other and each
// driver for itself, until ctx ends: one that hangs delays its own answers only.
func (m *Monitor) Run(ctx context.Context) {
	tick := time.NewTicker(m.Every)
	defer tick.Stop()
	var asking sync.WaitGroup
	defer asking.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		byDriver := map[string][]*decide.Record{}
		for _, r := range m.Journal.List() {
			byDriver[r.Driver] = append(byDriver[r.Driver], r)
		}
		points := m.points()
		if points != nil {
			m.Looked(points)
		}
		for name, records := range byDriver {
			if m.enter(name) {
				d, _ := m.Drivers.Get(name)
				asking.Go(func() {
					defer m.leave(name)
					m.ask(ctx, d, records, points)
				})
			}
		}
		m.forget()
	}
}

// enter says whether to ask a driver now: not while it is being asked.
func (m *Monitor) enter(driver string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.asking[driver] {
		return false
	}
	m.asking[driver] = true
	return true
}

func (m *Monitor) leave(driver string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.asking, driver)
}

// points reads the mount table anew: that a filesystem has become read-only by
// itself is no change of the table of which the kernel tells. It is nil where the
// table is not believed, or cannot be read.
func (m *Monitor) points() map[string]mount.Point {
	if m.TrustDrivers {
		return nil
	}
	all, err := mount.Below(m.Root)
	if err != nil {
		m.Log.Warn("volumes are not looked at", "err", err)
		return nil
	}
	points := make(map[string]mount.Point, len(all))
	for _, p := range all {
		points[p.Path] = p
	}
	return points
}

// lastOf returns what was known last of a volume, with the claim that it is
// for now.
func (m *Monitor) lastOf(r *decide.Record) Stats {
	m.mu.Lock()
	now := m.last[r.Key()]
	m.mu.Unlock()
	now.Driver, now.Handle, now.Volume, now.At = r.Driver, r.Handle, r.Volume, time.Now()
	if pvs := m.Volumes.By(cluster.VolumesByHandle, r.Key()); len(pvs) > 0 && pvs[0].Spec.ClaimRef != nil {
		now.ClaimNamespace, now.ClaimName = pvs[0].Spec.ClaimRef.Namespace, pvs[0].Spec.ClaimRef.Name
	}
	return now
}

// lookAt adds what the host itself shows of a volume; measure says that its
// driver does not tell how full it is. It says whether there was anything to see.
func (m *Monitor) lookAt(
	ctx context.Context, r *decide.Record, path string, points map[string]mount.Point, now *Stats, measure bool,
) (decide.State, bool) {
	p, mounted := points[path]
	looked := mounted && !r.Block
	if looked && measure {
		if u, err := m.Liveness.Usage(ctx, path); err == nil {
			now.Usage = u
		}
	}
	u := now.Usage
	s := decide.State{Ailments: now.ailments}
	// A driver need not tell all of it.
	if u.Used > 0 {
		s.Total, s.Available = u.Total, u.Available
	}
	if u.InodesUsed > 0 {
		s.Inodes, s.InodesAvailable = u.Inodes, u.InodesAvailable
	}
	if looked {
		s.ReadOnly = slices.ContainsFunc(r.Targets, func(t decide.Target) bool {
			return t.Phase == decide.Published && !t.ReadOnly && m.turned(t.Path, points)
		})
		// What cannot be written to need not have room.
		if p.ReadOnly || p.NoWrites {
			s.Total, s.Inodes = 0, 0
		}
	}
	return s, looked
}

// turned says whether the filesystem at a path, where it was to be written to, has
// become read-only by itself. A driver that mounts read-only sets the mount's own
// flag; what could once be written to here was not mounted so.
func (m *Monitor) turned(path string, points map[string]mount.Point) bool {
	p, mounted := points[path]
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case !mounted:
		return false
	case !p.NoWrites:
		m.writable[path] = m.writable[path] || !p.ReadOnly
		return false
	}
	turns := slices.Contains([]string{"ext2", "ext3", "ext4", "btrfs", "f2fs", "vfat", "exfat", "xfs"}, p.Type)
	return m.writable[path] || turns && !p.ReadOnly
}

// learn keeps what was seen of a volume, and tells when it fell ill or is
// well again.
func (m *Monitor) learn(r *decide.Record, now Stats, state decide.State) {
	now.Health, now.Next = state.Ails(r.Driver, m.Node)
	m.mu.Lock()
	before, known := m.last[r.Key()]
	m.last[r.Key()] = now
	m.mu.Unlock()
	if before.Health != now.Health {
		m.tell(r, now)
	}
	if before.Health == now.Health && known {
		return
	}
	for _, t := range r.Targets {
		m.Changed(t.PodNamespace + "/" + t.PodName)
	}
}

// tell tells the volume's Pods and its claim that it is well or ill now.
func (m *Monitor) tell(r *decide.Record, now Stats) {
	b := decide.Health(r.Volume, m.Node, now.Health, now.Next)
	record := m.Events.Warn
	if now.Health == "" {
		record = m.Events.Note
	}
	for _, t := range r.Targets {
		if pod, ok := m.Pods.ByUID(t.PodUID); ok {
			record(pod, b)
		}
	}
	if claim, ok := m.Claims.Get(now.ClaimNamespace + "/" + now.ClaimName); ok {
		record(claim, b)
	}
}

// forget drops what is known of volumes and drivers that are gone.
func (m *Monitor) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key := range m.last {
		if m.Journal.Get(key) == nil {
			delete(m.last, key)
		}
	}
	published := map[string]bool{}
	for _, r := range m.Journal.List() {
		for _, t := range r.Targets {
			published[t.Path] = true
		}
	}
	maps.DeleteFunc(m.writable, func(path string, _ bool) bool { return !published[path] })
	for d := range m.healthy {
		if now, ok := m.Drivers.Get(d.Name); !ok || now != d {
			delete(m.healthy, d)
		}
	}
}
