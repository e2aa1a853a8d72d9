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
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}},
	}}
}

// used waits until the quota "q" says that so much is used.
func used(t *testing.T, admin kubernetes.Interface, want map[corev1.ResourceName]string) {
	t.Helper()
	var q *corev1.ResourceQuota
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
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

// letGo deletes a claim; its protection is a controller's turn, which does not
// run here.
func letGo(t *testing.T, admin kubernetes.Interface, name string) {
	t.Helper()
	claims := admin.CoreV1().PersistentVolumeClaims("default")
	if _, err := claims.Patch(t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
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

// TestQuotasOfStorage: what all claims of a namespace ask for, their number, and
// the same for each class are limited; deletions give room back, also when there
// were claims before there was a quota.
func TestQuotasOfStorage(t *testing.T) {
	s := standalonetest.Start(t)
	admin, ctx := standalonetest.Client(t, s, ""), t.Context()
	claims := admin.CoreV1().PersistentVolumeClaims("default")
	create := func(c *corev1.PersistentVolumeClaim) error {
		_, err := claims.Create(ctx, c, metav1.CreateOptions{})
		return err
	}
	if err := create(claimOf("before", "slow", "2Gi")); err != nil {
		t.Fatal(err)
	}
	hard := corev1.ResourceList{
		"requests.storage": resource.MustParse("10Gi"), "persistentvolumeclaims": resource.MustParse("4"), allClaims: resource.MustParse("4"),
		fastStorage: resource.MustParse("5Gi"), fastClaims: resource.MustParse("2"), "count/configmaps": resource.MustParse("100"),
	}
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}
	if _, err := admin.CoreV1().ResourceQuotas("default").Create(ctx, q, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	used(t, admin, map[corev1.ResourceName]string{"requests.storage": "2Gi", "persistentvolumeclaims": "1", allClaims: "1", fastStorage: "0", fastClaims: "0", "count/configmaps": "0"})
	refusedBy(t, "more than all may have", create(claimOf("big", "slow", "9Gi")), "exceeded quota: q", "requests.storage=9Gi")
	refusedBy(t, "more than a class may have", create(claimOf("big", "fast", "6Gi")), fastStorage)
	for _, c := range []*corev1.PersistentVolumeClaim{claimOf("f1", "fast", "1Gi"), claimOf("f2", "fast", "1Gi")} {
		if err := create(c); err != nil {
			t.Fatal(err)
		}
	}
	refusedBy(t, "one too many of a class", create(claimOf("f3", "fast", "1Gi")), fastClaims)
	if err := create(claimOf("s1", "slow", "1Gi")); err != nil {
		t.Fatal(err)
	}
	refusedBy(t, "one too many", create(claimOf("s2", "slow", "1Gi")), "persistentvolumeclaims=1")
	used(t, admin, map[corev1.ResourceName]string{"requests.storage": "5Gi", "persistentvolumeclaims": "4", allClaims: "4", fastStorage: "2Gi", fastClaims: "2"})
	letGo(t, admin, "f1")
	letGo(t, admin, "before")
	used(t, admin, map[corev1.ResourceName]string{"requests.storage": "2Gi", "persistentvolumeclaims": "2", allClaims: "2", fastStorage: "1Gi", fastClaims: "1"})
	if err := create(claimOf("f3", "fast", "4Gi")); err != nil {
		t.Errorf("after deletions: %v", err)
	}
}

// TestQuotasHoldForGrowth: what a claim asks for later is counted, too.
func TestQuotasHoldForGrowth(t *testing.T) {
	s := standalonetest.Start(t)
	admin, ctx := standalonetest.Client(t, s, ""), t.Context()
	claims := admin.CoreV1().PersistentVolumeClaims("default")
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: "p", AllowVolumeExpansion: ptr.To(true)}
	if _, err := admin.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"requests.storage": resource.MustParse("3Gi")}}}
	if _, err := admin.CoreV1().ResourceQuotas("default").Create(ctx, q, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	used(t, admin, map[corev1.ResourceName]string{"requests.storage": "0"})
	c, err := claims.Create(ctx, claimOf("c", "fast", "1Gi"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.Status.Phase = corev1.ClaimBound
	if _, err := claims.UpdateStatus(ctx, c, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	grow := func(size string) error {
		return wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
			_, err := claims.Patch(ctx, "c", types.MergePatchType, []byte(`{"spec":{"resources":{"requests":{"storage":"`+size+`"}}}}`), metav1.PatchOptions{})
			// The admission of growth may not know the class yet.
			if apierrors.IsForbidden(err) && strings.Contains(err.Error(), "only dynamically provisioned") {
				return false, nil
			}
			return err == nil, err
		})
	}
	refusedBy(t, "growth", grow("4Gi"), "exceeded quota: q")
	if err := grow("3Gi"); err != nil {
		t.Error(err)
	}
	used(t, admin, map[corev1.ResourceName]string{"requests.storage": "3Gi"})
}

// TestLimitsOfClaims: a claim is neither smaller nor larger than its namespace
// allows.
func TestLimitsOfClaims(t *testing.T) {
	s := standalonetest.Start(t)
	admin, ctx := standalonetest.Client(t, s, ""), t.Context()
	limits := &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "l"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
		Type: corev1.LimitTypePersistentVolumeClaim,
		Min:  corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")},
		Max:  corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("4Gi")},
	}}}}
	if _, err := admin.CoreV1().LimitRanges("default").Create(ctx, limits, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	claims := admin.CoreV1().PersistentVolumeClaims("default")
	create := func(c *corev1.PersistentVolumeClaim) error {
		_, err := claims.Create(ctx, c, metav1.CreateOptions{})
		return err
	}
	// Admission learns of the limits by a watch.
	var last error
	err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		_, last = claims.Create(ctx, claimOf("small", "fast", "1Gi"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return last != nil, nil
	})
	if err != nil {
		t.Fatal("a claim below the minimum is let pass")
	}
	refusedBy(t, "too small", last, "minimum storage usage per PersistentVolumeClaim is 2Gi")
	refusedBy(t, "too large", create(claimOf("large", "fast", "5Gi")), "maximum storage usage per PersistentVolumeClaim is 4Gi")
	if err := create(claimOf("right", "fast", "2Gi")); err != nil {
		t.Error(err)
	}
}
