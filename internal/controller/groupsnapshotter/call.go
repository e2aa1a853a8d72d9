package groupsnapshotter

import (
	"context"
	"errors"
	"fmt"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/timestamppb"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/groupsnapshot"
	"volplane.dev/volplane/internal/decide/snapshot"
	"volplane.dev/volplane/internal/kube"
)

// callLimit is for calls that may copy or delete data; it is the default of upstream's csi-snapshotter. After it the
// same call is made again.
const callLimit = time.Minute

var errGone = errors.New("driver has gone")

// call makes the call of a plan, after the intent is written if it needs one, and returns the decision about the
// answer. f gets the content with the intent.
func (s *snapshotter) call(
	ctx context.Context, f *groupsnapshot.DriverFacts, p groupsnapshot.DriverPlan,
) (groupsnapshot.DriverPlan, error) {
	d, ok := s.drivers.For(f.Content.Spec.Driver, groupsnapshot.Home(f.Content))
	if !ok {
		return p, fmt.Errorf("%s: %w", f.Content.Spec.Driver, errGone)
	}
	if p.Step == groupsnapshot.Remove {
		return s.remove(ctx, d, *f, p)
	}
	// The Secret is read before the intent is written: without it the driver is not asked.
	secret, err := kube.SecretData(ctx, s.Client, p.Request.Secret)
	if err != nil {
		return groupsnapshot.SecretUnread(*f, err.Error()), nil
	}
	if p.Step == groupsnapshot.Get {
		return get(ctx, d, *f, p, secret), nil
	}
	if p.Step == groupsnapshot.Record {
		if f.Content, err = s.contents.Change(ctx, f.Content, p.Content); err != nil {
			return p, err
		}
	}
	return s.take(ctx, d, *f, p, secret), nil
}

func (s *snapshotter) take(
	ctx context.Context, d *csi.Driver, f groupsnapshot.DriverFacts, p groupsnapshot.DriverPlan,
	secret map[string]string,
) groupsnapshot.DriverPlan {
	s.learn(f.Content.UID, func(k *knowledge) { k.refused = false })
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	got, err := d.GroupControllerClient().CreateVolumeGroupSnapshot(ctx, &csipb.CreateVolumeGroupSnapshotRequest{
		Name: p.Request.Name, SourceVolumeIds: p.Request.Sources, Parameters: p.Request.Parameters, Secrets: secret,
	})
	a := answer(got.GetGroupSnapshot(), err)
	var members []string
	for _, m := range a.Taken.Members {
		members = append(members, m.Handle)
	}
	if others := s.others(f.Content, a.Taken.Handle, members); len(others) > 0 {
		a.TakenBy = others[0]
	}
	then := groupsnapshot.AfterTake(f, p, a)
	s.learn(f.Content.UID, func(k *knowledge) { k.refused = then.Refused })
	return then
}

// get asks a driver about a group that somebody else has taken.
func get(
	ctx context.Context, d *csi.Driver, f groupsnapshot.DriverFacts, p groupsnapshot.DriverPlan,
	secret map[string]string,
) groupsnapshot.DriverPlan {
	got, err := d.GroupControllerClient().GetVolumeGroupSnapshot(ctx, &csipb.GetVolumeGroupSnapshotRequest{
		GroupSnapshotId: p.Request.Handle, SnapshotIds: p.Request.Members, Secrets: secret,
	})
	return groupsnapshot.AfterGet(f, p, answer(got.GetGroupSnapshot(), err))
}

func (s *snapshotter) remove(
	ctx context.Context, d *csi.Driver, f groupsnapshot.DriverFacts, p groupsnapshot.DriverPlan,
) (groupsnapshot.DriverPlan, error) {
	secret, missing, err := kube.SecretDataLeft(ctx, s.Client, p.Request.Secret)
	if err != nil {
		return p, err
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	_, err = d.GroupControllerClient().DeleteVolumeGroupSnapshot(ctx, &csipb.DeleteVolumeGroupSnapshotRequest{
		GroupSnapshotId: p.Request.Handle, SnapshotIds: p.Request.Members, Secrets: secret,
	})
	a := answer(nil, err)
	if err == nil {
		s.learn(f.Content.UID, func(k *knowledge) { k.removed = true })
	}
	if missing != nil {
		a.Missing = missing.Error()
	}
	return groupsnapshot.AfterRemove(f, p, a), nil
}

// answer returns the end of a call as the facts that decisions judge.
func answer(g *csipb.VolumeGroupSnapshot, err error) groupsnapshot.Answer {
	a := groupsnapshot.Answer{Answer: csi.AnswerOf(err)}
	if err != nil || g == nil {
		return a
	}
	a.Taken = groupsnapshot.Taken{
		Handle: g.GetGroupSnapshotId(), Ready: g.GetReadyToUse(), Created: nanoseconds(g.GetCreationTime()),
	}
	for _, s := range g.GetSnapshots() {
		a.Taken.Members = append(a.Taken.Members, snapshot.Taken{
			Handle: s.GetSnapshotId(), Source: s.GetSourceVolumeId(), Bytes: s.GetSizeBytes(), Ready: s.GetReadyToUse(),
			Created: nanoseconds(s.GetCreationTime()),
		})
	}
	return a
}

func nanoseconds(t *timestamppb.Timestamp) int64 {
	if t == nil {
		return 0
	}
	return t.AsTime().UnixNano()
}
