package kube

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/volume"
)

// TestSnapshotIsKubernetes plays the same sequences to volplane's two controllers of snapshots and to the
// two programs of Kubernetes, each with a driver of its own. It compares all snapshots, contents, classes
// and claims, the calls of the drivers and their snapshots, without and with --extra-create-metadata.
func TestSnapshotIsKubernetes(t *testing.T) {
	t.Parallel()
	for _, extra := range []bool{false, true} {
		t.Run(fmt.Sprint("extra=", extra), func(t *testing.T) { compareAll(t, snapshotDifferential(t, extra)) })
	}
}

// snapshotDifferential starts both sides, which may tell drivers of the snapshot for which they are asked.
func snapshotDifferential(t *testing.T, extra bool) *differential {
	t.Helper()
	ours, theirs := newSide(t, "volplane"), newSide(t, "kubernetes")
	ours.snapshotting, theirs.snapshotting = true, true
	ours.sidecars.Snapshotter.ExtraMetadata = extra
	theirs.options = []string{fmt.Sprint("--extra-create-metadata=", extra)}
	drivers := ours.storage.startSnapshots(t)
	theirs.storage.startSnapshots(t)
	for _, s := range []side{ours, theirs} {
		if err := s.prepareSnapshots(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	ours.startController(func() func() { return ours.ours(t, drivers, "snapshot-controller", "snapshotter") })
	theirs.startController(func() func() { return theirs.theirSnapshotController(t) })
	theirs.startController(func() func() { return theirs.theirSnapshotter(t, theirs.storage.driver) })
	return &differential{
		sides: []side{ours, theirs}, few: 2, draw: drawSnapshots,
		allowed: func(ours, theirs []string) string { return explain(ours, theirs, snapshotRows()) },
		counted: map[string]int{},
	}
}

// startSnapshots starts a driver that takes and lists snapshots, and tells of them what the sequence wants.
func (s *storage) startSnapshots(t *testing.T) *csi.Set {
	t.Helper()
	drivers := s.start(t, func(c *csitest.Config) { c.Controller.ListSnapshots = true })
	s.tellOfSnapshots()
	return drivers
}

// theirSnapshotController runs Kubernetes' snapshot-controller until the test ends, or until the returned
// function is called.
func (s side) theirSnapshotController(t *testing.T) (stop func()) {
	t.Helper()
	return s.run(t, "snapshot-controller", theirPace()...)
}

// theirSnapshotter runs Kubernetes' snapshotter for a driver until the test ends, or until the returned
// function is called.
func (s side) theirSnapshotter(t *testing.T, driver *csitest.Driver) (stop func()) {
	t.Helper()
	return s.run(t, "csi-snapshotter", theirPace(append(s.options, "--csi-address="+driver.Socket)...)...)
}

// theirPace returns the flags of both programs of Kubernetes, and more. They look at everything again after a
// second, not after 15 minutes: what has failed is sometimes not repeated before.
func theirPace(more ...string) []string {
	return append(more, "--resync-period=1s", "--kube-api-qps=5000", "--kube-api-burst=5000", "--worker-threads=50",
		"--retry-interval-start=100ms", "--retry-interval-max="+longestRetry.String(),
		"--feature-gates=CSIVolumeGroupSnapshot=false")
}

// awakeName is the claim, and the class, whose snapshots show that the controllers run.
const awakeName = "awake"

// prepareSnapshots waits until snapshots are served, and makes what awakeSnapshotting needs.
func (s side) prepareSnapshots(ctx context.Context) error {
	err := poll(ctx, func() (bool, error) {
		served := true
		for _, r := range []schema.GroupVersionResource{snapshots(), snapshotContents(), snapshotClasses()} {
			_, err := s.dynamic.Resource(r).List(ctx, metav1.ListOptions{})
			served = served && err == nil
		}
		return served, nil
	})
	if err != nil {
		return fmt.Errorf("%s serves no snapshots: %w", s.name, err)
	}
	if err := s.makeClass(ctx, snapshotClass{name: awakeName, driver: driverName, policy: "Delete"}); err != nil {
		return err
	}
	if _, err := s.client.CoreV1().PersistentVolumeClaims("default").Create(ctx, claimOf(awakeName, ""),
		metav1.CreateOptions{}); err != nil {
		return err
	}
	return s.bindClaim(ctx, "default", awakeName, csiVolume(awakeName, driverName, corev1.ReadWriteOnce))
}

// awakeSnapshotting waits until all controllers of a side have taken and deleted a snapshot.
func (s side) awakeSnapshotting(ctx context.Context, name string) error {
	all := s.dynamic.Resource(snapshots()).Namespace("default")
	o := object("VolumeSnapshot", name, map[string]any{
		"source": map[string]any{"persistentVolumeClaimName": awakeName}, "volumeSnapshotClassName": awakeName,
	})
	if _, err := all.Create(ctx, o, metav1.CreateOptions{}); err != nil {
		return err
	}
	err := poll(ctx, func() (bool, error) {
		o, err := all.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		snapshot, err := typed[snapshotObject](o)
		return err == nil && snapshot.Status != nil && snapshot.Status.ReadyToUse != nil && *snapshot.Status.ReadyToUse, err
	})
	if err != nil {
		return fmt.Errorf("%s takes no snapshot: %w", s.name, err)
	}
	if err := all.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	err = poll(ctx, func() (bool, error) {
		_, err := all.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, err
	})
	if err != nil {
		return fmt.Errorf("%s does not delete a snapshot: %w", s.name, err)
	}
	return nil
}

// touchSnapshots edits a class, which ends all pauses of volplane's snapshotter; those of Kubernetes are
// short here.
func (s side) touchSnapshots(ctx context.Context, mark int) error {
	_, err := s.dynamic.Resource(snapshotClasses()).Patch(ctx, awakeName, types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"labels":{"touched":"%d"}}}`, mark), metav1.PatchOptions{})
	return err
}

// endSnapshots deletes all snapshots, contents, classes and claims of sequences, whatever keeps them, and
// what their drivers keep.
func (s side) endSnapshots(ctx context.Context) error {
	if err := s.deleteKinds(ctx, snapshots(), snapshotContents(), snapshotClasses()); err != nil {
		return err
	}
	for _, id := range s.storage.driver.Snapshots() {
		if err := s.deleteAtDriver(ctx, id, ""); err != nil {
			return err
		}
	}
	return s.endClaims(ctx)
}

// endClaims deletes all claims, their volumes and events of sequences, whatever keeps them, and what their drivers
// keep.
func (s side) endClaims(ctx context.Context) error {
	core := corev1.SchemeGroupVersion
	if err := s.deleteKinds(ctx, core.WithResource("persistentvolumeclaims"), core.WithResource("persistentvolumes"),
		core.WithResource("events"), storagev1.SchemeGroupVersion.WithResource("volumeattributesclasses")); err != nil {
		return err
	}
	for _, v := range s.storage.driver.Volumes() {
		if s.memory.space.MatchString(v.ID) {
			if err := s.deleteAtDriver(ctx, "", v.ID); err != nil {
				return err
			}
		}
	}
	return nil
}

// deleteKinds deletes the objects of sequences until there are none.
func (s side) deleteKinds(ctx context.Context, kinds ...schema.GroupVersionResource) error {
	ours := func(name string) bool { return s.memory.space.MatchString(name) }
	for _, r := range kinds {
		if err := poll(ctx, func() (bool, error) { return s.deleteAll(ctx, r, ours) }); err != nil {
			return err
		}
	}
	return nil
}

// deleteAll deletes the objects of sequences, with their finalizers, and returns whether there were none.
func (s side) deleteAll(
	ctx context.Context, r schema.GroupVersionResource, ours func(name string) bool,
) (none bool, err error) {
	all, err := s.dynamic.Resource(r).List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, err
	}
	none = true
	for i := range all.Items {
		o := &all.Items[i]
		if !ours(o.GetNamespace()) && !ours(o.GetName()) && !strings.HasPrefix(o.GetName(), "snapcontent-") {
			continue
		}
		none = false
		of := s.dynamic.Resource(r).Namespace(o.GetNamespace())
		if err := of.Delete(ctx, o.GetName(), metav1.DeleteOptions{}); err != nil && !refused(err) && !conflict(err) {
			return false, err
		}
		if _, err := of.Patch(ctx, o.GetName(), types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
			metav1.PatchOptions{}); err != nil && !refused(err) && !conflict(err) {
			return false, err
		}
	}
	return none, nil
}

func snapshotClasses() schema.GroupVersionResource {
	return schema.GroupVersionResource{
		Group: volume.GroupSnapshot, Version: "v1", Resource: volume.ResourceSnapshotClasses,
	}
}
