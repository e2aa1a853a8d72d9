package provisioning

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/test/internal/differential"
	"volplane.dev/volplane/test/internal/upstream"
)

// TestOurProvisionerTheirBinder: volplane creates and deletes volumes for Kubernetes' binder, as a sidecar
// in a cluster does.
func TestOurProvisionerTheirBinder(t *testing.T) {
	t.Parallel()
	s := differential.NewSide(t, "both", topic{})
	driver, drivers := upstream.StartDriver(t)
	s.Theirs(t, upstream.TheirBinder...)
	s.Ours(t, drivers, "provisioner")
	twoComeAndGo(t, s, driver)
	made := 0
	for _, m := range driver.Methods() {
		if m == "CreateVolume" || m == "DeleteVolume" {
			made++
		}
	}
	if made != 4 {
		t.Errorf("%d calls made and deleted two volumes: %v", made, driver.Methods())
	}
}

// TestOurBinderTheirProvisioner: Kubernetes' provisioner creates and deletes volumes for volplane's binder.
func TestOurBinderTheirProvisioner(t *testing.T) {
	t.Parallel()
	s := differential.NewSide(t, "both", topic{})
	driver, _ := upstream.StartDriver(t)
	s.Ours(t, csi.NewSet(), "binder", "protection")
	s.TheirProvisioner(t, driver)
	twoComeAndGo(t, s, driver)
}

// twoComeAndGo provisions and deletes the volumes of an Immediate and a WaitForFirstConsumer claim.
func twoComeAndGo(t *testing.T, s side, driver *csitest.Driver) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), upstream.Limit)
	defer cancel()
	fast, late := storagev1.VolumeBindingImmediate, storagev1.VolumeBindingWaitForFirstConsumer
	comesAndGoes(ctx, t, s.Client, driver, "fast", fast, func() {})
	comesAndGoes(ctx, t, s.Client, driver, "late", late, func() { selectNode(ctx, t, s.Client, "late") })
}

// comesAndGoes creates a claim of a new class, and deletes it until nothing is left.
func comesAndGoes(
	ctx context.Context, t *testing.T, c kubernetes.Interface, driver *csitest.Driver, name string,
	mode storagev1.VolumeBindingMode, schedule func(),
) {
	t.Helper()
	_, err := c.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: driver.Name(), VolumeBindingMode: &mode,
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	claims := c.CoreV1().PersistentVolumeClaims("default")
	if _, err := claims.Create(ctx, upstream.ClaimOf(name, name), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	schedule()
	upstream.Eventually(ctx, t, func() string {
		c, err := claims.Get(ctx, name, metav1.GetOptions{})
		if err != nil || c.Status.Phase != corev1.ClaimBound {
			return fmt.Sprintf("claim %s is not bound: %v", name, err)
		}
		return ""
	})
	if n := len(driver.Volumes()); n != 1 {
		t.Fatalf("the driver has %d volumes", n)
	}
	if err := claims.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	upstream.Eventually(ctx, t, func() string {
		all, err := c.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
		if err != nil || len(all.Items)+len(driver.Volumes()) > 0 {
			return fmt.Sprintf("volumes are left: %d, at the driver %d: %v", len(all.Items), len(driver.Volumes()), err)
		}
		return ""
	})
}

// selectNode does what the scheduler does.
func selectNode(ctx context.Context, t *testing.T, c kubernetes.Interface, claim string) {
	t.Helper()
	if _, err := c.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}},
		metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	err := upstream.Again(func() error {
		pvc, err := c.CoreV1().PersistentVolumeClaims("default").Get(ctx, claim, metav1.GetOptions{})
		if err != nil {
			return err
		}
		metav1.SetMetaDataAnnotation(&pvc.ObjectMeta, volume.AnnSelectedNode, "n1")
		_, err = c.CoreV1().PersistentVolumeClaims("default").Update(ctx, pvc, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
