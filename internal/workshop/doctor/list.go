package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"volplane.dev/volplane/internal/csi"
)

func listChecks() []check {
	listsSnapshots := func(x *exam) bool { return x.canSnapshot() && x.promises().ListSnapshots }
	return []check{
		{
			"list-volumes", func(x *exam) bool { return x.creates() && x.lists() }, (*exam).checkList,
			"list each volume once, over all pages; answer ABORTED to a starting_token that is not yours",
		},
		{
			"list-snapshots", listsSnapshots, (*exam).checkListSnapshots,
			"list each snapshot once, over all pages, and only those of the id or the volume that is given",
		},
		{
			"capacity", func(x *exam) bool { return x.creates() && x.promises().GetCapacity },
			shared((*exam).checkCapacity, created),
			"answer with what could be allotted to new volumes now",
		},
	}
}

// mostPages is how many pages a list may have: a token that leads in a circle must not be followed forever.
const mostPages = 2000

var errPages = errors.New("the list does not end")

// eachEntry calls visit for each entry of a list, until it returns an error. page asks the driver for the part of the
// list that begins at a token, and returns the token of the next one.
func eachEntry[E any](
	call string, most int32, page func(token string) (entries []E, next string, err error), visit func(E) error,
) error {
	token := ""
	for range mostPages {
		entries, next, err := page(token)
		if err != nil {
			return failure{call, err}
		}
		if most > 0 && len(entries) > int(most) {
			return fmt.Errorf("%s answers with %d entries, %d are allowed", call, len(entries), most)
		}
		for _, e := range entries {
			if err := visit(e); err != nil {
				return err
			}
		}
		if token = next; token == "" {
			return nil
		}
	}
	return errPages
}

// pages calls visit for each volume in the list.
func (x *exam) pages(ctx context.Context, most int32, visit func(*csipb.ListVolumesResponse_Entry)) error {
	return eachEntry("ListVolumes", most, func(token string) ([]*csipb.ListVolumesResponse_Entry, string, error) {
		r, err := do(ctx, x, x.control().ListVolumes, &csipb.ListVolumesRequest{MaxEntries: most, StartingToken: token})
		return r.GetEntries(), r.GetNextToken(), err
	}, func(e *csipb.ListVolumesResponse_Entry) error {
		visit(e)
		return nil
	})
}

// listed returns the ids of all volumes.
func (x *exam) listed(ctx context.Context) (map[string]bool, error) {
	ids := map[string]bool{}
	err := x.pages(ctx, 0, func(e *csipb.ListVolumesResponse_Entry) { ids[e.GetVolume().GetVolumeId()] = true })
	return ids, err
}

// checkList makes three volumes and reads the list in pages.
func (x *exam) checkList(ctx context.Context) verdict {
	var all []*vol
	for range 3 {
		v := x.volume()
		if err := v.to(ctx, created); err != nil {
			return skipped(err)
		}
		all = append(all, v)
	}
	whole, err := x.listed(ctx)
	if err != nil {
		return fail("%v", err)
	}
	seen := map[string]int{}
	err = x.pages(ctx, int32(max(1, len(whole)/4)), func(e *csipb.ListVolumesResponse_Entry) {
		seen[e.GetVolume().GetVolumeId()]++
	})
	if err != nil {
		return fail("in pages: %v", err)
	}
	for _, v := range all {
		if !whole[v.id()] || seen[v.id()] != 1 {
			return fail("a volume is %d times in the pages of the list, and %v in the whole", seen[v.id()], whole[v.id()])
		}
	}
	_, err = do(ctx, x, x.control().ListVolumes, &csipb.ListVolumesRequest{StartingToken: "volplane-doctor-no-token"})
	return unless(answered("ListVolumes with an invalid starting_token", err, codes.Aborted),
		"each volume is listed once, over all pages")
}

// snapshotPages returns the ids of the snapshots in the list, in the order of the pages.
func (x *exam) snapshotPages(ctx context.Context, r *csipb.ListSnapshotsRequest) (ids []string, err error) {
	err = eachEntry("ListSnapshots", r.GetMaxEntries(),
		func(token string) ([]*csipb.ListSnapshotsResponse_Entry, string, error) {
			r.StartingToken, r.Secrets = token, x.Secrets
			answer, err := do(ctx, x, x.control().ListSnapshots, r)
			return answer.GetEntries(), answer.GetNextToken(), err
		}, func(e *csipb.ListSnapshotsResponse_Entry) error {
			ids = append(ids, e.GetSnapshot().GetSnapshotId())
			return nil
		})
	return ids, err
}

// checkListSnapshots makes two snapshots of one volume and one of another.
func (x *exam) checkListSnapshots(ctx context.Context) verdict {
	v, w := x.volume(), x.volume()
	var ids []string
	for _, of := range []*vol{v, v, w} {
		if err := of.to(ctx, created); err != nil {
			return skipped(err)
		}
		s, err := of.snapshot(ctx, x.newName())
		if err != nil {
			return skipped(failure{"CreateSnapshot", err})
		}
		ids = append(ids, s.GetSnapshotId())
	}
	for _, q := range []struct {
		what string
		r    *csipb.ListSnapshotsRequest
		want []string
		more bool
	}{
		{"of all", &csipb.ListSnapshotsRequest{}, ids, true},
		{"of all in pages", &csipb.ListSnapshotsRequest{MaxEntries: 1}, ids, true},
		{"of one id", &csipb.ListSnapshotsRequest{SnapshotId: ids[0]}, ids[:1], false},
		{"of one volume", &csipb.ListSnapshotsRequest{SourceVolumeId: v.id()}, ids[:2], false},
		{"of an unknown id", &csipb.ListSnapshotsRequest{SnapshotId: ids[0] + "0"}, nil, false},
		{"of an unknown volume", &csipb.ListSnapshotsRequest{SourceVolumeId: v.id() + "0"}, nil, false},
	} {
		got, err := x.snapshotPages(ctx, q.r)
		if err != nil {
			return fail("the list %s: %v", q.what, err)
		}
		for _, id := range q.want {
			if n := count(got, id); n != 1 {
				return fail("the list %s has a snapshot %d times", q.what, n)
			}
		}
		if !q.more && len(got) != len(q.want) {
			return fail("the list %s has %d snapshots, want %d", q.what, len(got), len(q.want))
		}
	}
	return pass("each snapshot is listed once, over all pages, by its id and by its volume")
}

func count(all []string, one string) int {
	return len(slices.DeleteFunc(slices.Clone(all), func(s string) bool { return s != one }))
}

func (x *exam) checkCapacity(ctx context.Context, v *vol) verdict {
	r := &csipb.GetCapacityRequest{
		Parameters: x.Parameters, VolumeCapabilities: []*csipb.VolumeCapability{v.capability},
	}
	if x.here() != nil {
		r.AccessibleTopology = x.here().GetRequisite()[0]
	}
	for _, r := range []*csipb.GetCapacityRequest{{Parameters: x.Parameters}, r} {
		answer, err := do(ctx, x, x.control().GetCapacity, r)
		switch {
		case err != nil:
			return fail("GetCapacity: %s", csi.Describe(err))
		case answer.GetAvailableCapacity() == 0:
			return fail("available_capacity is 0, and volumes can be created")
		case answer.GetMaximumVolumeSize() != nil && answer.GetMaximumVolumeSize().GetValue() < x.Size:
			return fail("maximum_volume_size is %d, and a volume of %d was created", answer.GetMaximumVolumeSize().GetValue(),
				x.Size)
		}
	}
	return pass("there is room for volumes")
}
