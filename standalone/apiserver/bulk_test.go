package apiserver_test

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/standalone/standalonetest"
)

// TestLargeObjectsOfANamespace: the large objects of a namespace have 8 MiB together. Small ones do not count, other
// namespaces have their own, and existing objects can be made smaller and deleted.
func TestLargeObjectsOfANamespace(t *testing.T) {
	t.Parallel()
	admin := kubernetes.NewForConfigOrDie(standalonetest.Remote(t, standalonetest.Start(t)))
	ctx, one := t.Context(), admin.CoreV1().ConfigMaps("default")
	large := func(kib int) *corev1.ConfigMap {
		return &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "large-"}, Data: map[string]string{"x": strings.Repeat("x", kib<<10)},
		}
	}
	var last *corev1.ConfigMap
	var refused error
	for made := 0; refused == nil; made++ {
		o, err := one.Create(ctx, large(1000), metav1.CreateOptions{})
		if refused = err; err == nil {
			last = o
		}
		if made > 12 {
			t.Fatal("twelve objects of 1000 KiB were not too many")
		}
	}
	const words = "KiB beyond 8 KiB each, and 8192 KiB are allowed: delete or shrink some, the largest are configmaps/"
	if !apierrors.IsForbidden(refused) || !strings.Contains(refused.Error(), words) {
		t.Errorf("the refusal is %v", refused)
	}
	must(one.Create(ctx, large(4), metav1.CreateOptions{}))(t)
	must(admin.CoreV1().ConfigMaps("kube-public").Create(ctx, large(1000), metav1.CreateOptions{}))(t)
	last.Data["y"] = "more"
	if _, err := one.Update(ctx, last, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a large object grows: %v", err)
	}
	last.Data = large(900).Data
	must(one.Update(ctx, last, metav1.UpdateOptions{}))(t)
	if err := one.Delete(ctx, last.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	again := func(ctx context.Context) (bool, error) {
		_, err := one.Create(ctx, large(900), metav1.CreateOptions{})
		return err == nil, nil
	}
	if err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, time.Minute, true, again); err != nil {
		t.Errorf("a deletion makes no room: %v", err)
	}
}
