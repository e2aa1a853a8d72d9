package crash

import (
	"context"
	"encoding/json"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"volplane.dev/volplane/internal/csi/csitest"
)

const (
	groupAPI = "/apis/groupsnapshot.storage.k8s.io/v1/"
	groups   = groupAPI + "namespaces/" + space + "/volumegroupsnapshots"
)

// groupScenarios are those with groups of snapshots, of the claims c and d.
func groupScenarios() []scenario {
	both := play(makeClaim, claimFrom("d", nil), claimIs(corev1.ClaimBound), namedIs("d", corev1.ClaimBound))
	none := play(deleteClaim, deleteNamed("d"))
	rows := []scenario{
		{name: "a group of snapshots comes and goes", play: play(both, makeGroup, groupIsReady, deleteGroup, noGroup, none)},
		{name: "a group is deleted while it is taken", play: play(both, groupEnds, makeGroup, noGroup, none)},
		{
			name: "the driver does not say how the group went",
			play: play(both, vagueGroup, makeGroup, groupIsReady, deleteGroup, noGroup, none),
		},
	}
	for i := range rows {
		rows[i].prepare = play(classOf(storagev1.VolumeBindingImmediate), groupClass)
	}
	return rows
}

// groupClass creates the class of groups as soon as their API is served.
func groupClass(ctx context.Context, w *survivors) error {
	return until(ctx, func() (string, error) {
		_, err := w.request(ctx, "POST", groupAPI+"volumegroupsnapshotclasses", map[string]any{
			"apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshotClass",
			"metadata": map[string]any{"name": "s"}, "driver": w.driver.Name(), "deletionPolicy": "Delete",
		})
		switch {
		case apierrors.IsNotFound(err):
			return "the API of groups is not served", nil
		case apierrors.IsAlreadyExists(err):
			return "", nil
		}
		return "", err
	})
}

// makeGroup creates a group of all claims.
func makeGroup(ctx context.Context, w *survivors) error {
	_, err := w.request(ctx, "POST", groups, map[string]any{
		"apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshot",
		"metadata": map[string]any{"name": "group"}, "spec": map[string]any{
			"volumeGroupSnapshotClassName": "s", "source": map[string]any{"selector": map[string]any{}},
		},
	})
	return err
}

func deleteGroup(ctx context.Context, w *survivors) error {
	_, err := w.request(ctx, "DELETE", groups+"/group", nil)
	return err
}

// groupEnds deletes the group while the driver takes it.
func groupEnds(_ context.Context, w *survivors) error {
	w.once("CreateVolumeGroupSnapshot", func() csitest.Action {
		if err := deleteGroup(context.Background(), w); err != nil {
			w.faults <- err.Error()
		}
		return csitest.Action{}
	})
	return nil
}

func vagueGroup(_ context.Context, w *survivors) error {
	w.once("CreateVolumeGroupSnapshot", func() csitest.Action {
		return csitest.Action{After: true, Err: status.Error(codes.DeadlineExceeded, "it takes long")}
	})
	return nil
}

// list returns the objects at a path.
func (w *survivors) list(ctx context.Context, path string) ([]shotObject, error) {
	data, err := w.request(ctx, "GET", path, nil)
	if err != nil {
		return nil, err
	}
	var all struct{ Items []shotObject }
	return all.Items, json.Unmarshal(data, &all)
}

// groupIsReady waits until a group and its two members are ready.
func groupIsReady(ctx context.Context, w *survivors) error {
	return until(ctx, func() (string, error) {
		all, err := w.list(ctx, groups)
		if err != nil || len(all) != 1 || !all[0].Status.ReadyToUse {
			return fmt.Sprintf("groups %+v", all), err
		}
		members, err := w.list(ctx, shots)
		if err != nil || len(members) != 2 || !members[0].Status.ReadyToUse || !members[1].Status.ReadyToUse {
			return fmt.Sprintf("members %+v", members), err
		}
		if at := w.driver.Groups(); len(at) != 1 || len(w.driver.Snapshots()) != 2 {
			return "", fmt.Errorf("groups %v and snapshots %v at the driver", at, w.driver.Snapshots())
		}
		return "", nil
	})
}

// noGroup waits until nothing is left of a group: no object of any kind, and nothing at the driver.
func noGroup(ctx context.Context, w *survivors) error {
	return until(ctx, func() (string, error) {
		for _, path := range []string{groups, groupAPI + "volumegroupsnapshotcontents", shots, contents} {
			if all, err := w.list(ctx, path); err != nil || len(all) > 0 {
				return fmt.Sprintf("left at %s: %+v", path, all), err
			}
		}
		if at, all := w.driver.Groups(), w.driver.Snapshots(); len(at)+len(all) > 0 {
			return fmt.Sprintf("groups %v and snapshots %v are left at the driver", at, all), nil
		}
		return "", nil
	})
}
