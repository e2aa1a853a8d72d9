package apiserver_test

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"volplane.dev/volplane/standalone/apiserver"
	"volplane.dev/volplane/standalone/standalonetest"
)

// TestHealthIsServed: the fields for the health of volumes and of storage are kept, even when a node writes them to its
// own objects, and a node cannot write those of another node.
func TestHealthIsServed(t *testing.T) {
	t.Parallel()
	s := standalonetest.Start(t)
	admin := standalonetest.Client(t, s, "")
	node := standalonetest.Client(t, s, "system:node:n1", "system:nodes")
	for _, name := range []string{"n1", "n2"} {
		must(admin.StorageV1().CSINodes().Create(t.Context(), &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}},
			metav1.CreateOptions{}))(t)
	}
	must(admin.CoreV1().PersistentVolumeClaims("default").Create(t.Context(), claimOf("c", "", "1Gi"),
		metav1.CreateOptions{}))(t)
	pod := inlinePod("p", "d.example")
	pod.Spec.NodeName = "n1"
	must(admin.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}))(t)
	volumeName := pod.Spec.Volumes[0].Name

	const ill = `[{"status":"Degraded","reason":"OnePath","message":"one path is left"}]`
	claim := must(admin.CoreV1().PersistentVolumeClaims("default").Patch(t.Context(), "c", types.MergePatchType,
		[]byte(`{"status":{"healthStatus":{"healthConditions":`+ill+`}}}`), metav1.PatchOptions{}, "status"))(t)
	if h := claim.Status.HealthStatus; h == nil || len(h.HealthConditions) != 1 {
		t.Errorf("health of the claim: %+v", h)
	}
	tell := func(ctx context.Context) (bool, error) {
		told, err := node.CoreV1().Pods("default").Patch(ctx, "p", types.StrategicMergePatchType,
			[]byte(`{"status":{"volumeHealth":[{"name":"`+volumeName+`","healthConditions":`+ill+`}]}}`),
			metav1.PatchOptions{}, "status")
		// The role of nodes may not be known to the authorizer yet.
		return err == nil && len(told.Status.VolumeHealth) == 1 &&
			told.Status.VolumeHealth[0].HealthConditions[0].Status == corev1.VolumeHealthDegraded, nil
	}
	if err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, time.Minute, true, tell); err != nil {
		t.Errorf("health of the Pod's volume: %v", err)
	}
	for name, want := range map[string]bool{"n1": true, "n2": false} {
		c := must(admin.StorageV1().CSINodes().Get(t.Context(), name, metav1.GetOptions{}))(t)
		c.Status.StorageHealth = []storagev1.StorageHealth{{Name: "d.example", HealthConditions: []storagev1.
			StorageHealthCondition{{Status: storagev1.StorageDegraded, Reason: "Slow"}}}}
		_, err := node.StorageV1().CSINodes().UpdateStatus(t.Context(), c, metav1.UpdateOptions{})
		c = must(admin.StorageV1().CSINodes().Get(t.Context(), name, metav1.GetOptions{}))(t)
		if kept := len(c.Status.StorageHealth) == 1; kept != want || apierrors.IsForbidden(err) == want {
			t.Errorf("node n1 reports the storage of %s: %v, kept: %v", name, err, kept)
		}
	}
}

// TestUnknownGate: a feature that does not exist ends the start, and is named.
func TestUnknownGate(t *testing.T) {
	t.Parallel()
	_, err := apiserver.Start(t.Context(), apiserver.Options{
		DataDir: shortDir(t), Listen: "127.0.0.1:0", NoSync: true, FeatureGates: map[string]bool{"NoSuchGate": true},
	})
	if err == nil || !strings.Contains(err.Error(), "NoSuchGate") {
		t.Errorf("start with an unknown feature: %v", err)
	}
}
