package world

import (
	"fmt"
	"maps"
	"testing"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/process/observe"
	"volplane.dev/volplane/internal/testkit/clientset"
	"volplane.dev/volplane/internal/volume"
)

// TestTally: objects are counted by the cause that `volplane why` tells, and the oldest one counts.
func TestTally(t *testing.T) {
	now := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	claim := func(name, class string, age time.Duration) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: name, UID: "uid", CreationTimestamp: metav1.NewTime(now.Add(-age)),
			},
			Spec:   corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To(class)},
			Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
		}
	}
	bound := claim("c3", "", time.Hour)
	bound.Spec.VolumeName, bound.Status.Phase = "gone", corev1.ClaimLost
	meta := metav1.ObjectMeta{Namespace: "ns", Name: "s1", UID: "s1"}
	meta.CreationTimestamp = metav1.NewTime(now.Add(-time.Minute))
	problem := &snapshotv1.VolumeSnapshotError{Message: ptr.To("disk on fire")}
	o := state.Objects{Now: now, SnapshotsHidden: true, Lists: cluster.Lists{
		Claims: []*corev1.PersistentVolumeClaim{
			claim("c1", "missing", time.Minute), claim("c2", "missing", time.Hour), bound,
		},
		Snapshots: []*snapshotv1.VolumeSnapshot{
			{ObjectMeta: meta, Status: &snapshotv1.VolumeSnapshotStatus{Error: problem}},
		},
		Groups: []*groupv1.VolumeGroupSnapshot{
			{ObjectMeta: meta, Status: &groupv1.VolumeGroupSnapshotStatus{Error: problem}},
		},
	}}
	got := tally(o, map[string]bool{})
	want := map[string]waits{
		string(volume.ReasonProvisioningFailed): {2, now.Add(-time.Hour)}, string(volume.ReasonVolumeMissing): {count: 1},
		string(volume.ReasonSnapshotFailed): {1, now.Add(-time.Minute)},
		string(volume.ReasonGroupFailed):    {1, now.Add(-time.Minute)},
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := tally(state.Objects{Now: now}, map[string]bool{}); len(got) != 0 {
		t.Errorf("in an empty cluster %v wait", got)
	}
}

// TestCausesAreBounded: what others call their events makes no new labels without end.
func TestCausesAreBounded(t *testing.T) {
	known := map[string]bool{}
	for i := range maxCauses + 5 {
		want := fmt.Sprint("Cause", i)
		if i >= maxCauses {
			want = otherCause
		}
		if got := causeOf(volume.Reason(fmt.Sprint("Cause", i)), known); got != want {
			t.Errorf("cause %d is told as %s", i, got)
		}
	}
	for _, text := range []string{"", "two words", "a\nb", "ä"} {
		if got := causeOf(volume.Reason(text), known); got != otherCause {
			t.Errorf("%q is told as %s", text, got)
		}
	}
	if got := causeOf("Cause7", known); got != "Cause7" {
		t.Errorf("a known cause is told as %s", got)
	}
}

// TestHeartbeatsAreOfNodes: the Lease of a node that is gone tells nothing any more.
func TestHeartbeatsAreOfNodes(t *testing.T) {
	var all []runtime.Object
	for _, name := range []string{"n1", "n2", "silent"} {
		all = append(all, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	for i, name := range []string{"n1", "gone", "n2"} {
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: name}}
		lease.Spec.RenewTime = ptr.To(metav1.NewMicroTime(time.Unix(int64(i), 0)))
		all = append(all, lease)
	}
	caches, r := kube.NewCaches(clientset.New(all...)), observe.New("")
	measureHeartbeats(r, caches)
	if err := caches.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	r.Values(observe.Heartbeat, func(value float64, labels ...string) { got[labels[0]] = value })
	if want := map[string]float64{"n1": 0, "n2": 2}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
