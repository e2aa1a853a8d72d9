package node

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/mount"
)

// stagedWorld is a world in which Pod p has a volume that is staged, with mounts that are verified.
func stagedWorld(t *testing.T) (*world, *fakeDriver) {
	t.Helper()
	w := newWorld(t, noAttach(driverName))
	d := w.mounting(tmpfs, tmpfs)
	w.mountVolume()
	return w, d
}

// entry returns what the CSINode says of the only driver.
func (w *world) entry() string {
	w.t.Helper()
	c, err := w.client.StorageV1().CSINodes().Get(w.t.Context(), "n1", metav1.GetOptions{})
	w.must(nil, err)
	if len(c.Spec.Drivers) != 1 {
		return ""
	}
	return strings.Join(append([]string{c.Spec.Drivers[0].NodeID}, c.Spec.Drivers[0].TopologyKeys...), " ")
}

// TestDriverComesBackWithAnotherName: the driver that was there is missing, and the other one is not asked about its
// volumes, which stay until it returns.
func TestDriverComesBackWithAnotherName(t *testing.T) {
	t.Parallel()
	w, d := stagedWorld(t)
	other := newFakeDriver("other.example", w.dir)
	other.files, other.topology = driverName, nil
	d.stop()
	other.start(t)
	w.registered("other.example")
	w.terminate("p")
	w.heard("Pod", "p", "FailedUnmount", "driver "+driverName+" is not registered on node n1", driverName)
	if h := other.history(); h != "info" {
		t.Errorf("the other driver was called: %s", h)
	}
	if d.leftover() == "" {
		t.Error("the volume went without its driver")
	}
	other.stop()
	d.start(t)
	w.registered(driverName)
	w.awaitDeletion("p")
	w.awaitCleanup(d)
}

// TestDriverComesBackWithoutStaging: the volume is taken away with what was staged of it, by calls that the driver has.
func TestDriverComesBackWithoutStaging(t *testing.T) {
	t.Parallel()
	w, d := stagedWorld(t)
	d.stop()
	// Otherwise the agent would take the next one for the one that it knows, and call what that one has.
	w.registered()
	d.noStage = true
	d.setHook(func(_ context.Context, call string) error {
		if strings.Contains(call, "stage:") {
			return status.Error(codes.Unimplemented, "there is no staging")
		}
		return nil
	})
	before := len(strings.Fields(d.history()))
	d.start(t)
	w.registered(driverName)
	// A second Pod has the volume meanwhile, too.
	w.pod("q", "a")
	w.awaitCondition("q", corev1.ConditionTrue, "v-a=")
	w.terminate("p")
	w.terminate("q")
	w.awaitDeletion("p")
	w.awaitDeletion("q")
	w.empty()
	if points, err := mount.Below(w.dir); err != nil || len(points) > 0 {
		t.Errorf("there are mounts: %+v, %v", points, err)
	}
	if calls := strings.Fields(d.history())[before:]; slices.ContainsFunc(calls, func(call string) bool {
		return strings.Contains(call, "stage:")
	}) {
		t.Errorf("it was called for what it does not have: %v", calls)
	}
	if in := w.node().Status.VolumesInUse; len(in) > 0 {
		t.Errorf("in use: %v", in)
	}
}

// entriesStay refuses to change the entry of a driver, as the API server does.
func (w *world) entriesStay(a clienttesting.Action) (bool, runtime.Object, error) {
	now, err := w.tracker.Get(a.GetResource(), "", "n1")
	if err != nil {
		return true, nil, err
	}
	next := a.(clienttesting.UpdateAction).GetObject().(*storagev1.CSINode)
	for _, was := range now.(*storagev1.CSINode).Spec.Drivers {
		for _, is := range next.Spec.Drivers {
			if is.Name == was.Name && (is.NodeID != was.NodeID || !slices.Equal(is.TopologyKeys, was.TopologyKeys)) {
				return true, nil, apierrors.NewInvalid(storagev1.SchemeGroupVersion.WithKind("CSINode").GroupKind(), "n1", nil)
			}
		}
	}
	return false, nil, nil
}

// TestDriverComesBackElsewhere: another id of the node and other keys of its topology take the place of the old ones,
// and the volume that is mounted is not disturbed.
func TestDriverComesBackElsewhere(t *testing.T) {
	t.Parallel()
	w, d := stagedWorld(t)
	if now := w.entry(); now != "id-"+driverName+" topology.example/zone" {
		t.Fatal(now)
	}
	w.client.PrependReactor("update", "csinodes", w.entriesStay)
	before := d.history()
	w.stop()
	d.id, d.topology = "second", map[string]string{"topology.example/rack": "r1"}
	w.run()
	eventually(t, func() string {
		if now := w.entry(); now != "id-second topology.example/rack" {
			return fmt.Sprintf("the node says %q", now)
		}
		return ""
	})
	// The label of the old key stays, as with a kubelet: volumes of before have it as their place.
	if l := w.node().Labels; l["topology.example/zone"] != "z1" || l["topology.example/rack"] != "r1" {
		t.Errorf("labels are %v", l)
	}
	if calls := strings.TrimSpace(strings.TrimPrefix(d.history(), before)); calls != "info" {
		t.Errorf("it was called: %s", calls)
	}
	w.end("p")
	w.awaitCleanup(d)
}

// TestTwoSocketsOfOneDriver: the second one is refused with a reason, which is told once however often it is tried; the
// driver works, and the second takes its place when it ends.
func TestTwoSocketsOfOneDriver(t *testing.T) {
	t.Parallel()
	w, d := newRunningWorld(t, noAttach(driverName))
	second := newFakeDriver(driverName, w.dir)
	second.files, second.id = "second", "second"
	second.start(t)
	w.heard("Node", "n1", "RegistrationRefused", "is already registered by "+d.socket(), "user")
	eventually(t, func() string {
		if n := len(second.answers()); n < 5 {
			return "it was tried again too seldom"
		}
		return ""
	})
	if h := second.history(); h != "" {
		t.Errorf("the second one was called: %s", h)
	}
	w.mountVolume()
	events, err := w.client.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
	w.must(nil, err)
	var told []string
	for _, e := range events.Items {
		if e.Reason == "RegistrationRefused" {
			told = append(told, e.Message)
		}
	}
	if len(told) != 1 {
		t.Errorf("of %d refusals there are events: %q", len(second.answers()), told)
	}
	d.stop()
	eventually(t, func() string {
		if now := w.entry(); !strings.HasPrefix(now, "id-second") {
			return "the node says " + now
		}
		return ""
	})
}

// TestLateMount: a driver that answers before it has mounted is waited for. It is not called a second time, which might
// mount a second time, and the Pod is not told before.
func TestLateMount(t *testing.T) {
	t.Parallel()
	w := newWorld(t, noAttach(driverName))
	t.Cleanup(w.detachAll)
	w.tune = func(o *Options) { o.TrustDrivers, o.LateMount = false, timeout }
	d := newFakeDriver(driverName, w.dir)
	d.noStage = true
	targets := make(chan string, 1)
	d.mount = func(target string) error {
		targets <- target
		return os.Mkdir(target, 0o700)
	}
	d.start(t)
	w.run()
	w.registered(driverName)
	w.addVolume(driverName, "a")
	w.pod("p", "a")
	target := <-targets
	w.awaitCondition("p", corev1.ConditionFalse, "")
	w.must(nil, tmpfs(target))
	w.awaitCondition("p", corev1.ConditionTrue, "v-a=")
	if n := len(d.publishRequests()); n != 1 {
		t.Errorf("it was called %d times", n)
	}
	w.endPods("p")
}
