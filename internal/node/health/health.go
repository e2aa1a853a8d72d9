package health

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/health"
	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/node/journal"
)

// Options are the settings and the collaborators of a Monitor.
type Options struct {
	// Node is the Node's name, Root the agent's root directory.
	Node, Root string
	// TrustDrivers says that the mount table is not read.
	TrustDrivers bool
	Journal      *journal.Journal
	Drivers      *csi.Set
	Pods         *kube.Cache[*corev1.Pod]
	Claims       cluster.Objects[*corev1.PersistentVolumeClaim]
	Volumes      cluster.Objects[*corev1.PersistentVolume]
	Liveness     *mount.Liveness
	Events       *kube.Recorder
	Log          *slog.Logger
	// Every is the pause between two inspections of all volumes.
	Every time.Duration
	// HealthChanged receives the keys of the Pods of a volume whose health has changed.
	HealthChanged func(pod string)
	// StorageHealth receives what a driver reports about its storage.
	StorageHealth func(ctx context.Context, driver string, conditions []storagev1.StorageHealthCondition)
	// MountsRead receives the mount table that each inspection reads.
	MountsRead func(points map[string]mount.Point)
}

// Monitor inspects the volumes of a node.
type Monitor struct {
	Options

	mu sync.Mutex
	// last is the latest state of each volume, by its key.
	last map[string]Stats
	// asking are the drivers whose poll is in flight.
	asking map[string]bool
	// writable are the paths that were writable at some time.
	writable map[string]bool
}

// New returns a Monitor that is not started.
func New(o Options) *Monitor {
	return &Monitor{
		Options: o, last: map[string]Stats{}, asking: map[string]bool{}, writable: map[string]bool{},
	}
}

// Of returns the state of a volume, by its key, and whether it has been inspected.
func (m *Monitor) Of(key string) (Stats, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, ok := m.last[key]
	return s, ok
}

// All returns the state of all volumes that have been inspected.
func (m *Monitor) All() []Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.last))
}

// Run inspects all volumes periodically until ctx ends. Each driver has a goroutine, which polls one
// volume after the other: a driver that hangs delays only its own volumes.
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
		for _, name := range m.Drivers.Names() {
			byDriver[name] = nil
		}
		for _, r := range m.Journal.List() {
			byDriver[r.Driver] = append(byDriver[r.Driver], r)
		}
		points := m.points()
		if points != nil {
			m.MountsRead(points)
		}
		for name, records := range byDriver {
			if m.start(name) {
				d, _ := m.Drivers.Get(name)
				asking.Go(func() {
					defer m.finish(name)
					m.pollDriver(ctx, d, records, points)
				})
			}
		}
		m.removeStale()
	}
}

// start says whether to poll a driver now: not while its last poll is in flight.
func (m *Monitor) start(driver string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.asking[driver] {
		return false
	}
	m.asking[driver] = true
	return true
}

func (m *Monitor) finish(driver string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.asking, driver)
}

// points reads the mount table. It does not use a cached table, because the kernel does not notify
// that a filesystem has become read-only because of an error. It is nil if drivers are trusted, or if
// the table cannot be read.
func (m *Monitor) points() map[string]mount.Point {
	if m.TrustDrivers {
		return nil
	}
	all, err := mount.Below(m.Root)
	if err != nil {
		m.Log.Warn("volumes are not inspected, mount table cannot be read", "err", err)
		return nil
	}
	points := make(map[string]mount.Point, len(all))
	for _, p := range all {
		p.NoWrites = p.NoWrites || mount.ShutDown(p)
		points[p.Path] = p
	}
	return points
}

// lastOf returns the last state of a volume, with its present claim.
func (m *Monitor) lastOf(r *decide.Record) Stats {
	m.mu.Lock()
	now := m.last[r.Key()]
	m.mu.Unlock()
	now.Driver, now.Handle, now.Volume, now.At = r.Driver, r.Handle, r.Volume, time.Now()
	pvs := m.Volumes.By(cluster.VolumesByHandle, r.Key())
	mounted := max(0, slices.IndexFunc(pvs, func(pv *corev1.PersistentVolume) bool { return pv.Name == r.Volume }))
	if len(pvs) > 0 && pvs[mounted].Spec.ClaimRef != nil {
		now.ClaimNamespace, now.ClaimName = pvs[mounted].Spec.ClaimRef.Namespace, pvs[mounted].Spec.ClaimRef.Name
	}
	return now
}

// inspect adds what the host shows about a volume, and says whether it is mounted; measure means that its driver does
// not report the usage.
func (m *Monitor) inspect(
	ctx context.Context, r *decide.Record, path string, points map[string]mount.Point, now *Stats, measure bool,
) (decide.State, bool) {
	_, mounted := points[path]
	inspected := mounted && !r.Block
	if inspected && measure {
		if u, err := m.Liveness.Usage(ctx, path); err == nil {
			now.Usage = u
		}
	}
	s := stateOf(*now)
	if inspected {
		s.ReadOnly = slices.ContainsFunc(r.Targets, func(t decide.Target) bool {
			return t.Phase == decide.Published && !t.ReadOnly && !covered(t, points) && m.becameReadOnly(t.Path, points)
		})
		if now.ReadOnly = !writable(r, points); now.ReadOnly {
			s.Total, s.Inodes = 0, 0
		}
	}
	return s, inspected
}

// writable says whether a volume is mounted anywhere so that it can be written to.
func writable(r *decide.Record, points map[string]mount.Point) bool {
	return slices.ContainsFunc(r.Targets, func(t decide.Target) bool {
		p, mounted := points[t.Path]
		return mounted && !p.ReadOnly && !p.NoWrites
	})
}

// stateOf returns the state according to a driver's answers and the usage.
func stateOf(now Stats) decide.State {
	u, s := now.Usage, decide.State{DriverProblems: now.problems}
	// A driver may report only a part of the usage.
	if u.Used > 0 {
		s.Total, s.Available = u.Total, u.Available
	}
	if u.InodesUsed > 0 {
		s.Inodes, s.InodesAvailable = u.Inodes, u.InodesAvailable
	}
	return s
}

// covered says whether another filesystem is mounted over a target, which hides the volume's.
func covered(t decide.Target, points map[string]mount.Point) bool {
	p, mounted := points[t.Path]
	return mounted && !p.MayShow(t.Filesystem)
}

// becameReadOnly says whether the filesystem at a path has become read-only after a writable mount. A driver that
// mounts read-only sets the flag of the mount; so a filesystem that is read-only without that flag, or that was
// writable here before, has changed.
func (m *Monitor) becameReadOnly(path string, points map[string]mount.Point) bool {
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
	mayChange := slices.Contains([]string{"ext2", "ext3", "ext4", "btrfs", "f2fs", "vfat", "exfat", "xfs"}, p.Type)
	return m.writable[path] || mayChange && !p.ReadOnly
}

// update stores the new state of a volume, and reports a change of its health.
func (m *Monitor) update(r *decide.Record, now Stats, state decide.State) {
	now.Health, now.Next = state.Problems(r.Driver, m.Node)
	m.mu.Lock()
	before, known := m.last[r.Key()]
	m.last[r.Key()] = now
	m.mu.Unlock()
	pods := m.consumers(r)
	if before.Health != now.Health {
		m.recordEvents(r, now, pods)
	}
	if known && before.Health == now.Health && before.Reported == now.Reported &&
		health.Same(before.Conditions, now.Conditions) {
		return
	}
	for _, pod := range pods {
		m.HealthChanged(cluster.Key(pod))
	}
}

// consumers returns the Pods that have a volume, and those that want it through its claim.
func (m *Monitor) consumers(r *decide.Record) []*corev1.Pod {
	byUID := map[types.UID]*corev1.Pod{}
	for _, t := range r.Targets {
		if pod, ok := m.Pods.ByUID(t.PodUID); ok {
			byUID[pod.UID] = pod
		}
	}
	for _, pv := range m.Volumes.By(cluster.VolumesByHandle, r.Key()) {
		if ref := pv.Spec.ClaimRef; ref != nil {
			for _, pod := range m.Pods.By(cluster.PodsByClaim, ref.Namespace+"/"+ref.Name) {
				if !cluster.Finished(pod) {
					byUID[pod.UID] = pod
				}
			}
		}
	}
	return slices.Collect(maps.Values(byUID))
}

// recordEvents records the new health of a volume at its Pods and its claim.
func (m *Monitor) recordEvents(r *decide.Record, now Stats, pods []*corev1.Pod) {
	b := decide.Health(r.Volume, m.Node, now.Health, now.Next)
	record := m.Events.Warn
	if now.Health == "" {
		record = m.Events.Note
	}
	for _, pod := range pods {
		record(pod, b)
	}
	if claim, ok := m.Claims.Get(now.ClaimNamespace + "/" + now.ClaimName); ok {
		record(claim, b)
	}
}

// removeStale deletes the state of volumes that are gone.
func (m *Monitor) removeStale() {
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
}
