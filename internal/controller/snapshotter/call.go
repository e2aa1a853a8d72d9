package snapshotter

import (
	"context"
	"errors"
	"fmt"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/snapshot"
	"volplane.dev/volplane/internal/kube"
)

// callLimit is for CreateSnapshot and DeleteSnapshot, which may copy or delete data; it is the default of upstream's
// csi-snapshotter. After it the same call is made again.
const callLimit = time.Minute

var errGone = errors.New("driver has gone")

// call makes the call of a plan, after the intent is written if it needs one, and returns the decision about the
// answer. f gets the content with the intent.
func (s *snapshotter) call(
	ctx context.Context, f *snapshot.DriverFacts, p snapshot.DriverPlan,
) (snapshot.DriverPlan, error) {
	d, ok := s.drivers.For(f.Content.Spec.Driver, snapshot.Home(f.Content))
	if !ok {
		return p, fmt.Errorf("%s: %w", f.Content.Spec.Driver, errGone)
	}
	if p.Step == snapshot.Remove {
		return s.remove(ctx, d, *f, p)
	}
	// The Secret is read before the intent is written: without it the driver is not asked.
	secret, err := kube.SecretData(ctx, s.Client, p.Request.Secret)
	if err != nil {
		return snapshot.SecretUnread(*f, err.Error()), nil
	}
	if p.Step == snapshot.Get || p.Step == snapshot.Look {
		return s.find(ctx, d, *f, p, secret), nil
	}
	if p.Step == snapshot.Record {
		if f.Content, err = s.contents.Change(ctx, f.Content, p.Content); err != nil {
			return p, err
		}
	}
	return s.take(ctx, d, *f, p, secret), nil
}

func (s *snapshotter) take(
	ctx context.Context, d *csi.Driver, f snapshot.DriverFacts, p snapshot.DriverPlan, secret map[string]string,
) snapshot.DriverPlan {
	s.setRefused(f, false)
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	got, err := d.ControllerClient().CreateSnapshot(ctx, &csipb.CreateSnapshotRequest{
		Name: p.Request.Name, SourceVolumeId: p.Request.Source, Parameters: p.Request.Parameters, Secrets: secret,
	})
	a := answer(got.GetSnapshot(), err)
	if others := s.others(f.Content, a.Taken.Handle); len(others) > 0 {
		a.TakenBy = others[0]
	}
	then := snapshot.AfterTake(f, p, a)
	s.setRefused(f, then.Refused)
	return then
}

// setRefused remembers whether a driver has certainly not taken a snapshot.
func (s *snapshotter) setRefused(f snapshot.DriverFacts, refused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refused[f.Content.UID] = refused; !refused {
		delete(s.refused, f.Content.UID)
	}
}

// find asks a driver about a snapshot that somebody else has taken.
func (s *snapshotter) find(
	ctx context.Context, d *csi.Driver, f snapshot.DriverFacts, p snapshot.DriverPlan, secret map[string]string,
) snapshot.DriverPlan {
	var found *csipb.Snapshot
	var err error
	if p.Step == snapshot.Get {
		var got *csipb.GetSnapshotResponse
		got, err = d.ControllerClient().GetSnapshot(ctx,
			&csipb.GetSnapshotRequest{SnapshotId: p.Request.Handle, Secrets: secret})
		if found = got.GetSnapshot(); csi.Code(err) == codes.NotFound {
			err = nil
		}
	} else {
		var got *csipb.ListSnapshotsResponse
		got, err = d.ControllerClient().ListSnapshots(ctx,
			&csipb.ListSnapshotsRequest{SnapshotId: p.Request.Handle, Secrets: secret})
		if entries := got.GetEntries(); len(entries) > 0 {
			found = entries[0].GetSnapshot()
		}
	}
	return snapshot.AfterLook(f, p, answer(found, err))
}

func (s *snapshotter) remove(
	ctx context.Context, d *csi.Driver, f snapshot.DriverFacts, p snapshot.DriverPlan,
) (snapshot.DriverPlan, error) {
	secret, missing, err := kube.SecretDataLeft(ctx, s.Client, p.Request.Secret)
	if err != nil {
		return p, err
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	_, err = d.ControllerClient().DeleteSnapshot(ctx,
		&csipb.DeleteSnapshotRequest{SnapshotId: p.Request.Handle, Secrets: secret})
	a := answer(nil, err)
	if err == nil {
		s.mu.Lock()
		s.removed[f.Content.UID] = true
		s.mu.Unlock()
	}
	if missing != nil {
		a.Missing = missing.Error()
	}
	return snapshot.AfterRemove(f, p, a), nil
}

// answer returns the end of a call as the facts that decisions judge.
func answer(s *csipb.Snapshot, err error) snapshot.Answer {
	a := snapshot.Answer{Answer: csi.AnswerOf(err)}
	if err != nil || s == nil {
		return a
	}
	a.Taken = snapshot.Taken{
		Handle: s.GetSnapshotId(), Source: s.GetSourceVolumeId(), Bytes: s.GetSizeBytes(), Ready: s.GetReadyToUse(),
	}
	if s.GetCreationTime() != nil {
		a.Taken.Created = s.GetCreationTime().AsTime().UnixNano()
	}
	return a
}
