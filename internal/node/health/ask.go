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

// askLimit bounds a question to a driver that nothing waits for.
const askLimit = 10 * time.Second

// ask looks at a driver's volumes. When the driver, nil if it is away, does
// not answer it is not asked about the others: they would wait for the same.
func (m *Monitor) ask(ctx context.Context, d *csi.Driver, records []*decide.Record, points map[string]mount.Point) {
	tellsHealth := d != nil && m.tellsHealth(ctx, d)
	asks := d != nil && (d.Node.Stats || tellsHealth)
	for _, r := range records {
		i := slices.IndexFunc(r.Targets, func(t decide.Target) bool { return t.Phase == decide.Published })
		if i < 0 {
			continue
		}
		now, answered := m.lastOf(r), false
		if asks {
			err := m.askVolume(ctx, d, r, r.Targets[i].Path, tellsHealth, &now)
			if answered = err == nil; !answered {
				m.Log.Debug("driver does not say how its volume is", "driver", d.Name, "volume", r.Volume, "err", err)
				asks = decide.AskNext(csi.AnswerOf(err))
			}
		}
		state, looked := m.lookAt(ctx, r, r.Targets[i].Path, points, &now, d == nil || !d.Node.Stats)
		if answered || looked {
			m.learn(r, now, state)
		}
	}
}

// tellsHealth asks a driver once whether it tells of health.
func (m *Monitor) tellsHealth(ctx context.Context, d *csi.Driver) bool {
	m.mu.Lock()
	tells, known := m.healthy[d]
	m.mu.Unlock()
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
	m.mu.Lock()
	defer m.mu.Unlock()
	m.healthy[d] = tells
	return tells
}

// askVolume asks a driver how one of its volumes is, and changes what is known of
// it when all answers are there.
func (m *Monitor) askVolume(
	ctx context.Context, d *csi.Driver, r *decide.Record, path string, health bool, now *Stats,
) error {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	said := *now
	if d.Node.Stats {
		s, err := d.NodeClient().NodeGetVolumeStats(ctx,
			&csipb.NodeGetVolumeStatsRequest{VolumeId: r.Handle, VolumePath: path, StagingTargetPath: r.StagingPath})
		if err != nil {
			return err
		}
		said.Usage = usage(s.GetUsage())
	}
	if health {
		h, err := d.NodeClient().NodeGetVolumeHealth(ctx,
			&csipb.NodeGetVolumeHealthRequest{VolumeId: r.Handle, VolumePublishPath: path, StagingTargetPath: r.StagingPath})
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
