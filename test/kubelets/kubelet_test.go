package kubelets

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/mount"
	settings "volplane.dev/volplane/internal/process/options"
	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/test/internal/cluster"
	"volplane.dev/volplane/test/internal/upstream"
)

// TestOurAttacherRealKubelet: volplane's provisioner, attacher and bundled driver work in a cluster of
// Kubernetes, whose scheduler places a Pod and whose kubelet mounts its volume. The next Pod finds the data.
func TestOurAttacherRealKubelet(t *testing.T) {
	h := newKubeletCluster(t, "provisioner", "attacher")
	h.useTwice()
	h.nothingLeft()
}

// newKubeletCluster starts a cluster with a scheduler and a kubelet, the bundled driver, and controllers of volplane.
func newKubeletCluster(t *testing.T, roles ...string) *kubeletCluster {
	t.Helper()
	c := cluster.Start(t)
	c.Controllers(t, "persistentvolume-binder-controller", "persistentvolume-attach-detach-controller",
		"persistentvolume-protection-controller",
		"persistentvolumeclaim-protection-controller", "node-lifecycle-controller")
	c.Scheduler(t)
	h := &kubeletCluster{
		t: t, Cluster: c, client: c.Client, root: c.Kubelet(t, "n1"),
		side: side{Name: "cluster", Server: c, Client: c.Client},
	}
	h.side.Ours(t, bundled(t, "n1", h.root), roles...)
	ctx, cancel := context.WithTimeout(t.Context(), cluster.MountLimit)
	t.Cleanup(cancel)
	h.ctx = ctx
	return h
}

// nothingLeft waits until no volume, attachment or mount is left, and then requires that the driver has nothing.
func (h *kubeletCluster) nothingLeft() {
	h.t.Helper()
	upstream.Eventually(h.ctx, h.t, func() string { return h.side.Left(h.ctx) + below(h.t, h.root) })
	for _, dir := range []string{"volumes", "snapshots"} {
		files, err := os.ReadDir(filepath.Join(filepath.Dir(h.root), "pool", dir))
		if err != nil && !os.IsNotExist(err) || len(files) > 0 {
			h.t.Errorf("the driver has %s %v: %v", dir, files, err)
		}
	}
}

// bundled runs the bundled driver until the test ends. Its pool is next to the kubelet's directory.
func bundled(t *testing.T, node, root string) *csi.Set {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- app.LocalDriver(ctx, settings.DriverOptions{
			NodeID: node, RootDir: root, PoolDir: filepath.Join(filepath.Dir(root), "pool"), Log: slog.New(slog.DiscardHandler),
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return dial(t, filepath.Join(root, "plugins", volume.LocalDriver, "csi.sock"))
}

// dial returns the drivers at these sockets for controllers.
func dial(t *testing.T, sockets ...string) *csi.Set {
	t.Helper()
	drivers := csi.NewSet()
	for _, socket := range sockets {
		conn, err := csi.Dial(t.Context(), socket)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		drivers.Put(conn)
	}
	return drivers
}

// below describes the mounts below a kubelet's directory, which is a mount itself, and the loop devices of files next
// to it.
func below(t *testing.T, root string) string {
	t.Helper()
	points, err := mount.Below(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range points {
		if p.Path != root {
			return "there is a mount at " + p.Path
		}
	}
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if file, err := os.ReadFile(f); err == nil && strings.HasPrefix(string(file), filepath.Dir(root)) {
			return f + " is " + string(file)
		}
	}
	return ""
}

// kubeletCluster is a cluster with a kubelet, whose Pods use one claim after the other.
type kubeletCluster struct {
	*cluster.Cluster
	t      *testing.T
	ctx    context.Context //nolint:containedctx // that of the test
	client kubernetes.Interface
	side   side
	root   string
}

func (h *kubeletCluster) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// useTwice makes one Pod write to the claim's volume and another one read that, and deletes the claim.
func (h *kubeletCluster) useTwice() {
	h.t.Helper()
	h.createObjects()
	h.run("p1")
	file := filepath.Join(h.mounted("p1"), "file")
	h.must(os.WriteFile(file, []byte("of p1"), 0o600))
	h.end("p1")
	h.run("p2")
	got, err := os.ReadFile(filepath.Join(h.mounted("p2"), "file"))
	if err != nil || string(got) != "of p1" {
		h.t.Errorf("p2 reads %q: %v", got, err)
	}
	h.end("p2")
	h.must(h.client.CoreV1().PersistentVolumeClaims("default").Delete(h.ctx, "c", metav1.DeleteOptions{}))
}

// createObjects creates what Pods need: a class with the bundled driver, and a claim.
func (h *kubeletCluster) createObjects() {
	h.t.Helper()
	_, err := h.client.CoreV1().ServiceAccounts("default").Create(h.ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	h.must(err)
	_, err = h.client.StorageV1().CSIDrivers().Create(h.ctx, &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: volume.LocalDriver},
		Spec:       storagev1.CSIDriverSpec{AttachRequired: ptr.To(true), FSGroupPolicy: ptr.To(storagev1.FileFSGroupPolicy)},
	}, metav1.CreateOptions{})
	h.must(err)
	_, err = h.client.StorageV1().StorageClasses().Create(h.ctx, &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "local"}, Provisioner: volume.LocalDriver,
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
	}, metav1.CreateOptions{})
	h.must(err)
	claim := upstream.ClaimOf("c", "local")
	claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("64Mi")}
	_, err = h.client.CoreV1().PersistentVolumeClaims("default").Create(h.ctx, claim, metav1.CreateOptions{})
	h.must(err)
}

// run creates a Pod that uses the claim c, and waits until it is running.
func (h *kubeletCluster) run(name string) {
	h.t.Helper()
	h.runWith(name, "c")
}

// runWith creates a Pod that uses a claim, and waits until it is running.
func (h *kubeletCluster) runWith(name, claim string) {
	h.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		AutomountServiceAccountToken: ptr.To(false),
		// A kubelet mounts only volumes that a container mounts.
		Containers: []corev1.Container{
			{Name: "c", Image: "none", VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}},
		},
		Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
		}}},
	}}
	_, err := h.client.CoreV1().Pods("default").Create(h.ctx, pod, metav1.CreateOptions{})
	h.must(err)
	upstream.Eventually(h.ctx, h.t, func() string {
		pod, err := h.client.CoreV1().Pods("default").Get(h.ctx, name, metav1.GetOptions{})
		if err != nil || pod.Status.Phase != corev1.PodRunning {
			return fmt.Sprintf("pod %s does not run: %+v %v", name, pod.Status, err)
		}
		return ""
	})
}

// mounted returns the path at which the kubelet has mounted a Pod's volume.
func (h *kubeletCluster) mounted(name string) string {
	h.t.Helper()
	pod, err := h.client.CoreV1().Pods("default").Get(h.ctx, name, metav1.GetOptions{})
	h.must(err)
	points, err := mount.Below(filepath.Join(h.root, "pods", string(pod.UID), "volumes", "kubernetes.io~csi"))
	if err != nil || len(points) != 1 || points[0].Type != "ext4" {
		h.t.Fatalf("pod %s has mounts %+v: %v", name, points, err)
	}
	return points[0].Path
}

// end deletes a Pod and waits until it is gone.
func (h *kubeletCluster) end(name string) {
	h.t.Helper()
	h.must(h.client.CoreV1().Pods("default").Delete(h.ctx, name, metav1.DeleteOptions{}))
	h.gone(name)
}

// gone waits until a Pod is gone.
func (h *kubeletCluster) gone(name string) {
	h.t.Helper()
	upstream.Eventually(h.ctx, h.t, func() string {
		if _, err := h.client.CoreV1().Pods("default").Get(h.ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Sprintf("pod %s is still there: %v", name, err)
		}
		return ""
	})
}
