package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/volume"
)

// mishap is one call that fails once, before or after the work.
type mishap struct {
	call  string
	code  codes.Code
	after bool
}

func (m mishap) name() string {
	return strings.ToLower(fmt.Sprintf("%s-%d-%v", m.call, m.code, m.after))
}

func mishaps() []mishap {
	var out []mishap
	for _, call := range []string{"stage", "publish", "unpublish", "unstage", "expand"} {
		for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
			out = append(out, mishap{call, code, false}, mishap{call, code, true})
		}
	}
	return out
}

// TestEveryCode: whatever code a driver answers, at whatever call, with the work
// done or not: the one whom it keeps waiting is told why and who is next, it
// goes on, and nothing is left at the end.
func TestEveryCode(t *testing.T) {
	w := newWorld(t, noAttach(driverName))
	d := newFakeDriver(driverName, w.dir)
	all := mishaps()
	d.setHook(once(all))
	d.start(t)
	w.run()
	w.registered(driverName)
	for _, m := range all {
		w.wire(driverName, m.name())
		if m.call == "expand" {
			w.must(w.client.CoreV1().PersistentVolumeClaims("ns").Patch(t.Context(), m.name(), types.MergePatchType,
				[]byte(`{"status":{"allocatedResourceStatuses":{"storage":"NodeResizePending"}}}`), metav1.PatchOptions{}, "status"))
		}
		w.pod(m.name(), m.name())
	}
	for _, m := range all {
		w.says(m.name(), corev1.ConditionTrue, "v-"+m.name()+"=")
	}
	for _, m := range all {
		w.terminate(m.name())
	}
	for _, m := range all {
		w.gone(m.name())
	}
	w.empty()
	if left := d.left(); left != "" {
		t.Errorf("left at the driver: %s", left)
	}
	for _, m := range all {
		w.wasTold(m)
	}
}

// once has the driver fail each mishap's call one time.
func once(all []mishap) func(context.Context, string) error {
	byHandle, seen := map[string]mishap{}, map[string]bool{}
	for _, m := range all {
		byHandle["h-"+m.name()] = m
	}
	var mu sync.Mutex
	return func(_ context.Context, what string) error {
		call, rest, _ := strings.Cut(what, ":")
		handle, _, _ := strings.Cut(rest, ":")
		m, ok := byHandle[handle]
		mu.Lock()
		defer mu.Unlock()
		if !ok || m.call != call || seen[handle] {
			return nil
		}
		seen[handle] = true
		err := status.Error(m.code, "mishap "+m.name())
		if m.after {
			return afterwards{err}
		}
		return err
	}
}

// wasTold looks for the event about a mishap at whom it kept waiting. An
// unstage keeps nobody: the Pod is gone by then.
func (w *world) wasTold(m mishap) {
	w.t.Helper()
	kind, reason := "Pod", map[string]volume.Reason{
		"stage": volume.ReasonFailedMount, "publish": volume.ReasonFailedMount, "unpublish": volume.ReasonFailedUnmount, "expand": volume.ReasonFailedNodeResize,
	}[m.call]
	switch m.call {
	case "unstage":
		return
	case "expand":
		kind = "PersistentVolumeClaim"
	}
	eventually(w.t, func() string {
		events, err := w.client.CoreV1().Events("").List(w.t.Context(), metav1.ListOptions{})
		w.must(nil, err)
		for _, e := range events.Items {
			if strings.HasSuffix(e.Message, "mishap "+m.name()) && e.InvolvedObject.Kind == kind && e.InvolvedObject.Name == m.name() &&
				e.Reason == string(reason) && e.Annotations[volume.AnnNext] == "node n1" {
				return ""
			}
		}
		return fmt.Sprintf("%+v: nobody was told, or not whose turn it is", m)
	})
}

// TestUndoneAfterEveryCode: a driver does the work and never says so, and the
// Pod goes: unless the driver said plainly that it did not begin, all is undone.
func TestUndoneAfterEveryCode(t *testing.T) {
	plain := map[codes.Code]bool{
		codes.InvalidArgument: true, codes.NotFound: true, codes.AlreadyExists: true, codes.PermissionDenied: true,
		codes.FailedPrecondition: true, codes.OutOfRange: true, codes.Unimplemented: true, codes.Unauthenticated: true,
	}
	w := newWorld(t, noAttach(driverName))
	d := newFakeDriver(driverName, w.dir)
	names := map[string]error{}
	for _, m := range mishaps() {
		if m.after && !plain[m.code] && (m.call == "stage" || m.call == "publish") {
			names[m.call+":h-"+m.name()] = afterwards{status.Error(m.code, "mishap "+m.name())}
		}
	}
	d.setHook(func(_ context.Context, what string) error {
		for begin, err := range names {
			if strings.HasPrefix(what, begin) {
				return err
			}
		}
		return nil
	})
	d.start(t)
	w.run()
	w.registered(driverName)
	for begin := range names {
		_, handle, _ := strings.Cut(begin, ":h-")
		w.wire(driverName, handle)
		w.pod(handle, handle)
		w.says(handle, corev1.ConditionFalse, "mishap "+handle)
		w.terminate(handle)
	}
	for begin := range names {
		_, handle, _ := strings.Cut(begin, ":h-")
		w.gone(handle)
	}
	w.empty()
	if left := d.left(); left != "" {
		t.Errorf("left at the driver: %s", left)
	}
}

// TestObstacles: what is in the way of a volume is neither hidden nor written
// to nor removed; the Pod is told, and goes on when it is away.
func TestObstacles(t *testing.T) {
	for name, c := range map[string]struct {
		put, take func(target string) error
		want      string
	}{
		"a file": {
			func(at string) error { return os.WriteFile(at, nil, 0o600) }, os.Remove, "something else is there: a file",
		},
		"a symbolic link": {
			func(at string) error { return os.Symlink("/etc", at) }, os.Remove, "path is a symbolic link or passes one",
		},
		"a stranger's mount": {
			tmpfs, func(at string) error { return unix.Unmount(at, 0) }, "something else is mounted there",
		},
		"a directory with data": {
			func(at string) error { return os.MkdirAll(at+"/data", 0o700) }, func(at string) error { return os.Remove(at + "/data") }, "a directory that is not empty",
		},
		"a link above": {
			func(at string) error {
				above := filepath.Dir(filepath.Dir(at))
				return os.Rename(above, above+".away")
			},
			func(at string) error {
				above := filepath.Dir(filepath.Dir(at))
				_ = os.RemoveAll(above)
				return os.Rename(above+".away", above)
			}, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, noAttach(driverName))
			t.Cleanup(w.detachAll)
			w.tune = doubts
			d := newFakeDriver(driverName, w.dir)
			d.mount = tmpfs
			d.start(t)
			w.run()
			w.registered(driverName)
			at := targetPath(w.dir, "uid-p", "pv-a", false)
			w.must(nil, os.MkdirAll(filepath.Dir(at), 0o700))
			w.must(nil, c.put(at))
			if c.want == "" {
				w.must(nil, os.Symlink(filepath.Dir(filepath.Dir(at))+".away", filepath.Dir(filepath.Dir(at))))
				c.want = "path is a symbolic link or passes one"
			}
			w.wire(driverName, "a")
			w.pod("p", "a")
			w.eventSaid("FailedMount", c.want)
			w.says("p", corev1.ConditionFalse, c.want)
			if got := d.history(); strings.Contains(got, "publish:") {
				t.Errorf("calls: %s", got)
			}
			w.must(nil, c.take(at))
			w.says("p", corev1.ConditionTrue, "v-a=")
			w.terminate("p")
			w.gone("p")
			w.empty()
			if left := d.left(); left != "" {
				t.Errorf("left at the driver: %s", left)
			}
		})
	}
}

// TestFullAndReadOnlyDisk: without a place to write down what it does the agent
// does nothing, says so, and goes on when it has one.
func TestFullAndReadOnlyDisk(t *testing.T) {
	w := newWorld(t, noAttach(driverName))
	w.smallDisk()
	d := newFakeDriver(driverName, w.dir)
	d.start(t)
	w.run()
	w.registered(driverName)
	empty := w.fill()
	w.wire(driverName, "a")
	w.pod("p", "a")
	w.eventSaid("FailedMount", "no space left on device")
	empty()
	w.says("p", corev1.ConditionTrue, "v-a=")
	// A mount over it can be read-only although the agent's lock is open.
	w.must(nil, unix.Mount(w.dir, w.dir, "", unix.MS_BIND, ""))
	w.must(nil, unix.Mount("", w.dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	w.wire(driverName, "b")
	w.pod("q", "b")
	w.eventSaid("FailedMount", "read-only file system")
	w.terminate("p")
	w.eventSaid("FailedUnmount", "read-only file system")
	w.must(nil, unix.Mount("", w.dir, "", unix.MS_BIND|unix.MS_REMOUNT, ""))
	w.gone("p")
	w.says("q", corev1.ConditionTrue, "v-b=")
	w.terminate("q")
	w.gone("q")
	w.empty()
	if left := d.left(); left != "" {
		t.Errorf("left at the driver: %s", left)
	}
}

// TestDeviceNeverShows: a driver says that a block device is published, and it
// is not; until it is.
func TestDeviceNeverShows(t *testing.T) {
	w := newWorld(t, noAttach(driverName))
	w.tune = doubts
	d := newFakeDriver(driverName, w.dir)
	d.mount = func(target string) error { return os.WriteFile(target, nil, 0o600) }
	d.start(t)
	w.run()
	w.wire(driverName, "a", func(pv *corev1.PersistentVolume) { pv.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) })
	w.pod("p", "a")
	w.eventSaid("FailedMount", "there is no block device")
	at := targetPath(w.dir, "uid-p", "pv-a", true)
	w.must(nil, os.Remove(at))
	w.must(nil, unix.Mknod(at, unix.S_IFBLK|0o600, int(unix.Mkdev(7, 0))))
	w.says("p", corev1.ConditionTrue, "v-a="+filepath.Join(w.dir, "pods/uid-p/volumeDevices/kubernetes.io~csi/pv-a"))
	if to, err := os.Readlink(deviceLink(w.dir, "uid-p", "pv-a")); err != nil || to != at {
		t.Errorf("the Pod's link leads to %s, %v", to, err)
	}
	w.terminate("p")
	w.gone("p")
	w.empty()
}

// TestNamesThatLeaveTheirDirectory are never made paths of.
func TestNamesThatLeaveTheirDirectory(t *testing.T) {
	w := newWorld(t, noAttach(driverName))
	d := newFakeDriver(driverName, w.dir)
	d.start(t)
	w.run()
	w.registered(driverName)
	w.wire(driverName, "a")
	w.podWith("p", func(p *corev1.Pod) { p.UID = "../../../escape" }, "a")
	w.says("p", corev1.ConditionFalse, `the UID of the Pod, "../../../escape", cannot be the name of a directory`)
	w.podWith("q", func(p *corev1.Pod) {
		inline(p)
		p.Spec.Volumes[0].Name = ".."
	})
	w.says("q", corev1.ConditionFalse, `the name of the volume, "..", cannot be the name of a directory`)
	if got := d.history(); got != "info" {
		t.Errorf("calls: %s", got)
	}
	for _, p := range []string{"p", "q"} {
		w.terminate(p)
		w.gone(p)
	}
	w.empty()
}

// TestManyAttributes reach the driver, and nothing else keeps them.
func TestManyAttributes(t *testing.T) {
	w := newWorld(t, noAttach(driverName))
	d := newFakeDriver(driverName, w.dir)
	d.start(t)
	d.setHook(func(_ context.Context, call string) error {
		if strings.HasPrefix(call, "publish:") && len(d.published()) == 1 {
			return status.Error(codes.Internal, strings.Repeat("too much ", 1<<17))
		}
		return nil
	})
	w.run()
	text := strings.Repeat("x", 1<<20)
	w.wire(driverName, "a", func(pv *corev1.PersistentVolume) { pv.Spec.CSI.VolumeAttributes = map[string]string{"a": text} })
	w.pod("p", "a")
	w.says("p", corev1.ConditionTrue, "v-a=")
	if got := d.published()[0].VolumeContext["a"]; got != text {
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
	w.wire(driverName, "many")
	w.wire(driverName, "one", single)
	for _, v := range []string{"many", "one"} {
		w.pod("old-"+v, v)
		w.says("old-"+v, corev1.ConditionTrue, "v-"+v+"=")
		w.terminate("old-" + v)
	}
	w.eventSaid("FailedUnmount", "it is stuck")
	w.pod("new-many", "many")
	w.says("new-many", corev1.ConditionTrue, "v-many=")
	w.pod("new-one", "one")
	w.says("new-one", corev1.ConditionFalse, "FailedUnmount: NodeUnpublishVolume by driver d.example: Internal: it is stuck")
	d.setHook(nil)
	w.says("new-one", corev1.ConditionTrue, "v-one=")
	for _, v := range []string{"many", "one"} {
		w.gone("old-" + v)
	}
}

// TestFailureOfOnePod: what is in the way of one Pod keeps no other waiting.
func TestFailureOfOnePod(t *testing.T) {
	w := newWorld(t, noAttach(driverName))
	newFakeDriver(driverName, w.dir).start(t)
	w.run()
	w.registered(driverName)
	at := targetPath(w.dir, "uid-a", "pv-v", false)
	w.must(nil, os.MkdirAll(filepath.Dir(at), 0o700))
	w.must(nil, os.WriteFile(at, nil, 0o600))
	w.wire(driverName, "v")
	w.pod("a", "v")
	w.says("a", corev1.ConditionFalse, "something else is there")
	w.pod("b", "v")
	w.says("b", corev1.ConditionTrue, "v-v=")
}

// TestDriverRemoved: the driver is gone for good and a Pod is to go: it is told
// whom it waits for, and nothing is forgotten.
func TestDriverRemoved(t *testing.T) {
	w := newWorld(t, noAttach(driverName))
	d := newFakeDriver(driverName, w.dir)
	d.start(t)
	w.run()
	w.wire(driverName, "a")
	w.pod("p", "a")
	w.says("p", corev1.ConditionTrue, "v-a=")
	d.stop()
	w.registered()
	w.terminate("p")
	w.eventSaid("FailedUnmount", "driver d.example is not registered on node n1")
	if used := w.node().Status.VolumesInUse; len(used) != 1 {
		t.Errorf("volumes in use: %v", used)
	}
	d.start(t)
	w.gone("p")
	w.empty()
	if points, err := mount.Below(w.dir); err != nil || len(points) > 0 {
		t.Errorf("mounts: %v, %v", points, err)
	}
}
