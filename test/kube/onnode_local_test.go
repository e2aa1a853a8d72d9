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
)

// TestBundledDriverOnEachNode: the bundled driver runs on two nodes with a pool each, and beside it what
// `volplane manifests --shape=daemonset --node-deployment` prints, with no other rights. Each volume is made in the
// pool of the node that was selected, or of one that competed for it, grows there, and is deleted there.
func TestBundledDriverOnEachNode(t *testing.T) {
	c, log := auditedCluster(t)
	ctx, cancel := context.WithTimeout(t.Context(), sceneLimit)
	defer cancel()
	c.controllers(t, "persistentvolume-binder-controller", "persistentvolume-protection-controller",
		"persistentvolumeclaim-protection-controller")
	i := c.install(ctx, t, volume.LocalDriver, "--shape=daemonset", "--node-deployment",
		"--controllers=provisioner,capacity,resizer")
	pools := map[string]string{"n1": "", "n2": ""}
	for node := range pools {
		pools[node] = i.onNode(node)
	}
	for name, mode := range map[string]storagev1.VolumeBindingMode{
		"fast": storagev1.VolumeBindingImmediate, "late": whenUsed,
	} {
		_, err := c.client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: volume.LocalDriver, VolumeBindingMode: &mode,
			AllowVolumeExpansion: ptr.To(true),
		}, metav1.CreateOptions{})
		i.must(err)
	}
	for name, node := range map[string]string{"late-1": "n1", "late-2": "n2", "fast-1": "", "fast-2": ""} {
		class, _, _ := strings.Cut(name, "-")
		claim := claimOf(name, class)
		if node != "" {
			claim.Annotations = map[string]string{volume.AnnSelectedNode: node}
		}
		_, err := c.client.CoreV1().PersistentVolumeClaims("default").Create(ctx, claim, metav1.CreateOptions{})
		i.must(err)
	}
	i.kubectl(ctx, t, "", "wait", "pvc", "--all", "--namespace=default", "--for=jsonpath={.status.phase}=Bound",
		"--timeout=2m")
	claims, err := c.client.CoreV1().PersistentVolumeClaims("default").List(ctx, metav1.ListOptions{})
	i.must(err)
	for _, claim := range claims.Items {
		i.isOn(claim, pools)
	}
	i.kubectl(ctx, t, "", "delete", "pvc", "--all", "--namespace=default", "--timeout=1m")
	eventually(ctx, t, func() string {
		all, err := c.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
		i.must(err)
		if left := len(all.Items) + len(inPool(t, pools["n1"])) + len(inPool(t, pools["n2"])); left > 0 {
			return fmt.Sprint(left, " volumes are left")
		}
		return ""
	})
	i.refusedNothing(log, i.base+"-node")
}

// onNode starts the driver of a node, and the controllers beside it, and returns the pool.
func (i *installation) onNode(name string) (pool string) {
	i.t.Helper()
	dir := filepath.Join(i.t.TempDir(), name)
	socket, pool := filepath.Join(dir, "plugins", volume.LocalDriver, "csi.sock"), filepath.Join(dir, "pool")
	startProgram(i.t, "volplane", "driver", "local", "--node-id="+name, "--pool="+pool, "--root-dir="+dir)
	_, template := i.templates("daemonset")
	at := slices.IndexFunc(template.Spec.Containers, func(c corev1.Container) bool { return c.Name == "controllers" })
	i.t.Setenv("NODE_NAME", name)
	startProgram(i.t, "volplane", append(template.Spec.Containers[at].Args, "--csi-address="+socket,
		"--provisioner-node-deployment-base-delay=200ms", "--kubeconfig="+i.identity(i.base+"-node"))...)
	return pool
}

// isOn fails the test unless a claim's volume is in the pool of the node that its claim names, and nowhere else, and
// grows there.
func (i *installation) isOn(c corev1.PersistentVolumeClaim, pools map[string]string) {
	i.t.Helper()
	i.kubectl(i.ctx, i.t, "", "patch", "pvc/"+c.Name, "--namespace=default",
		`--patch={"spec":{"resources":{"requests":{"storage":"2Gi"}}}}`)
	v, err := i.client.CoreV1().PersistentVolumes().Get(i.ctx, c.Spec.VolumeName, metav1.GetOptions{})
	i.must(err)
	on := c.Annotations[volume.AnnSelectedNode]
	for node, pool := range pools {
		if has := slices.Contains(inPool(i.t, pool), v.Spec.CSI.VolumeHandle); has != (node == on) {
			i.t.Errorf("claim %s is for node %q, and its volume is in the pool of %s: %v", c.Name, on, node, has)
		}
	}
	i.kubectl(i.ctx, i.t, "", "wait", "pv/"+v.Name, "--for=jsonpath={.spec.capacity.storage}=2Gi", "--timeout=1m")
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
