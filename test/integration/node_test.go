package integration

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/process/options"
	"volplane.dev/volplane/internal/testkit"
	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/standalone/apiserver"
	"volplane.dev/volplane/standalone/standalonetest"
	"volplane.dev/volplane/test/internal/servers"
)

// host is a node agent with the bundled driver and real mounts, and a control plane in the test's process.
// The agent has the rights of a node and no more.
type host struct {
	t       *testing.T
	server  *apiserver.Server
	client  kubernetes.Interface
	dir     string
	drivers *csi.Set
	log     *slog.Logger
	// stopAgent ends the node agent alone.
	stopAgent func()
}

// newHost runs a node agent and the bundled driver.
func newHost(t *testing.T, tune ...func(*host)) *host {
	t.Helper()
	h := prepareHost(t, tune...)
	h.classes()
	h.part(func(ctx context.Context) error {
		return app.LocalDriver(ctx, options.DriverOptions{
			NodeID: "n1", RootDir: h.dir, PoolDir: filepath.Join(h.dir, "pool"), Log: h.log,
		})
	})
	h.run()
	return h
}

// prepareHost returns a host with an API server, on which nothing else runs yet.
func prepareHost(t *testing.T, tune ...func(*host)) *host {
	t.Helper()
	t.Parallel()
	dir, err := os.MkdirTemp("", "node-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		points, _ := mount.Below(dir)
		for _, p := range points {
			_ = unix.Unmount(p.Path, unix.MNT_DETACH)
		}
		_ = os.RemoveAll(dir)
	})
	h := &host{
		t: t, server: servers.Borrow(t), dir: dir, drivers: csi.NewSet(), log: slog.New(slog.DiscardHandler),
	}
	for _, f := range tune {
		f(h)
	}
	h.client = standalonetest.Client(t, h.server, "")
	return h
}

// run runs the controllers and the node agent.
func (h *host) run() {
	h.t.Helper()
	h.part(func(ctx context.Context) error {
		return app.ControlPlane(ctx, app.ControlPlaneOptions{
			ConfigFor: func(role string) (*rest.Config, error) { return h.server.ClientConfig(app.User(role)), nil },
			Drivers:   h.drivers, Log: h.log,
		}, func() {})
	})
	h.startAgent()
}

// part runs a function until the test ends or the returned function is called. It is a failure of the test if the
// function ends by itself.
func (h *host) part(run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		err := run(ctx)
		if ctx.Err() == nil {
			h.t.Errorf("a part has ended by itself: %v", err)
		}
		close(ended)
	}()
	stop = func() {
		cancel()
		<-ended
	}
	h.t.Cleanup(stop)
	return stop
}

func (h *host) startAgent() {
	h.t.Helper()
	config := h.server.ClientConfig("system:node:n1", "system:nodes")
	h.stopAgent = h.part(func(ctx context.Context) error {
		return app.Node(ctx, options.NodeOptions{Name: "n1", RootDir: h.dir, Config: config, Drivers: h.drivers, Log: h.log})
	})
}

func (h *host) classes() {
	h.t.Helper()
	_, err := h.client.StorageV1().CSIDrivers().Create(h.t.Context(), &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: volume.LocalDriver},
		Spec:       storagev1.CSIDriverSpec{AttachRequired: ptr.To(true), FSGroupPolicy: ptr.To(storagev1.FileFSGroupPolicy)},
	}, metav1.CreateOptions{})
	h.must(err)
	_, err = h.client.StorageV1().StorageClasses().Create(h.t.Context(), &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "local"}, Provisioner: volume.LocalDriver,
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
	}, metav1.CreateOptions{})
	h.must(err)
}

func (h *host) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// patience is the limit of each wait on a busy machine.
const patience = 3 * time.Minute

func (h *host) eventually(f func() string) {
	h.t.Helper()
	testkit.Eventually(h.t, patience, f)
}

func (h *host) claim(name string, mode corev1.PersistentVolumeMode) {
	h.t.Helper()
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}}
	c.Spec.StorageClassName, c.Spec.VolumeMode = ptr.To("local"), &mode
	c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("64Mi")}
	_, err := h.client.CoreV1().PersistentVolumeClaims("default").Create(h.t.Context(), c, metav1.CreateOptions{})
	h.must(err)
}

func (h *host) pod(name, claim, at string) {
	h.t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if at != "" {
		p.Annotations = map[string]string{volume.AnnMountAt: at}
	}
	p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: ptr.To[int64](2000)}
	p.Spec.Containers = []corev1.Container{{Name: "c", Image: "none"}}
	p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
	}}}
	_, err := h.client.CoreV1().Pods("default").Create(h.t.Context(), p, metav1.CreateOptions{})
	h.must(err)
}

// mounted waits until the Pod's volumes are mounted, and returns the path.
func (h *host) mounted(name string) (path string) {
	h.t.Helper()
	h.eventually(func() string {
		p, err := h.client.CoreV1().Pods("default").Get(h.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		for _, c := range p.Status.Conditions {
			if c.Type == volume.ConditionVolumesMounted && c.Status == corev1.ConditionTrue {
				path = strings.TrimPrefix(c.Message, "data=")
				return ""
			}
		}
		return fmt.Sprintf("pod %s says %+v", name, p.Status.Conditions)
	})
	return path
}

func (h *host) remove(pod string) {
	h.t.Helper()
	h.must(h.client.CoreV1().Pods("default").Delete(h.t.Context(), pod, metav1.DeleteOptions{}))
}

func (h *host) gone(pod string) {
	h.t.Helper()
	h.eventually(func() string {
		if _, err := h.client.CoreV1().Pods("default").Get(h.t.Context(), pod,
			metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return "pod " + pod + " is still there"
		}
		return ""
	})
}

// clean waits until no mount, file or record of any volume is left on the host.
func (h *host) clean() {
	h.t.Helper()
	h.eventually(func() string {
		points, err := mount.Below(h.dir)
		h.must(err)
		records, _ := filepath.Glob(filepath.Join(h.dir, "journal", "*.json"))
		attachments, err := h.client.StorageV1().VolumeAttachments().List(h.t.Context(), metav1.ListOptions{})
		h.must(err)
		if len(points)+len(records)+len(attachments.Items) > 0 {
			return fmt.Sprintf("left: %v %v %d attachments", points, records, len(attachments.Items))
		}
		return ""
	})
}

// TestNodeMounts: two Pods, one after the other, find the same data, with a host path and with the group of
// a Pod.
func TestNodeMounts(t *testing.T) {
	h := newHost(t)
	at := filepath.Join(h.t.TempDir(), "at")
	h.must(os.Mkdir(at, 0o700))
	h.claim("c", corev1.PersistentVolumeFilesystem)
	h.pod("p", "c", at)
	path := h.mounted("p")
	h.must(os.WriteFile(filepath.Join(path, "f"), []byte("word"), 0o600))
	if got, err := os.ReadFile(filepath.Join(at, "f")); err != nil || string(got) != "word" {
		t.Errorf("at the host path: %q %v", got, err)
	}
	var st unix.Stat_t
	h.must(unix.Stat(path, &st))
	if st.Gid != 2000 {
		t.Errorf("group is %d", st.Gid)
	}
	h.remove("p")
	h.gone("p")
	h.clean()
	h.pod("q", "c", "")
	if got, err := os.ReadFile(filepath.Join(h.mounted("q"), "f")); err != nil || string(got) != "word" {
		t.Errorf("in the second Pod: %q %v", got, err)
	}
	h.remove("q")
	h.gone("q")
	h.clean()
}

// TestDamagedFilesystem: the Pod's condition says what an administrator has to do, and the volume is
// mounted when that is done.
func TestDamagedFilesystem(t *testing.T) {
	h := newHost(t)
	h.claim("c", corev1.PersistentVolumeFilesystem)
	h.pod("p", "c", "")
	path := h.mounted("p")
	h.must(os.WriteFile(filepath.Join(path, "f"), []byte("word"), 0o600))
	h.must(os.MkdirAll(filepath.Join(path, "dir/dir"), 0o700))
	h.remove("p")
	h.gone("p")
	h.clean()
	images, err := filepath.Glob(filepath.Join(h.dir, "pool/volumes/*/disk.img"))
	if err != nil || len(images) != 1 {
		t.Fatal(images, err)
	}
	for _, request := range []string{"clri dir", "set_super_value state 2"} {
		if out, err := exec.Command("debugfs", "-w", "-R", request, images[0]).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", request, err, out)
		}
	}
	h.pod("q", "c", "")
	command := "flock " + images[0] + " e2fsck -f " + images[0]
	h.eventually(func() string {
		events, err := h.client.CoreV1().Events("default").List(h.t.Context(),
			metav1.ListOptions{FieldSelector: "involvedObject.name=q,reason=FailedMount"})
		h.must(err)
		for _, e := range events.Items {
			repair := "errors that have to be repaired manually: run " + command
			if strings.Contains(e.Message, repair) && e.Type == corev1.EventTypeWarning {
				return ""
			}
		}
		return fmt.Sprintf("pod q is told %+v", events.Items)
	})
	words := append(strings.Fields(command), "-y")
	if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil &&
		!strings.Contains(string(out), "MODIFIED") {
		t.Fatalf("%v: %s", err, out)
	}
	if got, err := os.ReadFile(filepath.Join(h.mounted("q"), "f")); err != nil || string(got) != "word" {
		t.Errorf("%q %v", got, err)
	}
	h.remove("q")
	h.gone("q")
	h.clean()
}

func TestNodeMountsBlockDevices(t *testing.T) {
	h := newHost(t)
	h.claim("c", corev1.PersistentVolumeBlock)
	h.pod("p", "c", "")
	path := h.mounted("p")
	if size, err := mount.DeviceSize(path); err != nil || size != 64<<20 {
		t.Errorf("size is %d %v", size, err)
	}
	// The Pod finds its device where a kubelet shows it.
	if info, err := os.Lstat(path); err != nil || info.Mode()&os.ModeSymlink == 0 ||
		!strings.Contains(path, "/volumeDevices/kubernetes.io~csi/pvc-") {
		t.Errorf("%s: %v %v", path, info, err)
	}
	device, err := os.Readlink(path)
	h.must(err)
	if want := filepath.Join(h.dir, "plugins/kubernetes.io/csi/volumeDevices/publish",
		filepath.Base(path)); filepath.Dir(device) != want {
		t.Errorf("the device is at %s, wanted below %s", device, want)
	}
	// The link is removed: it is created again.
	h.must(os.Remove(path))
	h.stopAgent()
	h.startAgent()
	h.eventually(func() string {
		if _, err := mount.DeviceSize(path); err != nil {
			return err.Error()
		}
		return ""
	})
	h.remove("p")
	h.gone("p")
	h.clean()
	for _, below := range []string{
		"pods/*", "plugins/kubernetes.io/csi/volumeDevices/publish/*", "plugins/kubernetes.io/csi/volumeDevices/staging/*",
	} {
		if left, _ := filepath.Glob(filepath.Join(h.dir, below)); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	}
}
