package crash

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/volume"
)

const (
	snapshotAPI = "/apis/snapshot.storage.k8s.io/v1/"
	shots       = snapshotAPI + "namespaces/" + space + "/volumesnapshots"
	contents    = snapshotAPI + "volumesnapshotcontents"
)

// snapshotScenarios are those with snapshots.
func snapshotScenarios() []scenario {
	ready, bound := snapshotIsReady, claimIs(corev1.ClaimBound)
	rows := []scenario{
		{name: "a snapshot comes and goes", play: play(makeClaim, bound, makeSnapshot, ready, deleteSnapshot, noSnapshot,
			deleteClaim)},
		{name: "a snapshot is deleted while it is taken", play: play(makeClaim, bound, snapshotEnds(csitest.Action{}),
			makeSnapshot, noSnapshot, deleteClaim)},
		{
			name: "a snapshot is deleted while it is taken and denied",
			play: play(makeClaim, bound, snapshotEnds(csitest.Action{
				After: true, Err: status.Error(codes.Internal, "failed, or not"),
			}), makeSnapshot, noSnapshot, deleteClaim),
		},
		{name: "the driver does not say how the snapshot went", play: play(makeClaim, bound, vagueSnapshot, makeSnapshot,
			ready, deleteSnapshot, noSnapshot, deleteClaim)},
		{name: "a claim is deleted while a snapshot of it is taken", play: play(makeClaim, bound, claimEnds, makeSnapshot,
			ready, noClaim, deleteSnapshot, noSnapshot)},
		{
			name: "a snapshot is deleted while it is restored",
			play: play(makeClaim, bound, makeSnapshot, ready, snapshotEndsIn("CreateVolume", csitest.Action{}), restore,
				namedIs("copy", corev1.ClaimBound), noSnapshot, deleteNamed("copy"), deleteClaim),
		},
	}
	for i := range rows {
		rows[i].prepare = play(classOf(storagev1.VolumeBindingImmediate), snapshotClass("Delete"))
	}
	return append(rows, scenario{
		name:    "a snapshot is kept, and deleted later",
		prepare: play(classOf(storagev1.VolumeBindingImmediate), snapshotClass("Retain")),
		play: play(makeClaim, bound, makeSnapshot, ready, deleteSnapshot, snapshotKept, deleteKept, noSnapshot,
			deleteClaim),
	})
}

// request makes a request to the API of snapshots, with a body unless it is nil.
func (w *survivors) request(ctx context.Context, verb, path string, body map[string]any) ([]byte, error) {
	kind := "application/json"
	if verb == "PATCH" {
		kind = string(types.MergePatchType)
	}
	r := w.client.Discovery().RESTClient().Verb(verb).AbsPath(path).SetHeader("Accept", "application/json").
		SetHeader("Content-Type", kind)
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		r.Body(data)
	}
	return r.DoRaw(ctx)
}

// snapshotClass creates the class s with a deletion policy, or changes it, as soon as the API of snapshots is served.
func snapshotClass(policy string) act {
	return func(ctx context.Context, w *survivors) error {
		_, err := w.request(ctx, "DELETE", snapshotAPI+"volumesnapshotclasses/s", nil)
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		return until(ctx, func() (string, error) {
			_, err := w.request(ctx, "POST", snapshotAPI+"volumesnapshotclasses", map[string]any{
				"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
				"metadata": map[string]any{"name": "s"}, "driver": w.driver.Name(), "deletionPolicy": policy,
			})
			if apierrors.IsNotFound(err) {
				return "the API of snapshots is not served", nil
			}
			return "", err
		})
	}
}

func makeSnapshot(ctx context.Context, w *survivors) error {
	_, err := w.request(ctx, "POST", shots, map[string]any{
		"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": map[string]any{"name": "shot"},
		"spec": map[string]any{
			"volumeSnapshotClassName": "s", "source": map[string]any{"persistentVolumeClaimName": "c"},
		},
	})
	return err
}

func deleteSnapshot(ctx context.Context, w *survivors) error {
	_, err := w.request(ctx, "DELETE", shots+"/shot", nil)
	return err
}

// restore creates a claim with the data of the snapshot.
func restore(ctx context.Context, w *survivors) error {
	return claimFrom("copy", &corev1.TypedLocalObjectReference{
		APIGroup: ptr.To(volume.GroupSnapshot), Kind: volume.KindSnapshot, Name: "shot",
	})(ctx, w)
}

// snapshotEnds deletes the snapshot while the driver takes it, which answers after that.
func snapshotEnds(answer csitest.Action) act { return snapshotEndsIn("CreateSnapshot", answer) }

func snapshotEndsIn(method string, answer csitest.Action) act {
	return func(ctx context.Context, w *survivors) error {
		w.once(method, func() csitest.Action {
			if err := deleteSnapshot(ctx, w); err != nil {
				w.faults <- err.Error()
			}
			return answer
		})
		return nil
	}
}

// claimEnds deletes the claim while a snapshot of it is taken.
func claimEnds(ctx context.Context, w *survivors) error {
	w.once("CreateSnapshot", func() csitest.Action {
		if err := w.client.CoreV1().PersistentVolumeClaims(space).Delete(ctx, "c", metav1.DeleteOptions{}); err != nil {
			w.faults <- err.Error()
		}
		return csitest.Action{}
	})
	return nil
}

func vagueSnapshot(_ context.Context, w *survivors) error {
	w.once("CreateSnapshot", func() csitest.Action {
		return csitest.Action{After: true, Err: status.Error(codes.DeadlineExceeded, "it takes long")}
	})
	return nil
}

// shotObject is what the scenarios read of a VolumeSnapshot or of its content.
type shotObject struct {
	Metadata struct{ Name string }
	Status   struct {
		SnapshotHandle string
		ReadyToUse     bool
	}
}

func (w *survivors) contents(ctx context.Context) ([]shotObject, error) {
	return w.list(ctx, contents)
}

func snapshotIsReady(ctx context.Context, w *survivors) error {
	return until(ctx, func() (string, error) {
		data, err := w.request(ctx, "GET", shots+"/shot", nil)
		if err != nil {
			return "", err
		}
		var s shotObject
		if err := json.Unmarshal(data, &s); err != nil || s.Status.ReadyToUse {
			return "", err
		}
		return "the snapshot is not ready: " + string(data), nil
	})
}

// withoutSnapshot waits until the object of the snapshot is gone, and what is said of the contents that are left is "".
func (w *survivors) withoutSnapshot(ctx context.Context, missing func(left []shotObject) (string, error)) error {
	return until(ctx, func() (string, error) {
		_, err := w.request(ctx, "GET", shots+"/shot", nil)
		if err == nil {
			return "the snapshot is there", nil
		} else if !apierrors.IsNotFound(err) {
			return "", err
		}
		all, err := w.contents(ctx)
		if err != nil {
			return "", err
		}
		return missing(all)
	})
}

// noSnapshot waits until nothing is left of a snapshot: no object, and nothing at the driver.
func noSnapshot(ctx context.Context, w *survivors) error {
	return w.withoutSnapshot(ctx, func(left []shotObject) (string, error) {
		if at := w.driver.Snapshots(); len(left) > 0 || len(at) > 0 {
			return fmt.Sprintf("contents %+v are left, and snapshots %v at the driver", left, at), nil
		}
		return "", nil
	})
}

// snapshotKept waits until only the content of a snapshot is left. It is what the driver has.
func snapshotKept(ctx context.Context, w *survivors) error {
	return w.withoutSnapshot(ctx, func(left []shotObject) (string, error) {
		if at := w.driver.Snapshots(); len(left) != 1 || !slices.Equal(at, []string{left[0].Status.SnapshotHandle}) {
			return "", fmt.Errorf("contents %+v, and snapshots %v at the driver: lost", left, at)
		}
		return "", nil
	})
}

// deleteKept deletes a content that was kept, with its snapshot.
func deleteKept(ctx context.Context, w *survivors) error {
	all, err := w.contents(ctx)
	if err != nil {
		return err
	}
	for _, c := range all {
		_, e := w.request(ctx, "PATCH", contents+"/"+c.Metadata.Name,
			map[string]any{"spec": map[string]any{"deletionPolicy": "Delete"}})
		err = errors.Join(err, e)
		_, e = w.request(ctx, "DELETE", contents+"/"+c.Metadata.Name, nil)
		err = errors.Join(err, e)
	}
	return err
}
