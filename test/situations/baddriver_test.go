package situations

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/testkit"
	"volplane.dev/volplane/test/internal/plane"
	"volplane.dev/volplane/test/internal/planetest"
)

const badName = "bad.csi.example.com"

// misdeed is a mistake of a driver, and the resulting report to users.
type misdeed struct {
	name string
	// begin starts the driver's misbehaviour, and end stops it.
	begin, end func(*csitest.Driver)
	// says are words of the answer of `volplane why pod/NAME`.
	says []string
}

func misdeeds() []misdeed {
	on := func(method string, a csitest.Action) func(*csitest.Driver) {
		return func(d *csitest.Driver) {
			d.OnCall(method, func(int, any) csitest.Action { return a })
		}
	}
	well := func(method string) func(*csitest.Driver) {
		return func(d *csitest.Driver) {
			d.OnCall(method, nil)
			d.Restart()
		}
	}
	answers := func(method string, answer any, says ...string) misdeed {
		return misdeed{
			name:  method + " answers nonsense: " + strings.Join(says, " "),
			begin: on(method, csitest.Action{After: true, Answer: answer}), end: well(method), says: says,
		}
	}
	hangs := func(method string, says ...string) misdeed {
		return misdeed{name: method + " hangs", begin: on(method, csitest.Action{Hang: true}), end: well(method), says: says}
	}
	dies := func(method string, says ...string) misdeed {
		return misdeed{
			name: "the driver dies in " + method, begin: on(method, csitest.Action{After: true, Kill: true}), end: well(method),
			says: says,
		}
	}
	noID := &csipb.CreateVolumeResponse{Volume: &csipb.Volume{CapacityBytes: 1 << 30}}
	small := &csipb.CreateVolumeResponse{Volume: &csipb.Volume{VolumeId: "small", CapacityBytes: 1}}
	return []misdeed{
		hangs("CreateVolume", " is being created", "Next: "+badName),
		hangs("ControllerPublishVolume", "attach", badName),
		hangs("NodeStageVolume", "node1"),
		hangs("NodePublishVolume", "node1"),
		dies("CreateVolume", "ProvisioningFailed"),
		dies("ControllerPublishVolume", "FailedAttachVolume"),
		dies("NodeStageVolume", "NodeStageVolume by driver "+badName),
		dies("NodePublishVolume", "NodePublishVolume by driver "+badName),
		answers("CreateVolume", csitest.Raw("\xff\xff\xff"), "ProvisioningFailed", badName),
		answers("CreateVolume", noID, "ProvisioningFailed", "id"),
		answers("CreateVolume", small, "ProvisioningFailed", "bytes"),
		answers("ControllerPublishVolume", csitest.Raw("\xff\xff\xff"), "FailedAttachVolume"),
		answers("NodeStageVolume", csitest.Raw("\xff\xff\xff"), "NodeStageVolume by driver "+badName),
		{
			name:  "the driver calls itself by another name",
			begin: func(d *csitest.Driver) { d.Rename("other.example.com"); d.Restart() },
			end:   func(d *csitest.Driver) { d.Rename(badName); d.Restart() },
			says:  []string{"ProvisioningFailed", "other.example.com"},
		},
	}
}

// TestBadDrivers: a driver misbehaves in each step of a volume's life. `volplane why` reports it, volumes
// of another driver are not delayed, and when the driver works again, the volume exists exactly once.
func TestBadDrivers(t *testing.T) {
	t.Parallel()
	w := newBadWorld(t)
	for i, m := range misdeeds() {
		t.Run(m.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), planetest.Patience)
			defer cancel()
			w.play(ctx, t, "bad"+string(rune('a'+i)), m)
		})
	}
}

type badWorld struct {
	plane  *plane.Plane
	client kubernetes.Interface
	driver *csitest.Driver
}

func newBadWorld(t *testing.T) *badWorld {
	t.Helper()
	w := &badWorld{plane: planetest.Start(t, planetest.LooksOften)}
	var err error
	if w.client, err = w.plane.Client(); err != nil {
		t.Fatal(err)
	}
	config := csitest.Full()
	config.Name, config.NodeID, config.Segments = badName, "id-node1", nil
	config.Plugin.AccessibilityConstraints = false
	config.Hooks = map[string]func(any) error{
		"NodePublishVolume": func(r any) error {
			target := r.(*csipb.NodePublishVolumeRequest).GetTargetPath()
			if err := os.MkdirAll(target, 0o700); err != nil {
				return err
			}
			return unix.Mount("bad", target, "tmpfs", 0, "size=1m")
		},
		"NodeUnpublishVolume": func(r any) error {
			target := r.(*csipb.NodeUnpublishVolumeRequest).GetTargetPath()
			if err := unix.Unmount(target, 0); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
				return err
			}
			return os.Remove(target)
		},
	}
	w.driver = csitest.Start(t, config)
	w.driver.Register(filepath.Join(w.plane.Dir, "node", "plugins_registry"))
	_, err = w.client.StorageV1().StorageClasses().Create(t.Context(), &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "bad"}, Provisioner: badName,
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *badWorld) play(ctx context.Context, t *testing.T, name string, m misdeed) {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	m.begin(w.driver)
	claim := plane.Claim(name, "64Mi")
	claim.Spec.StorageClassName = ptr.To("bad")
	must(w.make(ctx, claim, plane.Pod(name, name, "")))
	w.told(ctx, t, "pod/"+name, m.says)

	// No other claim may wait.
	must(w.make(ctx, plane.Claim(name+"-good", "16Mi"), plane.Pod(name+"-good", name+"-good", "")))
	must(w.mounted(ctx, name+"-good"))
	must(w.remove(ctx, name+"-good"))

	m.end(w.driver)
	must(w.mounted(ctx, name))
	if all := w.driver.Volumes(); len(all) != 1 || len(all[0].Published) != 1 {
		t.Errorf("the driver has %+v", all)
	}
	must(w.remove(ctx, name))
	w.until(ctx, t, func() string {
		all, err := w.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
		must(err)
		if len(all.Items) > 0 || len(w.driver.Volumes()) > 0 {
			return "volumes are left"
		}
		return ""
	})
}

func (w *badWorld) make(ctx context.Context, c *corev1.PersistentVolumeClaim, p *corev1.Pod) error {
	if _, err := w.client.CoreV1().PersistentVolumeClaims("default").Create(ctx, c, metav1.CreateOptions{}); err != nil {
		return err
	}
	_, err := w.client.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{})
	return err
}

func (w *badWorld) remove(ctx context.Context, name string) error {
	if err := w.client.CoreV1().Pods("default").Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return w.client.CoreV1().PersistentVolumeClaims("default").Delete(ctx, name, metav1.DeleteOptions{})
}

func (w *badWorld) mounted(ctx context.Context, pod string) error {
	return plane.WaitPods(ctx, w.client, func(_ watch.EventType, p *corev1.Pod) bool {
		mounted, _ := plane.Mounted(p)
		return p.Name == pod && mounted
	})
}

// told waits until the answer of `volplane why` contains all words.
func (w *badWorld) told(ctx context.Context, t *testing.T, subject string, words []string) {
	t.Helper()
	w.until(ctx, t, func() string {
		ask := exec.CommandContext(ctx, plane.Bin("volplane"), "why", subject, "--kubeconfig", w.plane.Kubeconfig())
		out, _ := ask.CombinedOutput() // it ends with 2 when something waits
		text := strings.Join(strings.Fields(string(out)), " ")
		for _, word := range words {
			if !strings.Contains(text, word) {
				return "no word of " + word + " in: " + text
			}
		}
		return ""
	})
}

// until waits until the function returns "".
func (w *badWorld) until(ctx context.Context, t *testing.T, notYet func() string) {
	t.Helper()
	if err := testkit.Until(ctx, notYet); err != nil {
		t.Fatal(err)
	}
}
