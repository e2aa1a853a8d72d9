package kube

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/test/internal/cluster"
	"volplane.dev/volplane/test/internal/upstream"
)

// TestBundledDriverOnEachNode: the bundled driver runs on two nodes with a pool each, beside the programs that
// `volplane manifests --shape=daemonset --node-deployment` prints, with no other rights. Each volume is created in the
// pool of the node that was selected, or of one that competed for it, grows there, and is deleted there.
func TestBundledDriverOnEachNode(t *testing.T) {
	c, log := cluster.AuditedCluster(t)
	ctx, cancel := context.WithTimeout(t.Context(), upstream.Limit)
	defer cancel()
	c.Controllers(t, "persistentvolume-binder-controller", "persistentvolume-protection-controller",
		"persistentvolumeclaim-protection-controller")
	i := c.Install(ctx, t, volume.LocalDriver, "--shape=daemonset", "--node-deployment",
		"--controllers=provisioner,capacity,resizer")
	pools := map[string]string{"n1": "", "n2": ""}
	for node := range pools {
		pools[node] = onNode(i, node)
	}
	for name, mode := range map[string]storagev1.VolumeBindingMode{
		"fast": storagev1.VolumeBindingImmediate, "late": storagev1.VolumeBindingWaitForFirstConsumer,
	} {
		_, err := c.Client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: volume.LocalDriver, VolumeBindingMode: &mode,
			AllowVolumeExpansion: ptr.To(true),
		}, metav1.CreateOptions{})
		i.Must(err)
	}
	for name, node := range map[string]string{"late-1": "n1", "late-2": "n2", "fast-1": "", "fast-2": ""} {
		class, _, _ := strings.Cut(name, "-")
		claim := upstream.ClaimOf(name, class)
		if node != "" {
			claim.Annotations = map[string]string{volume.AnnSelectedNode: node}
		}
		_, err := c.Client.CoreV1().PersistentVolumeClaims("default").Create(ctx, claim, metav1.CreateOptions{})
		i.Must(err)
	}
	i.Kubectl(ctx, t, "", "wait", "pvc", "--all", "--namespace=default", "--for=jsonpath={.status.phase}=Bound",
		"--timeout=2m")
	claims, err := c.Client.CoreV1().PersistentVolumeClaims("default").List(ctx, metav1.ListOptions{})
	i.Must(err)
	for _, claim := range claims.Items {
		isOn(i, claim, pools)
	}
	i.Kubectl(ctx, t, "", "delete", "pvc", "--all", "--namespace=default", "--timeout=1m")
	upstream.Eventually(ctx, t, func() string {
		all, err := c.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
		i.Must(err)
		if left := len(all.Items) + len(inPool(t, pools["n1"])) + len(inPool(t, pools["n2"])); left > 0 {
			return fmt.Sprint(left, " volumes are left")
		}
		return ""
	})
	refusedNothing(i, log, i.Base+"-node")
}

// onNode starts the driver of a node, and the controllers beside it, and returns the pool.
func onNode(i *cluster.Installation, name string) (pool string) {
	i.T.Helper()
	dir := filepath.Join(i.T.TempDir(), name)
	socket, pool := filepath.Join(dir, "plugins", volume.LocalDriver, "csi.sock"), filepath.Join(dir, "pool")
	upstream.Start(i.T, "volplane", "driver", "local", "--node-id="+name, "--pool="+pool, "--root-dir="+dir)
	_, template := templates(i, "daemonset")
	at := slices.IndexFunc(template.Spec.Containers, func(c corev1.Container) bool { return c.Name == "controllers" })
	i.T.Setenv("NODE_NAME", name)
	upstream.Start(i.T, "volplane", append(template.Spec.Containers[at].Args, "--csi-address="+socket,
		"--provisioner-node-deployment-base-delay=200ms", "--kubeconfig="+i.Identity(i.Base+"-node"))...)
	return pool
}

// isOn fails the test unless a claim's volume is in the pool of the node that its claim names, and nowhere else, and
// grows there.
func isOn(i *cluster.Installation, c corev1.PersistentVolumeClaim, pools map[string]string) {
	i.T.Helper()
	i.Kubectl(i.Ctx, i.T, "", "patch", "pvc/"+c.Name, "--namespace=default",
		`--patch={"spec":{"resources":{"requests":{"storage":"2Gi"}}}}`)
	v, err := i.Client.CoreV1().PersistentVolumes().Get(i.Ctx, c.Spec.VolumeName, metav1.GetOptions{})
	i.Must(err)
	on := c.Annotations[volume.AnnSelectedNode]
	for node, pool := range pools {
		if has := slices.Contains(inPool(i.T, pool), v.Spec.CSI.VolumeHandle); has != (node == on) {
			i.T.Errorf("claim %s is for node %q, and its volume is in the pool of %s: %v", c.Name, on, node, has)
		}
	}
	i.Kubectl(i.Ctx, i.T, "", "wait", "pv/"+v.Name, "--for=jsonpath={.spec.capacity.storage}=2Gi", "--timeout=1m")
}

// inPool returns the ids of the volumes of a pool.
func inPool(t *testing.T, pool string) []string {
	t.Helper()
	all, err := os.ReadDir(filepath.Join(pool, "volumes"))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range all {
		out = append(out, e.Name())
	}
	return out
}
