package health

import (
	"context"
	"slices"
	"strings"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/health"
	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/process/redact"
	"volplane.dev/volplane/internal/volume"
)

// askTimeout bounds a poll of a driver.
const askTimeout = 10 * time.Second

// asks has the queries that a driver supports.
type asks struct{ stats, health bool }

// place is the path with which a driver is called about a volume.
type place struct {
	path string
	// published means that the volume can be seen there; otherwise its publishing was only attempted.
	published bool
}

// placeOf returns the path with which to query a volume, and whether to query it at all.
func placeOf(r *decide.Record, points map[string]mount.Point) (place, bool) {
	hidden := false
	for _, t := range r.Targets {
		if t.Phase != decide.Published {
			continue
		}
		if !covered(t, points) {
			return place{t.Path, true}, true
		}
		hidden = true
	}
	path, ok := r.Attempted()
	return place{path: path}, ok && !hidden
}

// pollDriver reads the state of a driver's volumes and of its storage; d is nil if it is not registered. A driver that
// does not respond for one volume is not queried about the others.
func (m *Monitor) pollDriver(
	ctx context.Context, d *csi.Driver, records []*decide.Record, points map[string]mount.Point,
) {
	var ask asks
	if d != nil {
		ask = asks{stats: d.Node.Stats, health: d.Node.VolumeHealth}
	}
	measure := !ask.stats
	for _, r := range records {
		at, ok := placeOf(r, points)
		if !ok {
			continue
		}
		now := m.lastOf(r)
		polled, inspected := m.pollVolume(ctx, d, r, at, &ask, &now), false
		var state decide.State
		if at.published {
			state, inspected = m.inspect(ctx, r, at.path, points, &now, measure)
		} else {
			now.Usage = mount.Usage{}
			state = stateOf(now)
		}
		if polled || inspected {
			m.update(r, now, state)
		}
	}
	if d != nil && d.Node.StorageHealth {
		m.pollStorage(ctx, d)
	}
}

// pollVolume calls a driver about a volume, and says whether any call was answered. Each call counts on its own: a
// driver that cannot measure a volume is the first that should report what is wrong with it.
func (m *Monitor) pollVolume(
	ctx context.Context, d *csi.Driver, r *decide.Record, at place, ask *asks, now *Stats,
) (answered bool) {
	try := func(question func(context.Context, *csi.Driver, *decide.Record, string, *Stats) error) {
		ctx, cancel := context.WithTimeout(csi.About(ctx, m.subjectOf(r)), askTimeout)
		defer cancel()
		err := question(ctx, d, r, at.path, now)
		if err == nil {
			answered = true
			return
		}
		if !decide.AskNext(csi.AnswerOf(err)) {
			*ask = asks{}
		}
	}
	if ask.stats && at.published {
		try(askUsage)
	}
	if ask.health {
		try(askHealth)
	}
	return answered
}

// subjectOf returns a record's volume as the subject of a call.
func (m *Monitor) subjectOf(r *decide.Record) csi.Subject {
	s := csi.Subject{Volume: r.Volume, Node: m.Node}
	if v, ok := m.Volumes.Get(r.Volume); ok {
		s.Claim = cluster.ClaimOf(v)
	}
	return s
}

func askUsage(ctx context.Context, d *csi.Driver, r *decide.Record, path string, now *Stats) error {
	s, err := d.NodeClient().NodeGetVolumeStats(ctx,
		&csipb.NodeGetVolumeStatsRequest{VolumeId: r.Handle, VolumePath: path, StagingTargetPath: r.StagingPath})
	if err != nil {
		return err
	}
	now.Usage = usage(s.GetUsage())
	if d.Node.VolumeCondition && !d.Node.VolumeHealth {
		if problems, reported := csi.ConditionOf(s); reported {
			now.tell(problems)
		}
	}
	return nil
}

// askHealth changes nothing if the driver answers with an error, which is not a recovery.
func askHealth(ctx context.Context, d *csi.Driver, r *decide.Record, path string, now *Stats) error {
	h, err := d.NodeClient().NodeGetVolumeHealth(ctx,
		&csipb.NodeGetVolumeHealthRequest{VolumeId: r.Handle, VolumePublishPath: path, StagingTargetPath: r.StagingPath})
	if err != nil {
		return err
	}
	now.tell(h.GetVolumeHealth().GetHealthStatuses())
	return nil
}

// tell stores what a driver has reported about the volume.
func (s *Stats) tell(all []*csipb.VolumeHealth_VolumeHealthEntry) {
	s.Reported, s.Conditions, s.problems = true, health.OfVolume(health.ReportsOf(all)), problems(all)
}

// pollStorage queries a driver for the health of its storage, as seen from this node.
func (m *Monitor) pollStorage(ctx context.Context, d *csi.Driver) {
	asking, cancel := context.WithTimeout(csi.About(ctx, csi.Subject{Node: m.Node}), askTimeout)
	defer cancel()
	s, err := d.NodeClient().NodeGetStorageHealth(asking, &csipb.NodeGetStorageHealthRequest{})
	if err != nil {
		return
	}
	all := health.ReportsOf(s.GetBackendHealth())
	for i, e := range s.GetBackendHealth() {
		all[i].AccessMode, all[i].VolumeMode = csi.KubernetesModes[corev1.PersistentVolumeAccessMode,
			corev1.PersistentVolumeMode](e.GetVolumeCapability())
	}
	m.StorageHealth(ctx, d.Name, health.OfStorage(all))
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

// maxProblems is how many problems of one volume are reported, and maxProblem how many bytes of each.
const (
	maxProblems = 5
	maxProblem  = 1 << 10
)

// problems returns what a driver reports as wrong with a volume, in one line that does not depend on
// the order of the reports.
func problems(all []*csipb.VolumeHealth_VolumeHealthEntry) string {
	var out []string
	for _, e := range all {
		text := e.GetStatus().String() + " " + e.GetReason()
		if e.GetMessage() != "" {
			text += ": " + e.GetMessage()
		}
		out = append(out, redact.Line(text, maxProblem))
	}
	slices.Sort(out)
	return strings.Join(out[:min(len(out), maxProblems)], "; ")
}

// Stats is the state of a mounted volume.
type Stats struct {
	Driver, Handle, Volume string
	// ClaimNamespace and ClaimName are empty for a volume without a claim.
	ClaimNamespace, ClaimName string
	// Usage is how full it is; numbers that the driver does not report are 0.
	Usage mount.Usage
	// ReadOnly says that all its mounts on this host are read-only, so that it does not become fuller.
	ReadOnly bool
	// Health is what is wrong with it, empty if it is healthy; Next is who has to act.
	Health string
	Next   volume.Actor
	// Reported means that the driver has reported the volume's health, and Conditions is that report in the form of the
	// API.
	Reported   bool
	Conditions []corev1.VolumeHealthCondition
	// At is the time of the last inspection.
	At time.Time
	// problems is what the driver reports as wrong.
	problems string
}
