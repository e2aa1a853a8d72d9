package apiserver_test

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/standalone/standalonetest"
)

func claimOf(name, class, size string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: &class,
		Resources: corev1.VolumeResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)},
		},
	}}
}

// used waits until the quota "q" says that so much is used.
func used(t *testing.T, admin kubernetes.Interface, want map[corev1.ResourceName]string) {
	t.Helper()
	var q *corev1.ResourceQuota
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, time.Minute, true,
		func(ctx context.Context) (bool, error) {
			var err error
			if q, err = admin.CoreV1().ResourceQuotas("default").Get(ctx, "q", metav1.GetOptions{}); err != nil {
				return false, err
			}
			for name, value := range want {
				if got, ok := q.Status.Used[name]; !ok || got.Cmp(resource.MustParse(value)) != 0 {
					return false, nil
				}
			}
			return true, nil
		})
	if err != nil {
		t.Fatalf("used %v, want %v: %v", q.Status.Used, want, err)
	}
}

// deleteAll deletes a claim; its protection is a controller's turn, which does not
// run here.
func deleteAll(t *testing.T, admin kubernetes.Interface, name string) {
	t.Helper()
	claims := admin.CoreV1().PersistentVolumeClaims("default")
	if _, err := claims.Patch(t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := claims.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func refusedBy(t *testing.T, what string, err error, texts ...string) {
	t.Helper()
	if !apierrors.IsForbidden(err) {
		t.Errorf("%s: %v, want forbidden", what, err)
		return
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v, which does not say %q", what, err, text)
		}
	}
}

const (
	fastStorage = "fast.storageclass.storage.k8s.io/requests.storage"
	fastClaims  = "fast.storageclass.storage.k8s.io/persistentvolumeclaims"
	allClaims   = "count/persistentvolumeclaims"
)

// TestQuotasOfStorage: the requests of all claims of a namespace, their number, and the same for each class are
// limited; deletions give room back.
func TestQuotasOfStorage(t *testing.T) {
	t.Parallel()
	s := standalonetest.Start(t)
	admin, ctx := standalonetest.Client(t, s, ""), t.Context()
	for _, c := range []*corev1.PersistentVolumeClaim{
		claimOf("f1", "fast", "1Gi"), claimOf("f2", "fast", "1Gi"), claimOf("s1", "slow", "2Gi"),
	} {
		if _, err := admin.CoreV1().PersistentVolumeClaims("default").Create(ctx, c, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	hard := corev1.ResourceList{
		"requests.storage": resource.MustParse("10Gi"), "persistentvolumeclaims": resource.MustParse("4"),
		allClaims:   resource.MustParse("4"),
		fastStorage: resource.MustParse("5Gi"), fastClaims: resource.MustParse("2"),
		"count/leases.coordination.k8s.io": resource.MustParse("100"),
	}
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}
	if _, err := admin.CoreV1().ResourceQuotas("default").Create(ctx, q, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	used(t, admin, map[corev1.ResourceName]string{
		"requests.storage": "4Gi", "persistentvolumeclaims": "3", allClaims: "3", fastStorage: "2Gi", fastClaims: "2",
		"count/leases.coordination.k8s.io": "0",
	})
	refusedBy(t, "more than all may have", refused(t, admin, claimOf("big", "slow", "7Gi")), "exceeded quota: q",
		"requests.storage=7Gi")
	refusedBy(t, "more than a class may have", refused(t, admin, claimOf("big", "fast", "4Gi")), fastStorage)
	refusedBy(t, "one too many of a class", refused(t, admin, claimOf("f3", "fast", "1Gi")), fastClaims)
	deleteAll(t, admin, "f1")
	used(t, admin, map[corev1.ResourceName]string{
		"requests.storage": "3Gi", "persistentvolumeclaims": "2", allClaims: "2", fastStorage: "1Gi", fastClaims: "1",
	})
	err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, time.Minute, true,
		func(ctx context.Context) (bool, error) {
			_, err := admin.CoreV1().PersistentVolumeClaims("default").Create(ctx, claimOf("f3", "fast", "4Gi"),
				metav1.CreateOptions{})
			return err == nil, nil
		})
	if err != nil {
		t.Errorf("after a deletion: %v", err)
	}
}

// refused tries to create a claim until it is refused: admission learns of quotas
// by a watch. A trial counts nothing.
func refused(t *testing.T, admin kubernetes.Interface, c *corev1.PersistentVolumeClaim) error {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, time.Minute, true,
		func(ctx context.Context) (bool, error) {
			_, last = admin.CoreV1().PersistentVolumeClaims("default").Create(ctx, c,
				metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return last != nil, nil
		})
	if err != nil {
		t.Errorf("claim %s is let pass: %v", c.Name, err)
	}
	return last
}

// TestQuotasHoldForGrowth: later requests of a claim are counted, too.
func TestQuotasHoldForGrowth(t *testing.T) {
	t.Parallel()
	s := standalonetest.Start(t)
	admin, ctx := standalonetest.Client(t, s, ""), t.Context()
	claims := admin.CoreV1().PersistentVolumeClaims("default")
	class := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: "p", AllowVolumeExpansion: ptr.To(true),
	}
	if _, err := admin.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.ResourceQuotaSpec{
		Hard: corev1.ResourceList{"requests.storage": resource.MustParse("3Gi")},
	}}
	if _, err := admin.CoreV1().ResourceQuotas("default").Create(ctx, q, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	used(t, admin, map[corev1.ResourceName]string{"requests.storage": "0"})
	refusedBy(t, "too much", refused(t, admin, claimOf("c", "fast", "4Gi")), "exceeded quota: q")
	c, err := claims.Create(ctx, claimOf("c", "fast", "1Gi"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.Status.Phase = corev1.ClaimBound
	if _, err := claims.UpdateStatus(ctx, c, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	grow := func(size string) error {
		return wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, time.Minute, true,
			func(ctx context.Context) (bool, error) {
				_, err := claims.Patch(ctx, "c", types.MergePatchType,
					[]byte(`{"spec":{"resources":{"requests":{"storage":"`+size+`"}}}}`), metav1.PatchOptions{})
				// The admission of growth may not know the class yet.
				if apierrors.IsForbidden(err) && strings.Contains(err.Error(), "only dynamically provisioned") {
					return false, nil
				}
				return err == nil, err
			})
	}
	// A count that began before the claim was stored would still replace the one of its admission.
	used(t, admin, map[corev1.ResourceName]string{"requests.storage": "1Gi"})
	refusedBy(t, "growth", grow("4Gi"), "exceeded quota: q")
	if err := grow("3Gi"); err != nil {
		t.Error(err)
	}
}

// TestLimitsOfClaims: a claim is neither smaller nor larger than its namespace
// allows.
func TestLimitsOfClaims(t *testing.T) {
	t.Parallel()
	s := standalonetest.Start(t)
	admin, ctx := standalonetest.Client(t, s, ""), t.Context()
	limits := &corev1.LimitRange{
		ObjectMeta: metav1.ObjectMeta{Name: "l"},
		Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
			Type: corev1.LimitTypePersistentVolumeClaim,
			Min:  corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")},
			Max:  corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("4Gi")},
		}}},
	}
	if _, err := admin.CoreV1().LimitRanges("default").Create(ctx, limits, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	refusedBy(t, "too small", refused(t, admin, claimOf("small", "fast", "1Gi")),
		"minimum storage usage per PersistentVolumeClaim is 2Gi")
	refusedBy(t, "too large", refused(t, admin, claimOf("large", "fast", "5Gi")),
		"maximum storage usage per PersistentVolumeClaim is 4Gi")
	if _, err := admin.CoreV1().PersistentVolumeClaims("default").Create(ctx, claimOf("right", "fast", "2Gi"),
		metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
}
