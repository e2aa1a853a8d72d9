package kube

import (
	"bytes"
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/test/internal/cluster"
	"volplane.dev/volplane/test/internal/plane"
	"volplane.dev/volplane/test/internal/upstream"
)

// vendors is a driver as its vendor installs it: every field of the CSIDriver is set, and the workloads have the
// vendor's socket directory and namespace.
const vendors = `
apiVersion: v1
kind: Namespace
metadata: {name: vendor}
---
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: csi.example.com}
spec:
  attachRequired: true
  podInfoOnMount: true
  volumeLifecycleModes: [Persistent, Ephemeral]
  storageCapacity: true
  fsGroupPolicy: File
  tokenRequests: [{audience: vault, expirationSeconds: 600}]
  requiresRepublish: true
  seLinuxMount: true
  nodeAllocatableUpdatePeriodSeconds: 60
  serviceAccountTokenInSecrets: true
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: example-node, namespace: vendor}
spec:
  selector: {matchLabels: {app: node}}
  template:
    metadata: {labels: {app: node}}
    spec:
      containers:
      - name: registrar
        image: example.com/sig-storage/csi-node-driver-registrar:v2.15.0
        args: [--kubelet-registration-path=/data/kubelet/plugins/example/csi.sock]
      - {name: driver, image: "example.com/driver:1", args: [--name=csi.example.com]}
      volumes:
      - {name: registration, hostPath: {path: /data/kubelet/plugins_registry}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: example-controller, namespace: vendor}
spec:
  selector: {matchLabels: {app: controller}}
  template:
    metadata: {labels: {app: controller}}
    spec:
      containers:
      - {name: provisioner, image: "example.com/sig-storage/csi-provisioner:v5.0.1"}
      - {name: driver, image: "example.com/driver:1"}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: old, annotations: {pv.kubernetes.io/migrated-to: csi.example.com}}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  awsElasticBlockStore: {volumeID: vol-1}
`

// manifests runs volplane manifests for a driver with the cluster.
func manifests(ctx context.Context, c *cluster.Cluster, driver string, flags ...string) (out, said string, err error) {
	cmd := exec.CommandContext(ctx, plane.Bin("volplane"), append([]string{
		"manifests", "--driver=" + driver, "--driver-image=example.com/driver:1", "--image=example.com/volplane:1",
		"--kubeconfig=" + c.AdminKubeconfig(), "--from-cluster",
	}, flags...)...)
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	err = cmd.Run()
	return o.String(), e.String(), err
}

// TestManifestsBesideAVendors: manifests for an installed driver leave its CSIDriver and its namespace alone when they
// are applied and when they are deleted, and go to its namespace and directories.
func TestManifestsBesideAVendors(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t, "--allow-privileged")
	ctx, cancel := context.WithTimeout(t.Context(), upstream.Limit)
	defer cancel()
	c.Kubectl(ctx, t, vendors, "apply", "-f", "-")
	before := csiDriver(ctx, t, c, "csi.example.com")
	for _, v := range []struct {
		flags []string
		nodes string
	}{
		{nil, ""},
		{[]string{"--without-nodes=false", "--pod-info-on-mount"}, "path: /data/kubelet/plugins/example\n"},
	} {
		out, said, err := manifests(ctx, c, "csi.example.com", v.flags...)
		if err != nil || strings.Contains(out, "kind: CSIDriver") || strings.Contains(out, "kind: Namespace") {
			t.Fatalf("volplane manifests: %v\n%s%s", err, out, said)
		}
		if !strings.Contains(said, "whose place the driver has taken: 1, the first is old;") {
			t.Errorf("%v: nothing is said of a volume that only upstream's sidecars serve:\n%s", v.flags, said)
		}
		if strings.Contains(out, "kind: DaemonSet") != (v.nodes != "") || !strings.Contains(out, v.nodes) {
			t.Errorf("%v: the nodes' part is\n%s", v.flags, out)
		}
		c.Kubectl(ctx, t, out, "apply", "--validate=strict", "-f", "-")
		c.Kubectl(ctx, t, "", "get", "--namespace=vendor", "deployment/csi-example-com-controller")
		c.Kubectl(ctx, t, out, "delete", "-f", "-")
		if change := golden.Change(t, before, csiDriver(ctx, t, c, "csi.example.com")); change != "" {
			t.Errorf("%v: the vendor's CSIDriver is changed:\n%s", v.flags, change)
		}
		_, err = c.Client.AppsV1().DaemonSets("vendor").Get(ctx, "example-node", metav1.GetOptions{})
		if err != nil {
			t.Errorf("the vendor's DaemonSet: %v", err)
		}
	}
	if _, said, err := manifests(ctx, c, "csi.example.com", "--fs-group-policy=None"); err == nil ||
		!strings.Contains(said, "fsGroupPolicy of the CSIDriver csi.example.com is File, not None") {
		t.Errorf("a change of the vendor's CSIDriver: %v\n%s", err, said)
	}
}

// TestManifestsTakeOverTheirOwn: fields of a CSIDriver that earlier manifests have set stay when later ones omit them,
// and a change that Kubernetes would refuse is refused before anything is printed.
func TestManifestsTakeOverTheirOwn(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t, "--allow-privileged")
	ctx, cancel := context.WithTimeout(t.Context(), upstream.Limit)
	defer cancel()
	const driver = "own.example.com"
	i := c.Install(ctx, t, driver, "--pod-info-on-mount", "--fs-group-policy=File", "--token-request=vault",
		"--service-account-token-in-secrets", "--volume-lifecycle-modes=Ephemeral", "--controllers=provisioner,attacher")
	before := csiDriver(ctx, t, c, driver)
	out, said, err := manifests(ctx, c, driver, "--requires-republish")
	if err != nil {
		t.Fatalf("volplane manifests: %v\n%s", err, said)
	}
	c.Kubectl(ctx, t, out, "apply", "--validate=strict", "-f", "-")
	after := csiDriver(ctx, t, c, driver)
	if change := golden.Change(t, before.Spec, after.Spec); change != "  requiresRepublish: true, was false\n" {
		t.Errorf("of the CSIDriver is changed:\n%s", change)
	}
	controller, _ := templates(i, "deployment")
	if args := strings.Join(controller.Spec.Containers[1].Args, " "); !strings.Contains(args,
		"--controllers=provisioner,attacher ") {
		t.Errorf("other controllers run: %s", args)
	}
	out, said, err = manifests(ctx, c, driver, "--attach-required=false")
	if err == nil || out != "" || !strings.Contains(said, "is true and cannot become false: Kubernetes never changes it") {
		t.Errorf("a change of what never changes: %v\n%s%s", err, out, said)
	}
}

func csiDriver(ctx context.Context, t *testing.T, c *cluster.Cluster, name string) *storagev1.CSIDriver {
	t.Helper()
	d, err := c.Client.StorageV1().CSIDrivers().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d.ManagedFields, d.ResourceVersion = nil, ""
	return d
}

// TestChartInACluster: the API server would accept every object of the chart for each file of values.
func TestChartInACluster(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t, "--allow-privileged")
	ctx, cancel := context.WithTimeout(t.Context(), upstream.Limit)
	defer cancel()
	for _, name := range []string{"storage", "other", "a"} {
		_, err := c.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
			metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	c.Kubectl(ctx, t, "", "apply", "-f", filepath.Join("..", "..", "standalone", "apiserver", "crds",
		"cbt.storage.k8s.io_snapshotmetadataservices.yaml"))
	c.Kubectl(ctx, t, "", "wait", "--for=condition=Established", "--timeout=1m",
		"crd/snapshotmetadataservices.cbt.storage.k8s.io")
	chart := filepath.Join("..", "..", "charts", "volplane")
	files, err := filepath.Glob(filepath.Join("..", "chart", "testdata", "values", "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatal("there are no values: ", err)
	}
	for _, file := range files {
		out, err := exec.CommandContext(ctx, plane.Bin("helm"), "template", "release", chart, "--namespace=storage",
			"--skip-tests", "--values="+filepath.Join(chart, "ci", "default-values.yaml"), "--values="+file,
			"--set=crds.install=true,storageClasses[0].name=fast").Output()
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		c.Kubectl(ctx, t, string(out), "apply", "--dry-run=server", "--validate=strict", "-f", "-")
	}
}
