package node

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"volplane.dev/volplane/internal/csi"
	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/volume"
)

// VolumeStats is what a driver has said last of a volume that is mounted.
type VolumeStats struct {
	Driver, Handle, Volume string
	// ClaimNamespace and ClaimName are empty for a volume without a claim.
	ClaimNamespace, ClaimName string
	// Usage is how full it is; what the driver does not say is 0.
	Usage mount.Usage
	// Health is what is wrong with it, empty when nothing is known to be, and
	// Next who has to do something about it.
	Health, Next string
	// At is when it was looked at last.
	At time.Time
	// ailments is what the driver says of it.
	ailments string
}

// askLimit bounds a question to a driver that nothing waits for.
const askLimit = 10 * time.Second

// stats keeps what drivers say of volumes.
type stats struct {
	mu   sync.Mutex
	last map[string]VolumeStats
	// healthy says which drivers tell of health.
	healthy map[*csi.Driver]bool
	// asking are the drivers that have not answered yet.
	asking map[string]bool
	// writable are the paths that could once be written to.
	writable map[string]bool
}

// Stats returns what is known of the mounted volumes, ordered by driver and
// handle.
func (a *Agent) Stats() []VolumeStats {
	a.stats.mu.Lock()
	defer a.stats.mu.Unlock()
	out := make([]VolumeStats, 0, len(a.stats.last))
	for _, s := range a.stats.last {
		out = append(out, s)
	}
	slices.SortFunc(out, func(x, y VolumeStats) int {
		return strings.Compare(volume.Key(x.Driver, x.Handle), volume.Key(y.Driver, y.Handle))
	})
	return out
}

// keepStats asks the drivers about their volumes, one after the other and each
// driver for itself: one that hangs delays its own answers only.
func (a *Agent) keepStats(ctx context.Context) {
	tick := time.NewTicker(a.StatsEvery)
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
		for _, r := range a.journal.List() {
			byDriver[r.Driver] = append(byDriver[r.Driver], r)
		}
		points := a.pointsNow()
		for name, records := range byDriver {
			if a.stats.begin(name) {
				d, _ := a.Drivers.Get(name)
				asking.Go(func() {
					defer a.stats.end(name)
					a.askStats(ctx, d, records, points)
				})
			}
		}
		a.forgetStats()
	}
}

// begin says whether to ask a driver now: not while it is being asked.
func (s *stats) begin(driver string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asking[driver] {
		return false
	}
	s.asking[driver] = true
	return true
}

func (s *stats) end(driver string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.asking, driver)
}

// askStats looks at a driver's volumes. When the driver, nil if it is away, does
// not answer it is not asked about the others: they would wait for the same.
func (a *Agent) askStats(ctx context.Context, d *csi.Driver, records []*decide.Record, points map[string]mount.Point) {
	tellsHealth := d != nil && a.tellsHealth(ctx, d)
	asks := d != nil && (d.Node.Stats || tellsHealth)
	for _, r := range records {
		i := slices.IndexFunc(r.Targets, func(t decide.Target) bool { return t.Phase == decide.Published })
		if i < 0 {
			continue
		}
		now, answered := a.lastStats(r), false
		if asks {
			err := a.askVolume(ctx, d, r, r.Targets[i].Path, tellsHealth, &now)
			if answered = err == nil; !answered {
				a.Log.Debug("driver does not say how its volume is", "driver", d.Name, "volume", r.Volume, "err", err)
				code := csi.Code(err)
				asks = code != codes.DeadlineExceeded && code != codes.Unavailable
			}
		}
		state, looked := a.lookAt(ctx, r, r.Targets[i].Path, points, &now, d == nil || !d.Node.Stats)
		if answered || looked {
			a.learnStats(r, now, state)
		}
	}
}

// tellsHealth asks a driver once whether it tells of health.
func (a *Agent) tellsHealth(ctx context.Context, d *csi.Driver) bool {
	a.stats.mu.Lock()
	tells, known := a.stats.healthy[d]
	a.stats.mu.Unlock()
	if known {
		return tells
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	r, err := d.NodeClient().NodeGetCapabilities(ctx, &csipb.NodeGetCapabilitiesRequest{})
	if err != nil {
		return false
	}
	tells = slices.ContainsFunc(r.GetCapabilities(), func(c *csipb.NodeServiceCapability) bool {
		return c.GetRpc().GetType() == csipb.NodeServiceCapability_RPC_GET_VOLUME_HEALTH
	})
	a.stats.mu.Lock()
	defer a.stats.mu.Unlock()
	a.stats.healthy[d] = tells
	return tells
}

// askVolume asks a driver how one of its volumes is, and changes what is known of
// it when all answers are there.
func (a *Agent) askVolume(ctx context.Context, d *csi.Driver, r *decide.Record, path string, health bool, now *VolumeStats) error {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	said := *now
	if d.Node.Stats {
		s, err := d.NodeClient().NodeGetVolumeStats(ctx, &csipb.NodeGetVolumeStatsRequest{VolumeId: r.Handle, VolumePath: path, StagingTargetPath: r.StagingPath})
		if err != nil {
			return err
		}
		said.Usage = usage(s.GetUsage())
	}
	if health {
		h, err := d.NodeClient().NodeGetVolumeHealth(ctx, &csipb.NodeGetVolumeHealthRequest{VolumeId: r.Handle, VolumePublishPath: path, StagingTargetPath: r.StagingPath})
		if err != nil {
			return err
		}
		said.ailments = ailments(h.GetVolumeHealth().GetHealthStatuses())
	}
	*now = said
	return nil
}

// usage takes what makes sense of a driver's answer.
func usage(all []*csipb.VolumeUsage) mount.Usage {
	var out mount.Usage
	for _, u := range all {
		total, used, available := max(u.GetTotal(), 0), max(u.GetUsed(), 0), max(u.GetAvailable(), 0)
		switch u.GetUnit() {
		case csipb.VolumeUsage_BYTES:
			out.Total, out.Used, out.Available = total, used, available
		case csipb.VolumeUsage_INODES:
			out.Inodes, out.InodesUsed, out.InodesAvailable = total, used, available
		}
	}
	return out
}

// maxAilments bounds what is told of one volume.
const maxAilments = 5

// ailments is what is wrong with a volume in one line that does not depend on
// the order in which the driver says it.
func ailments(all []*csipb.VolumeHealth_VolumeHealthEntry) string {
	var out []string
	for _, e := range all {
		text := e.GetStatus().String() + " " + e.GetReason()
		if e.GetMessage() != "" {
			text += ": " + e.GetMessage()
		}
		out = append(out, strings.Join(strings.Fields(strings.ToValidUTF8(text, "?")), " "))
	}
	slices.Sort(out)
	return strings.Join(out[:min(len(out), maxAilments)], "; ")
}

// forgetStats drops what is known of volumes and drivers that are gone.
func (a *Agent) forgetStats() {
	a.stats.mu.Lock()
	defer a.stats.mu.Unlock()
	for key := range a.stats.last {
		if a.journal.Get(key) == nil {
			delete(a.stats.last, key)
		}
	}
	published := map[string]bool{}
	for _, r := range a.journal.List() {
		for _, t := range r.Targets {
			published[t.Path] = true
		}
	}
	maps.DeleteFunc(a.stats.writable, func(path string, _ bool) bool { return !published[path] })
	for d := range a.stats.healthy {
		if now, ok := a.Drivers.Get(d.Name); !ok || now != d {
			delete(a.stats.healthy, d)
		}
	}
}
