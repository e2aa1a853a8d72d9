package health

import (
	"context"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/health"
)

// pageSize is how many volumes an answer may list.
const pageSize = 500

// entry is what a list says about one volume.
type entry struct {
	id      string
	reports []health.Report
}

// said is what a driver has said of one volume.
type said struct {
	reports []health.Report
	answer  health.Answer
}

// calls are those with which a driver reports the health of its volumes.
type calls struct {
	// page returns a page of a list, and the token of the next one; it is nil if the driver has no list.
	page func(ctx context.Context, token string) (entries []entry, next string, err error)
	// unhealthyOnly says that healthy volumes are not in the list.
	unhealthyOnly bool
	// one queries one volume; it is nil if the driver has no such call.
	one func(ctx context.Context, id string) (said, error)
}

// callsOf returns the calls of a driver, and whether it has any. For a driver that has those of CSI 1.13, only they are
// used.
func callsOf(d *csi.Driver) (calls, bool) {
	can, v := d.Controller, calls{}
	switch {
	case can.ListVolumeHealth || can.GetVolumeHealth:
		v.unhealthyOnly = true
		if can.ListVolumeHealth {
			v.page = healthPage(d.ControllerClient())
		}
		if can.GetVolumeHealth {
			v.one = healthOf(d.ControllerClient())
		}
	case can.VolumeCondition && can.ListVolumes:
		v.page = conditionPage(d.ControllerClient())
	case can.VolumeCondition && can.GetVolume:
		v.one = conditionOf(d.ControllerClient())
	default:
		return v, false
	}
	return v, true
}

func healthPage(d csipb.ControllerClient) func(context.Context, string) ([]entry, string, error) {
	return func(ctx context.Context, token string) (entries []entry, next string, err error) {
		r, err := d.ControllerListVolumeHealth(ctx,
			&csipb.ControllerListVolumeHealthRequest{MaxEntries: pageSize, StartingToken: token})
		for _, e := range r.GetEntries() {
			entries = append(entries, entry{e.GetVolumeId(), health.ReportsOf(e.GetHealthStatuses())})
		}
		return entries, r.GetNextToken(), err
	}
}

func healthOf(d csipb.ControllerClient) func(context.Context, string) (said, error) {
	return func(ctx context.Context, id string) (said, error) {
		r, err := d.ControllerGetVolumeHealth(ctx, &csipb.ControllerGetVolumeHealthRequest{VolumeId: id})
		if err != nil {
			return said{}, err
		}
		return said{health.ReportsOf(r.GetVolumeHealth().GetHealthStatuses()), health.Told}, nil
	}
}

// conditionPage leaves out volumes without a condition.
func conditionPage(d csipb.ControllerClient) func(context.Context, string) ([]entry, string, error) {
	return func(ctx context.Context, token string) (entries []entry, next string, err error) {
		r, err := d.ListVolumes(ctx, &csipb.ListVolumesRequest{MaxEntries: pageSize, StartingToken: token})
		for _, e := range r.GetEntries() {
			if problems, reported := csi.ConditionOf(e.GetStatus()); reported {
				entries = append(entries, entry{e.GetVolume().GetVolumeId(), health.ReportsOf(problems)})
			}
		}
		return entries, r.GetNextToken(), err
	}
}

func conditionOf(d csipb.ControllerClient) func(context.Context, string) (said, error) {
	return func(ctx context.Context, id string) (said, error) {
		r, err := d.ControllerGetVolume(ctx, &csipb.ControllerGetVolumeRequest{VolumeId: id})
		if err != nil {
			return said{}, err
		}
		problems, reported := csi.ConditionOf(r.GetStatus())
		if !reported {
			return said{}, nil
		}
		return said{health.ReportsOf(problems), health.Told}, nil
	}
}
