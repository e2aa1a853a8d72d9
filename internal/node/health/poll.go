package health

import (
	"context"
	"slices"
	"strings"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"

	"volplane.dev/volplane/internal/csi"
	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/mount"
)

// askTimeout bounds a poll of a driver.
const askTimeout = 10 * time.Second

// pollDriver reads the state of a driver's volumes; d is nil if it is not registered. A driver that
// does not answer for one volume is not asked about the others.
func (m *Monitor) pollDriver(
	ctx context.Context, d *csi.Driver, records []*decide.Record, points map[string]mount.Point,
) {
	hasHealth := d != nil && m.supportsHealth(ctx, d)
	poll := d != nil && (d.Node.Stats || hasHealth)
	for _, r := range records {
		i := slices.IndexFunc(r.Targets, func(t decide.Target) bool {
			return t.Phase == decide.Published && !covered(t, points)
		})
		if i < 0 {
			continue
		}
		now, polled := m.lastOf(r), false
		if poll {
			err := m.pollVolume(ctx, d, r, r.Targets[i].Path, hasHealth, &now)
			if polled = err == nil; !polled {
				m.Log.Debug("driver does not say how its volume is", "driver", d.Name, "volume", r.Volume, "err", err)
				poll = decide.AskNext(csi.AnswerOf(err))
			}
		}
		state, inspected := m.inspect(ctx, r, r.Targets[i].Path, points, &now, d == nil || !d.Node.Stats)
		if polled || inspected {
			m.update(r, now, state)
		}
	}
}

// supportsHealth asks a driver once whether it has the capability GET_VOLUME_HEALTH.
func (m *Monitor) supportsHealth(ctx context.Context, d *csi.Driver) bool {
	m.mu.Lock()
	supported, known := m.reportsHealth[d]
	m.mu.Unlock()
	if known {
		return supported
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	r, err := d.NodeClient().NodeGetCapabilities(ctx, &csipb.NodeGetCapabilitiesRequest{})
	if err != nil {
		return false
	}
	supported = slices.ContainsFunc(r.GetCapabilities(), func(c *csipb.NodeServiceCapability) bool {
		return c.GetRpc().GetType() == csipb.NodeServiceCapability_RPC_GET_VOLUME_HEALTH
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reportsHealth[d] = supported
	return supported
}

// pollVolume asks a driver for the usage and the health of a volume. It changes now only if both
// calls succeed.
func (m *Monitor) pollVolume(
	ctx context.Context, d *csi.Driver, r *decide.Record, path string, health bool, now *Stats,
) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	answer := *now
	if d.Node.Stats {
		s, err := d.NodeClient().NodeGetVolumeStats(ctx,
			&csipb.NodeGetVolumeStatsRequest{VolumeId: r.Handle, VolumePath: path, StagingTargetPath: r.StagingPath})
		if err != nil {
			return err
		}
		answer.Usage = usage(s.GetUsage())
	}
	if health {
		h, err := d.NodeClient().NodeGetVolumeHealth(ctx,
			&csipb.NodeGetVolumeHealthRequest{VolumeId: r.Handle, VolumePublishPath: path, StagingTargetPath: r.StagingPath})
		if err != nil {
			return err
		}
		answer.problems = problems(h.GetVolumeHealth().GetHealthStatuses())
	}
	*now = answer
	return nil
}

// usage converts a driver's answer; negative numbers count as 0.
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

// maxProblems is how many problems of one volume are reported.
const maxProblems = 5

// problems returns what a driver reports as wrong with a volume, in one line that does not depend on
// the order of the reports.
func problems(all []*csipb.VolumeHealth_VolumeHealthEntry) string {
	var out []string
	for _, e := range all {
		text := e.GetStatus().String() + " " + e.GetReason()
		if e.GetMessage() != "" {
			text += ": " + e.GetMessage()
		}
		out = append(out, strings.Join(strings.Fields(strings.ToValidUTF8(text, "?")), " "))
	}
	slices.Sort(out)
	return strings.Join(out[:min(len(out), maxProblems)], "; ")
}
