package exchange

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/test/internal/cluster"
	"volplane.dev/volplane/test/internal/node"
	"volplane.dev/volplane/test/internal/plane"
	"volplane.dev/volplane/test/internal/upstream"
)

// TestOneSedInContainers: a kubelet and containerd run a driver with upstream's sidecars. The first command of
// docs/cluster.md replaces their images by volplane's, and upstream's manifests applied again change them back. Volumes
// are made, used, grown, restored from a snapshot and deleted on both sides, and no Pod notices. The driver is the
// bundled one; `make examples` plays csi-driver-host-path with its own program, manifest and examples.
func TestOneSedInContainers(t *testing.T) {
	t.Run("bundled", bundledInContainers)
	if os.Getenv("EXAMPLES") != "" {
		t.Run("hostpath", hostpathInContainers)
	}
}

func bundledInContainers(t *testing.T) {
	h := startContainers(t, "csi-plugin", cluster.MountLimit)
	text, err := os.ReadFile(filepath.Join("testdata", "containers.yaml"))
	h.must(err)
	upstream := string(text)
	h.apply(upstream)
	h.works("example.com/sig-storage/")
	h.apply(containersClaim("c1", "") + containersPod("p1", "c1"))
	h.wait("pod/p1", "condition=Ready")
	file := h.file("p1", "c1")
	h.must(os.WriteFile(file, []byte("of p1"), 0o600))
	h.apply(strings.ReplaceAll(containersSnapshot, "NAME", "s1"))
	h.wait("volumesnapshot/s1", "jsonpath={.status.readyToUse}=true")

	h.apply(oneSed(t, upstream))
	h.works("example.com/volplane/")
	h.Kubectl(h.ctx, t, "", "patch", "pvc/c1", `--patch={"spec":{"resources":{"requests":{"storage":"128Mi"}}}}`)
	h.apply(containersClaim("c2", "s1") + containersPod("p2", "c2"))
	h.wait("pod/p2", "condition=Ready")
	h.reads("p2", "c2")
	// Some machines do not let ext4 grow while it is mounted.
	h.Kubectl(h.ctx, t, "", "delete", "pod/p1", "pod/p2", "pvc/c2", "volumesnapshot/s1", "--timeout=1m")
	h.Kubectl(h.ctx, t, "", "wait", "--for=delete", "volumeattachments", "--all", "--timeout=1m")
	h.apply(containersPod("p3", "c1"))
	h.wait("pvc/c1", "jsonpath={.status.capacity.storage}=128Mi")
	h.wait("pod/p3", "condition=Ready")
	h.apply(strings.ReplaceAll(containersSnapshot, "NAME", "s2"))
	h.wait("volumesnapshot/s2", "jsonpath={.status.readyToUse}=true")

	h.apply(upstream)
	h.works("example.com/sig-storage/")
	h.reads("p3", "c1")
	h.Kubectl(h.ctx, t, "", "delete", "pod/p3", "pvc/c1", "volumesnapshot/s2", "--timeout=1m")
	h.nothingLeft("/var/lib/pool/volumes", "/var/lib/pool/snapshots")
}

// containers is a cluster with a node that runs containers.
type containers struct {
	*cluster.Cluster
	t    *testing.T
	ctx  context.Context //nolint:containedctx // that of the test
	node *node.Node
	// plugin is the StatefulSet with the driver and its sidecars.
	plugin string
}

func (h *containers) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// startContainers starts a cluster with a node, on which are all images, and with the rights of upstream's sidecars.
func startContainers(t *testing.T, plugin string, limit time.Duration) *containers {
	t.Helper()
	c := cluster.Start(t, "--allow-privileged")
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	c.ControllersWith(t, []string{"--root-ca-file=" + c.Path("ca.crt")}, "persistentvolume-binder-controller",
		"persistentvolume-attach-detach-controller", "persistentvolume-protection-controller",
		"persistentvolumeclaim-protection-controller", "persistentvolume-expander-controller", "statefulset-controller",
		"deployment-controller",
		"replicaset-controller", "serviceaccount-controller", "root-ca-certificate-publisher-controller",
		"node-lifecycle-controller")
	c.Scheduler(t)
	h := &containers{Cluster: c, t: t, ctx: ctx, plugin: plugin}
	h.startNode()
	c.ServeSnapshots(ctx, t)
	for _, s := range sidecarRights {
		c.Kubectl(ctx, t, upstreamManifest(t, s.module, s.file), "apply", "-f", "-")
	}
	return h
}

func (h *containers) startNode() {
	h.t.Helper()
	// Not t.TempDir: the name of a unix socket has at most 107 bytes.
	dir, err := os.MkdirTemp("", "node-")
	h.must(err)
	h.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	h.node, err = node.Start(h.ctx, node.Options{
		Dir: dir, Name: "n1", Kubeconfig: h.Kubeconfig(h.t, "system:node:n1", "system:nodes"), Server: h.Address,
	})
	h.must(err)
	h.t.Cleanup(func() {
		if h.t.Failed() {
			h.t.Log(h.node.Said())
		}
		if err := h.node.End(); err != nil {
			h.t.Error(err)
		}
	})
	ours, upstream := sidecarImages()
	h.must(h.node.Import(h.ctx, ours))
	h.must(h.node.Import(h.ctx, upstream))
}

// sidecarImages returns images as the release makes them, and upstream's. The tests do not have upstream's programs for
// nodes and health: volplane's have their names, too. The driver's image takes its tools from the host.
func sidecarImages() (ours, upstream node.Image) {
	ours = node.Image{
		Names: map[string][]string{"example.com/driver:v1": {"/volplane"}},
		Files: map[string]string{
			"/volplane": plane.Bin("volplane"), "/volplane-node-sidecars": plane.Bin("volplane-node-sidecars"),
		},
		Links: map[string]string{"/bin": "usr/bin", "/sbin": "usr/sbin", "/lib": "usr/lib", "/lib64": "usr/lib64"},
	}
	upstream = node.Image{Names: map[string][]string{}, Files: map[string]string{}}
	for name, of := range map[string]string{
		"csi-provisioner": "volplane", "csi-attacher": "volplane", "csi-resizer": "volplane", "csi-snapshotter": "volplane",
		"snapshot-controller": "volplane", "csi-external-health-monitor-controller": "volplane",
		"csi-node-driver-registrar": "volplane-node-sidecars", "livenessprobe": "volplane-node-sidecars",
	} {
		ours.Links["/"+name] = of
		ours.Names["example.com/volplane/"+name+":v0.1.0"] = []string{"/" + name}
		theirs := "example.com/sig-storage/" + name + ":v1"
		if _, err := os.Stat(plane.Bin(name)); err != nil {
			ours.Names[theirs] = []string{"/" + name}
			continue
		}
		upstream.Names[theirs], upstream.Files["/"+name] = []string{"/" + name}, plane.Bin(name)
	}
	return ours, upstream
}

func (h *containers) apply(text string) {
	h.t.Helper()
	h.Kubectl(h.ctx, h.t, text, "apply", "--validate=strict", "-f", "-")
}

func (h *containers) wait(object, condition string) {
	h.t.Helper()
	h.Kubectl(h.ctx, h.t, "", "wait", object, "--for="+condition, "--timeout=1m")
}

// works waits until all sidecars run whose images are below this name, and requires that none has exited.
func (h *containers) works(images string) {
	h.t.Helper()
	h.Kubectl(h.ctx, h.t, "", "rollout", "status", "statefulset/"+h.plugin, "--timeout=1m")
	h.Kubectl(h.ctx, h.t, "", "rollout", "status", "deployment/snapshot-controller", "--namespace=kube-system",
		"--timeout=3m")
	upstream.Eventually(h.ctx, h.t, func() string {
		n, err := h.Client.StorageV1().CSINodes().Get(h.ctx, "n1", metav1.GetOptions{})
		if err != nil || len(n.Spec.Drivers) != 1 {
			return fmt.Sprintf("the drivers of the node are %+v: %v", n.Spec.Drivers, err)
		}
		return ""
	})
	pods, err := h.Client.CoreV1().Pods("").List(h.ctx, metav1.ListOptions{})
	h.must(err)
	sidecars := map[string]bool{}
	for _, p := range pods.Items {
		for _, c := range p.Status.ContainerStatuses {
			if c.RestartCount > 0 {
				h.t.Errorf("container %s of %s was restarted: %+v", c.Name, p.Name, c.LastTerminationState)
			}
		}
		for _, c := range p.Spec.Containers {
			if strings.HasPrefix(c.Image, images) {
				sidecars[c.Name] = true
			}
		}
	}
	if len(sidecars) != 8 {
		h.t.Errorf("of %s are the images of %v", images, sidecars)
	}
}

// file returns the host's name of a file in the volume that a Pod uses.
func (h *containers) file(pod, claim string) string {
	h.t.Helper()
	p, err := h.Client.CoreV1().Pods("default").Get(h.ctx, pod, metav1.GetOptions{})
	h.must(err)
	c, err := h.Client.CoreV1().PersistentVolumeClaims("default").Get(h.ctx, claim, metav1.GetOptions{})
	h.must(err)
	return h.node.Path(fmt.Sprintf("/var/lib/kubelet/pods/%s/volumes/kubernetes.io~csi/%s/mount/file", p.UID,
		c.Spec.VolumeName))
}

func (h *containers) reads(pod, claim string) {
	h.t.Helper()
	if got, err := os.ReadFile(h.file(pod, claim)); err != nil || string(got) != "of p1" {
		h.t.Errorf("%s reads %q: %v", pod, got, err)
	}
}

// nothingLeft waits until no volume is left, in the API and in the driver's directories.
func (h *containers) nothingLeft(dirs ...string) {
	h.t.Helper()
	upstream.Eventually(h.ctx, h.t, func() string {
		volumes, err := h.Client.CoreV1().PersistentVolumes().List(h.ctx, metav1.ListOptions{})
		if err != nil || len(volumes.Items) > 0 {
			return fmt.Sprintf("there are volumes %+v: %v", volumes.Items, err)
		}
		attachments, err := h.Client.StorageV1().VolumeAttachments().List(h.ctx, metav1.ListOptions{})
		if err != nil || len(attachments.Items) > 0 {
			return fmt.Sprintf("there are attachments %+v: %v", attachments.Items, err)
		}
		return ""
	})
	for _, dir := range dirs {
		files, err := os.ReadDir(h.node.Path(dir))
		if err != nil || len(files) > 0 {
			h.t.Errorf("the driver has %s %v: %v", dir, files, err)
		}
	}
}

// containersClaim is a claim, which a snapshot may be the source of.
func containersClaim(name, snapshot string) string {
	source := ""
	if snapshot != "" {
		source = fmt.Sprintf("dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: %s}", snapshot)
	}
	return fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %s}
spec:
  storageClassName: csi-sc
  accessModes: [%s]
  resources: {requests: {storage: 64Mi}}
  %s
---`, name, corev1.ReadWriteOnce, source)
}

func containersPod(name, claim string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: c, image: "%s", volumeMounts: [{name: v, mountPath: /v}]}
  volumes:
  - {name: v, persistentVolumeClaim: {claimName: %s}}
`, name, node.Pause, claim)
}

const containersSnapshot = `
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: NAME}
spec: {volumeSnapshotClassName: csi-snapclass, source: {persistentVolumeClaimName: c1}}
`
