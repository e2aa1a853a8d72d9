package node

import (
	"context"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/cluster"
	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/node/uses"
	"volplane.dev/volplane/internal/volume"
)

// pointsNow reads the mount table anew: that a filesystem has become read-only by
// itself is no change of the table of which the kernel tells. It is nil where the
// table is not believed, or cannot be read.
func (a *Agent) pointsNow() map[string]mount.Point {
	if a.TrustDrivers {
		return nil
	}
	all, err := mount.Below(a.RootDir)
	if err != nil {
		a.Log.Warn("volumes are not looked at", "err", err)
		return nil
	}
	points := make(map[string]mount.Point, len(all))
	for _, p := range all {
		points[p.Path] = p
	}
	return points
}

// lastStats returns what was known last of a volume, with the claim that it is
// for now.
func (a *Agent) lastStats(r *decide.Record) VolumeStats {
	a.stats.mu.Lock()
	now := a.stats.last[r.Key()]
	a.stats.mu.Unlock()
	now.Driver, now.Handle, now.Volume, now.At = r.Driver, r.Handle, r.Volume, time.Now()
	if pvs := a.volumes.By(cluster.VolumesByHandle, r.Key()); len(pvs) > 0 && pvs[0].Spec.ClaimRef != nil {
		now.ClaimNamespace, now.ClaimName = pvs[0].Spec.ClaimRef.Namespace, pvs[0].Spec.ClaimRef.Name
	}
	return now
}

// lookAt adds what the host itself shows of a volume; measure says that its
// driver does not tell how full it is. It says whether there was anything to see.
func (a *Agent) lookAt(ctx context.Context, r *decide.Record, path string, points map[string]mount.Point, now *VolumeStats, measure bool) (decide.State, bool) {
	p, mounted := points[path]
	looked := mounted && !r.Block
	if looked && measure {
		if u, err := a.liveness.Usage(ctx, path); err == nil {
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
			return t.Phase == decide.Published && !t.ReadOnly && a.stats.turned(t.Path, points)
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
func (s *stats) turned(path string, points map[string]mount.Point) bool {
	p, mounted := points[path]
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !mounted:
		return false
	case !p.NoWrites:
		s.writable[path] = s.writable[path] || !p.ReadOnly
		return false
	}
	turns := slices.Contains([]string{"ext2", "ext3", "ext4", "btrfs", "f2fs", "vfat", "exfat", "xfs"}, p.Type)
	return s.writable[path] || turns && !p.ReadOnly
}

// learnStats keeps what was seen of a volume, and tells when it fell ill or is
// well again.
func (a *Agent) learnStats(r *decide.Record, now VolumeStats, state decide.State) {
	now.Health, now.Next = state.Ails(r.Driver, a.Name)
	a.stats.mu.Lock()
	before, known := a.stats.last[r.Key()]
	a.stats.last[r.Key()] = now
	a.stats.mu.Unlock()
	if before.Health != now.Health {
		a.tellHealth(r, now)
	}
	if before.Health == now.Health && known {
		return
	}
	for _, t := range r.Targets {
		a.podQueue.Add(t.PodNamespace + "/" + t.PodName)
	}
}

// tellHealth tells the volume's Pods and its claim that it is well or ill now.
func (a *Agent) tellHealth(r *decide.Record, now VolumeStats) {
	b := decide.Health(r.Volume, a.Name, now.Health, now.Next)
	record := a.Events.Warn
	if now.Health == "" {
		record = a.Events.Note
	}
	for _, t := range r.Targets {
		if pod, ok := a.pods.ByUID(t.PodUID); ok {
			record(pod, b)
		}
	}
	if claim, ok := a.claims.Get(now.ClaimNamespace + "/" + now.ClaimName); ok {
		record(claim, b)
	}
}

// podHealth returns what the Pod's condition says of how its volumes are, and who
// has to act; nothing for one whose volumes are well and always were. What was ill
// before this agent was started is so until it has been looked at.
func (a *Agent) podHealth(pod *corev1.Pod) (c *corev1.PodCondition, next string) {
	before := uses.Condition(pod, volume.ConditionVolumesHealthy)
	c = &corev1.PodCondition{Type: volume.ConditionVolumesHealthy, Status: corev1.ConditionTrue, Reason: string(volume.ReasonHealthy), Message: "all volumes are well again"}
	waits := false
	for _, u := range a.finder.Of(pod) {
		if u.PV == nil {
			continue
		}
		a.stats.mu.Lock()
		s, looked := a.stats.last[u.Key()]
		a.stats.mu.Unlock()
		waits = waits || !looked && before != nil && strings.Contains(before.Message, "volume "+u.PV.Name+" ")
		if s.Health != "" && c.Status == corev1.ConditionTrue {
			b := decide.Health(s.Volume, a.Name, s.Health, s.Next)
			c.Status, c.Reason, c.Message, next = corev1.ConditionFalse, string(b.Reason), b.Message, b.Next
		}
	}
	if c.Status == corev1.ConditionTrue && (before == nil || waits) {
		return before.DeepCopy(), pod.Annotations[volume.AnnNextHealthy]
	}
	return c, next
}
