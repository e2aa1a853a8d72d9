package snapshots

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/test/internal/differential"
	"volplane.dev/volplane/test/internal/upstream"
)

// TestSnapshotIsKubernetes plays the same sequences to volplane's two controllers of snapshots and to the
// two programs of Kubernetes, each with a driver of its own. It compares all snapshots, contents, classes
// and claims, the calls of the drivers and their snapshots, without and with --extra-create-metadata.
func TestSnapshotIsKubernetes(t *testing.T) {
	t.Parallel()
	for _, extra := range []bool{false, true} {
		t.Run(fmt.Sprint("extra=", extra), func(t *testing.T) { differential.CompareAll(t, snapshotDifferential(t, extra)) })
	}
}

// snapshotDifferential starts both sides, which may pass drivers the snapshot of each call.
func snapshotDifferential(t *testing.T, extra bool) *differential.Differential {
	t.Helper()
	ours, theirs := differential.NewSide(t, "volplane", snapshotting()), differential.NewSide(t, "kubernetes",
		snapshotting())
	ours.Sidecars.Snapshotter.ExtraMetadata = extra
	theirs.Options = []string{fmt.Sprint("--extra-create-metadata=", extra)}
	drivers := startSnapshots(t, ours.Storage)
	startSnapshots(t, theirs.Storage)
	for _, s := range []side{ours, theirs} {
		if err := prepareSnapshots(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	ours.StartController(func() func() { return ours.Ours(t, drivers, "snapshot-controller", "snapshotter") })
	theirs.StartController(func() func() { return theirSnapshotController(t, theirs) })
	theirs.StartController(func() func() { return theirSnapshotter(t, theirs, theirs.Storage.Driver) })
	return &differential.Differential{
		Sides: []side{ours, theirs}, Few: 2, Draw: drawSnapshots,
		Allowed: func(ours, theirs []string) string { return differential.Explain(ours, theirs, snapshotRows()) },
		Counted: map[string]int{},
	}
}

// snapshotting compares snapshots, and nothing else.
func snapshotting() topic {
	return topic{
		Pause: upstream.SyncPeriod, States: snapshotStates, Awake: awakeSnapshotting, Touch: touchSnapshots,
		Remove: endSnapshots,
	}
}

// startSnapshots starts a driver that creates and lists snapshots, and reports about them what the sequence wants.
func startSnapshots(t *testing.T, s *differential.Storage) *csi.Set {
	t.Helper()
	drivers := s.Start(t, func(c *csitest.Config) { c.Controller.ListSnapshots = true })
	s.ReportSnapshots()
	return drivers
}

// theirSnapshotController runs Kubernetes' snapshot-controller until the test ends, or until the returned
// function is called.
func theirSnapshotController(t *testing.T, s side) (stop func()) {
	t.Helper()
	return s.Run(t, "snapshot-controller", theirPace()...)
}

// theirSnapshotter runs Kubernetes' snapshotter for a driver until the test ends, or until the returned
// function is called.
func theirSnapshotter(t *testing.T, s side, driver *csitest.Driver) (stop func()) {
	t.Helper()
	return s.Run(t, "csi-snapshotter", theirPace(append(s.Options, "--csi-address="+driver.Socket)...)...)
}

// theirPace returns the flags of both programs of Kubernetes, and more. They resync after a second, not after 15
// minutes: failures are sometimes not retried before.
func theirPace(more ...string) []string {
	return append(more, "--resync-period=1s", "--kube-api-qps=5000", "--kube-api-burst=5000", "--worker-threads=50",
		"--retry-interval-start=100ms", "--retry-interval-max="+upstream.LongestRetry.String(),
		"--feature-gates=CSIVolumeGroupSnapshot=false")
}

// awakeName is the claim, and the class, whose snapshots show that the controllers run.
const awakeName = "awake"

// prepareSnapshots waits until snapshots are served, and makes what awakeSnapshotting needs.
func prepareSnapshots(ctx context.Context, s side) error {
	err := upstream.Poll(ctx, func() (bool, error) {
		served := true
		for _, r := range []schema.GroupVersionResource{
			upstream.Snapshots(), upstream.SnapshotContents(),
			upstream.SnapshotClasses(),
		} {
			_, err := s.Dynamic.Resource(r).List(ctx, metav1.ListOptions{})
			served = served && err == nil
		}
		return served, nil
	})
	if err != nil {
		return fmt.Errorf("%s serves no snapshots: %w", s.Name, err)
	}
	if err := s.MakeClass(ctx, differential.SnapshotClass{
		Name: awakeName, Driver: differential.DriverName,
		Policy: "Delete",
	}); err != nil {
		return err
	}
	if _, err := s.Client.CoreV1().PersistentVolumeClaims("default").Create(ctx, upstream.ClaimOf(awakeName, ""),
		metav1.CreateOptions{}); err != nil {
		return err
	}
	return s.BindClaim(ctx, "default", awakeName,
		differential.CSIVolume(awakeName, differential.DriverName, corev1.ReadWriteOnce))
}

// awakeSnapshotting waits until all controllers of a side have taken and deleted a snapshot.
func awakeSnapshotting(ctx context.Context, s side, name string) error {
	all := s.Dynamic.Resource(upstream.Snapshots()).Namespace("default")
	o := upstream.Object("VolumeSnapshot", name, map[string]any{
		"source": map[string]any{"persistentVolumeClaimName": awakeName}, "volumeSnapshotClassName": awakeName,
	})
	if _, err := all.Create(ctx, o, metav1.CreateOptions{}); err != nil {
		return err
	}
	err := upstream.Poll(ctx, func() (bool, error) {
		o, err := all.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		snapshot, err := upstream.Typed[upstream.SnapshotObject](o)
		return err == nil && snapshot.Status != nil && snapshot.Status.ReadyToUse != nil && *snapshot.Status.ReadyToUse, err
	})
	if err != nil {
		return fmt.Errorf("%s takes no snapshot: %w", s.Name, err)
	}
	if err := all.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	err = upstream.Poll(ctx, func() (bool, error) {
		_, err := all.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, err
	})
	if err != nil {
		return fmt.Errorf("%s does not delete a snapshot: %w", s.Name, err)
	}
	return nil
}

// touchSnapshots edits a class, which ends all pauses of volplane's snapshotter; those of Kubernetes are
// short here.
func touchSnapshots(ctx context.Context, s side, _ string, mark int) error {
	_, err := s.Dynamic.Resource(upstream.SnapshotClasses()).Patch(ctx, awakeName, types.MergePatchType,
		fmt.Appendf(nil, `{"metadata":{"labels":{"touched":"%d"}}}`, mark), metav1.PatchOptions{})
	return err
}

// endSnapshots removes all snapshots, contents, classes and claims of sequences unconditionally, and what their drivers
// keep.
func endSnapshots(ctx context.Context, s side) error {
	if err := s.DeleteKinds(ctx, upstream.Snapshots(), upstream.SnapshotContents(),
		upstream.SnapshotClasses()); err != nil {
		return err
	}
	for _, id := range s.Storage.Driver.Snapshots() {
		if err := s.DeleteAtDriver(ctx, id, ""); err != nil {
			return err
		}
	}
	return differential.EndClaims(ctx, s)
}
