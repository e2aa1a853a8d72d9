package node

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/node/uses"
)

// TestFullAndReadOnlyDisk: without a place to write down what it does the agent
// does nothing, says so, and goes on when it has one.
func TestFullAndReadOnlyDisk(t *testing.T) {
	t.Parallel()
	w := newWorld(t, noAttach(driverName))
	w.smallDisk()
	d := w.runWithDriver()
	empty := w.fill()
	w.addVolume(driverName, "a")
	w.pod("p", "a")
	w.heard("Pod", "p", "FailedMount", "no space left on device", "administrator of node n1")
	empty()
	w.awaitCondition("p", corev1.ConditionTrue, "v-a=")
	// A mount over it can be read-only although the agent's lock is open.
	w.must(nil, unix.Mount(w.dir, w.dir, "", unix.MS_BIND, ""))
	w.must(nil, unix.Mount("", w.dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	w.addVolume(driverName, "b")
	w.pod("q", "b")
	w.heard("Pod", "q", "FailedMount", "read-only file system", "administrator of node n1")
	w.terminate("p")
	w.heard("Pod", "p", "FailedUnmount", "read-only file system", "administrator of node n1")
	w.must(nil, unix.Mount("", w.dir, "", unix.MS_BIND|unix.MS_REMOUNT, ""))
	w.awaitDeletion("p")
	w.awaitCondition("q", corev1.ConditionTrue, "v-b=")
	w.endPods("q")
	if left := d.leftover(); left != "" {
		t.Errorf("left at the driver: %s", left)
	}
}

// TestDeviceNeverShows: a driver says that a block device is published, and it
// is not; until it is.
func TestDeviceNeverShows(t *testing.T) {
	t.Parallel()
	w := newWorld(t, noAttach(driverName))
	w.tune = verifyMounts
	d := newFakeDriver(driverName, w.dir)
	d.mount = func(target string) error { return os.WriteFile(target, nil, 0o600) }
	d.start(t)
	w.run()
	w.addVolume(driverName, "a", func(pv *corev1.PersistentVolume) {
		pv.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
	})
	w.pod("p", "a")
	w.heard("Pod", "p", "FailedMount", "there is no block device", driverName)
	at := uses.TargetPath(w.dir, "uid-p", "pv-a", true)
	w.must(nil, os.Remove(at))
	w.must(nil, unix.Mknod(at, unix.S_IFBLK|0o600, int(unix.Mkdev(7, 0))))
	w.awaitCondition("p", corev1.ConditionTrue,
		"v-a="+filepath.Join(w.dir, "pods/uid-p/volumeDevices/kubernetes.io~csi/pv-a"))
	if to, err := os.Readlink(uses.DeviceLink(w.dir, "uid-p", "pv-a")); err != nil || to != at {
		t.Errorf("the Pod's link leads to %s, %v", to, err)
	}
	w.endPods("p")
}

// TestDeviceOfADeniedVolume: a driver does not know a volume of which it has
// published a device, and the device says otherwise: it is asked again, and
// nothing is unmounted, detached or deleted beneath it.
func TestDeviceOfADeniedVolume(t *testing.T) {
	t.Parallel()
	w := newWorld(t, noAttach(driverName))
	w.tune = verifyMounts
	d := newFakeDriver(driverName, w.dir)
	at := uses.TargetPath(w.dir, "uid-p", "pv-a", true)
	d.mount = func(target string) error { return unix.Mknod(target, unix.S_IFBLK|0o600, int(unix.Mkdev(7, 0))) }
	d.start(t)
	w.run()
	w.addVolume(driverName, "a", func(pv *corev1.PersistentVolume) {
		pv.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
	})
	w.pod("p", "a")
	w.awaitCondition("p", corev1.ConditionTrue, "v-a=")
	denied := false
	d.setHook(func(_ context.Context, call string) error {
		if !strings.HasPrefix(call, "unpublish") || denied {
			return nil
		}
		denied = true
		return status.Error(codes.NotFound, "the volume does not exist")
	})
	w.endPods("p")
	if got := d.leftover(); got != "" || mount.IsDevice(at) {
		t.Errorf("left at the driver: %q, a device at the target: %v", got, mount.IsDevice(at))
	}
}

// TestNamesThatLeaveTheirDirectory are never made paths of.
func TestNamesThatLeaveTheirDirectory(t *testing.T) {
	t.Parallel()
	w, d := newRunningWorld(t, noAttach(driverName))
	w.addVolume(driverName, "a")
	w.podWith("p", func(p *corev1.Pod) { p.UID = "../../../escape" }, "a")
	w.awaitCondition("p", corev1.ConditionFalse,
		`the UID of the Pod, "../../../escape", cannot be the name of a directory`)
	w.heard("Pod", "p", "FailedMount", "the UID of the Pod", "user")
	w.podWith("q", func(p *corev1.Pod) {
		inline(p)
		p.Spec.Volumes[0].Name = ".."
	})
	w.awaitCondition("q", corev1.ConditionFalse, `the name of the volume, "..", cannot be the name of a directory`)
	w.heard("Pod", "q", "FailedMount", "the name of the volume", "user")
	if got := d.history(); got != "info" {
		t.Errorf("calls: %s", got)
	}
	w.endPods("p", "q")
}

// TestManyAttributes reach the driver, and nothing else keeps them.
func TestManyAttributes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, noAttach(driverName))
	d := newFakeDriver(driverName, w.dir)
	d.start(t)
	d.setHook(func(_ context.Context, call string) error {
		if strings.HasPrefix(call, "publish:") && len(d.publishRequests()) == 1 {
			return status.Error(codes.Internal, strings.Repeat("too much ", 1<<17))
		}
		return nil
	})
	w.run()
	text := strings.Repeat("x", 1<<20)
	w.addVolume(driverName, "a", func(pv *corev1.PersistentVolume) {
		pv.Spec.CSI.VolumeAttributes = map[string]string{"a": text}
	})
	w.pod("p", "a")
	w.awaitCondition("p", corev1.ConditionTrue, "v-a=")
	if got := d.publishRequests()[0].VolumeContext["a"]; got != text {
		t.Errorf("the driver got %d bytes", len(got))
	}
	w.eventSaid("FailedMount", "too much")
	files, err := filepath.Glob(filepath.Join(w.dir, "journal", "*.json"))
	w.must(nil, err)
	if info, err := os.Stat(files[0]); err != nil || info.Size() > 2<<10 {
		t.Errorf("the journal's record has %d bytes, %v", info.Size(), err)
	}
}

// TestLeaverKeepsNobodyWaiting: one Pod's volume cannot be taken away, and
// another Pod gets it nevertheless, unless only one may have it.
func TestLeaverKeepsNobodyWaiting(t *testing.T) {
	t.Parallel()
	w := newWorld(t, noAttach(driverName))
	d := newFakeDriver(driverName, w.dir)
	d.start(t)
	d.setHook(func(_ context.Context, call string) error {
		if strings.HasPrefix(call, "unpublish:") {
			return status.Error(codes.Internal, "it is stuck")
		}
		return nil
	})
	w.run()
	single := func(pv *corev1.PersistentVolume) {
		pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	}
	w.addVolume(driverName, "many")
	w.addVolume(driverName, "one", single)
	for _, v := range []string{"many", "one"} {
		w.pod("old-"+v, v)
		w.awaitCondition("old-"+v, corev1.ConditionTrue, "v-"+v+"=")
		w.terminate("old-" + v)
	}
	w.eventSaid("FailedUnmount", "it is stuck")
	w.pod("new-many", "many")
	w.awaitCondition("new-many", corev1.ConditionTrue, "v-many=")
	w.pod("new-one", "one")
	w.awaitCondition("new-one", corev1.ConditionFalse,
		"FailedUnmount: NodeUnpublishVolume by driver d.example: Internal: it is stuck")
	d.setHook(nil)
	w.awaitCondition("new-one", corev1.ConditionTrue, "v-one=")
	for _, v := range []string{"many", "one"} {
		w.awaitDeletion("old-" + v)
	}
}

// newStuckWorld returns a world in which the last Pod of volume a has gone, and the driver does not unstage it.
func newStuckWorld(t *testing.T, code codes.Code, text string) (*world, *fakeDriver) {
	t.Helper()
	w := newWorld(t)
	d := newFakeDriver(driverName, w.dir)
	d.start(t)
	d.setHook(func(_ context.Context, call string) error {
		if strings.HasPrefix(call, "unstage:") {
			return status.Error(code, text)
		}
		return nil
	})
	w.run()
	w.registered(driverName)
	w.mountAttached()
	w.end("p")
	return w, d
}

// TestStuckUnstage: the last Pod has gone, and the driver does not let go of the
// volume. The attachment, whose detach waits, is told why, and so is the next
// Pod.
func TestStuckUnstage(t *testing.T) {
	t.Parallel()
	w, d := newStuckWorld(t, codes.Internal, "it is stuck")
	const cause = "NodeUnstageVolume by driver d.example: Internal: it is stuck"
	w.heard("VolumeAttachment", attach.NameOf(driverName, "h-a", "n1"), "FailedUnmount", cause, "node n1")
	w.pod("q", "a")
	w.heard("Pod", "q", "FailedUnmount", cause, "node n1")
	w.awaitCondition("q", corev1.ConditionFalse, cause)
	if used := w.node().Status.VolumesInUse; len(used) != 1 {
		t.Errorf("volumes in use: %v", used)
	}
	d.setHook(nil)
	w.awaitCondition("q", corev1.ConditionTrue, "v-a=")
	if got := d.callsFor("h-a"); !strings.HasSuffix(got, "unstage stage publish") {
		t.Errorf("calls: %s", got)
	}
}

// TestRefusedUnstage: the last Pod has gone, and the driver does not let go of the volume, because a process has it.
// The next Pod does not wait for the end of that process.
func TestRefusedUnstage(t *testing.T) {
	t.Parallel()
	w, d := newStuckWorld(t, codes.FailedPrecondition, "process 7 has it")
	const cause = "NodeUnstageVolume by driver d.example: FailedPrecondition: process 7 has it"
	w.heard("VolumeAttachment", attach.NameOf(driverName, "h-a", "n1"), "FailedUnmount", cause, "user")
	w.pod("q", "a")
	w.awaitCondition("q", corev1.ConditionTrue, "v-a=")
	if got := d.callsFor("h-a"); !strings.HasSuffix(got, "unstage stage publish") {
		t.Errorf("calls: %s", got)
	}
	w.end("q")
	if used := w.node().Status.VolumesInUse; len(used) != 1 {
		t.Errorf("volumes in use: %v", used)
	}
	d.setHook(nil)
	w.empty()
	if left := d.leftover(); left != "" {
		t.Errorf("left: %s", left)
	}
}

// TestSecretOfNoUse: the user has to make it, and CSI carries nothing but text;
// the driver is not called, and has nothing to undo.
func TestSecretOfNoUse(t *testing.T) {
	t.Parallel()
	w, d := newRunningWorld(t, noAttach(driverName))
	w.addVolume(driverName, "a", func(pv *corev1.PersistentVolume) {
		pv.Spec.CSI.NodeStageSecretRef = &corev1.SecretReference{Namespace: "ns", Name: "s"}
	})
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}, Data: map[string][]byte{"key": []byte("hidden\xff")},
	}
	for pod, c := range map[string]struct {
		there bool
		want  string
	}{
		"missing": {false, `secrets "s" not found`},
		"no-text": {true, `the value of key "key" is not UTF-8 text`},
	} {
		if c.there {
			w.must(w.client.CoreV1().Secrets("ns").Create(t.Context(), secret, metav1.CreateOptions{}))
		}
		w.pod(pod, "a")
		w.heard("Pod", pod, "FailedMount", "volume pv-a: the secret cannot be used: ", "user")
		w.awaitCondition(pod, corev1.ConditionFalse, c.want)
		w.end(pod)
		if c.there {
			w.must(nil, w.client.CoreV1().Secrets("ns").Delete(t.Context(), "s", metav1.DeleteOptions{}))
		}
	}
	w.empty()
	if got := d.callsFor("h-a"); got != "" {
		t.Errorf("calls: %s", got)
	}
}

// TestFailureOfOnePod: what is in the way of one Pod keeps no other waiting.
func TestFailureOfOnePod(t *testing.T) {
	t.Parallel()
	w := newWorld(t, noAttach(driverName))
	w.runWithDriver()
	at := uses.TargetPath(w.dir, "uid-a", "pv-v", false)
	w.must(nil, os.MkdirAll(filepath.Dir(at), 0o700))
	w.must(nil, os.WriteFile(at, nil, 0o600))
	w.addVolume(driverName, "v")
	w.pod("a", "v")
	w.awaitCondition("a", corev1.ConditionFalse, "another file is there")
	w.pod("b", "v")
	w.awaitCondition("b", corev1.ConditionTrue, "v-v=")
}

// TestDriverRemoved: the driver is gone for good and a Pod is to go: it is told
// whom it waits for, and nothing is forgotten.
func TestDriverRemoved(t *testing.T) {
	t.Parallel()
	w, d := newRunningWorld(t, noAttach(driverName))
	w.mountVolume()
	d.stop()
	w.registered()
	w.terminate("p")
	w.heard("Pod", "p", "FailedUnmount", "driver d.example is not registered on node n1", driverName)
	if used := w.node().Status.VolumesInUse; len(used) != 1 {
		t.Errorf("volumes in use: %v", used)
	}
	d.start(t)
	w.awaitDeletion("p")
	w.empty()
	if points, err := mount.Below(w.dir); err != nil || len(points) > 0 {
		t.Errorf("mounts: %v, %v", points, err)
	}
}
