package node

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/testkit"
	"volplane.dev/volplane/internal/volume"
)

// world is an agent with an API that only stores objects.
type world struct {
	t      *testing.T
	dir    string
	client *fake.Clientset
	// tracker keeps the objects of the client.
	tracker *versions
	// watching counts the watches that were begun: the API of these tests
	// forgets what happens between a list and a watch.
	watching atomic.Int32
	stop     func()
	// tune changes what the next agent works with; agent is the last one.
	tune  func(*Options)
	agent *Agent
}

// kinds is how many kinds of objects an agent watches as a whole, but for claims and volumes if it reads them by name.
const kinds, kindsByName = 5, 3

func newWorld(t *testing.T, objects ...runtime.Object) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "node-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	tracker, err := newVersions(objects...)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, dir: dir, client: &fake.Clientset{}, tracker: tracker}
	w.client.AddReactor("*", "*", clienttesting.ObjectReaction(tracker))
	w.client.AddWatchReactor("*", func(a clienttesting.Action) (bool, watch.Interface, error) {
		all, err := tracker.Watch(a.GetResource(), a.GetNamespace())
		if err == nil {
			w.watching.Add(1)
		}
		return true, all, err
	})
	return w
}

// newRunningWorld returns a world with a running agent, with which a driver has registered.
func newRunningWorld(t *testing.T, objects ...runtime.Object) (*world, *fakeDriver) {
	t.Helper()
	w := newWorld(t, objects...)
	return w, w.runWithDriver()
}

// runWithDriver starts an agent and a driver, which registers.
func (w *world) runWithDriver() *fakeDriver {
	w.t.Helper()
	d := newFakeDriver(driverName, w.dir)
	d.start(w.t)
	w.run()
	w.registered(driverName)
	return d
}

// mounting starts an agent that verifies mounts, and a driver that mounts with these functions at staging paths and at
// targets.
func (w *world) mounting(stage, target func(path string) error) *fakeDriver {
	w.t.Helper()
	w.t.Cleanup(w.detachAll)
	w.tune = verifyMounts
	d := newFakeDriver(driverName, w.dir)
	d.mountStage, d.mount = stage, target
	d.start(w.t)
	w.run()
	w.registered(driverName)
	return d
}

// run starts an agent; it ends with the test, or by w.stop.
func (w *world) run() {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	o := Options{
		Name: "n1", RootDir: w.dir, Client: kubetest.Observed(w.t, w.client, w.tracker, Writes()),
		Caches: kube.NewNodeCaches(w.client, "n1"), Drivers: csi.NewSet(),
		Events: kube.NewRecorder(ctx, w.client, "node"), Log: slog.New(slog.DiscardHandler), TrustDrivers: true,
		Dial:     []csi.Option{csitest.CheckCallLog(w.t)},
		RetryMin: 10 * time.Millisecond, RetryMax: 50 * time.Millisecond, LateMount: time.Millisecond,
	}
	if w.tune != nil {
		w.tune(&o)
	}
	agent, err := New(o)
	w.agent = agent
	if err != nil {
		w.t.Fatal(err)
	}
	watched := int32(kinds)
	if o.ByName {
		watched = kindsByName
	}
	w.watching.Store(0)
	ended := make(chan error, 1)
	go func() { ended <- agent.Run(ctx) }()
	stopped := false
	w.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			w.t.Error(err)
		}
	}
	w.t.Cleanup(w.stop)
	eventually(w.t, func() string {
		if n := w.watching.Load(); n < watched {
			return fmt.Sprintf("%d kinds are watched", n)
		}
		return ""
	})
}

// timeout bounds waiting, on a host that is busy with other tests and has a slow disk.
const timeout = 2 * time.Minute

// eventually fails the test if f, which says what is missing, does not become empty.
func eventually(t *testing.T, f func() string) {
	t.Helper()
	testkit.Eventually(t, timeout, f)
}

// addVolume creates a claim and its volume.
func (w *world) addVolume(driver, name string, change ...func(*corev1.PersistentVolume)) {
	w.t.Helper()
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("claim-" + name)},
	}
	claim.Spec.VolumeName, claim.Status.Phase, claim.Status.Capacity = "pv-"+name, corev1.ClaimBound, size
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name, UID: types.UID("pv-" + name)}}
	pv.Spec.AccessModes, pv.Spec.Capacity = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, size
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: name, UID: claim.UID}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "h-" + name}
	for _, f := range change {
		f(pv)
	}
	w.must(w.client.CoreV1().PersistentVolumeClaims("ns").Create(w.t.Context(), claim, metav1.CreateOptions{}))
	w.must(w.client.CoreV1().PersistentVolumes().Create(w.t.Context(), pv, metav1.CreateOptions{}))
}

// mountVolume creates volume a and a Pod p that uses it, and waits until it is mounted.
func (w *world) mountVolume() {
	w.t.Helper()
	w.addVolume(driverName, "a")
	w.pod("p", "a")
	w.awaitCondition("p", corev1.ConditionTrue, "v-a=")
}

// mountAttached is mountVolume for a driver whose volumes are attached.
func (w *world) mountAttached() {
	w.t.Helper()
	w.attach(driverName, "a")
	w.mountVolume()
}

func (w *world) must(_ any, err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// attach does what the attach/detach controller does.
func (w *world) attach(driver, name string) {
	w.t.Helper()
	va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: attach.NameOf(driver, "h-"+name, "n1")}}
	va.Spec.Attacher, va.Spec.NodeName = driver, "n1"
	va.Status.Attached, va.Status.AttachmentMetadata = true, map[string]string{"device": "/dev/" + name}
	w.must(w.client.StorageV1().VolumeAttachments().Create(w.t.Context(), va, metav1.CreateOptions{}))
	body := fmt.Sprintf(`[{"op":"add","path":"/status/volumesAttached","value":[{"name":%q,"devicePath":""}]}]`,
		volume.UniqueName(driver, "h-"+name))
	w.must(w.client.CoreV1().Nodes().Patch(w.t.Context(), "n1", types.JSONPatchType, []byte(body),
		metav1.PatchOptions{}, "status"))
}

func (w *world) pod(name string, claims ...string) {
	w.t.Helper()
	w.podWith(name, nil, claims...)
}

func (w *world) podWith(name string, change func(*corev1.Pod), claims ...string) {
	w.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}}
	pod.Spec.NodeName = "n1"
	for _, c := range claims {
		v := corev1.Volume{Name: "v-" + c}
		v.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c}
		pod.Spec.Volumes = append(pod.Spec.Volumes, v)
	}
	if change != nil {
		change(pod)
	}
	w.must(w.client.CoreV1().Pods("ns").Create(w.t.Context(), pod, metav1.CreateOptions{}))
}

// terminate marks a Pod as deleted, as the API server does.
func (w *world) terminate(name string) {
	w.t.Helper()
	pod, err := w.client.CoreV1().Pods("ns").Get(w.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	now := metav1.Now()
	pod.DeletionTimestamp = &now
	w.must(w.client.CoreV1().Pods("ns").Update(w.t.Context(), pod, metav1.UpdateOptions{}))
}

// awaitCondition waits until the Pod's condition has the status, and contains a text.
func (w *world) awaitCondition(name string, status corev1.ConditionStatus, text string) {
	w.t.Helper()
	eventually(w.t, func() string {
		pod, err := w.client.CoreV1().Pods("ns").Get(w.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		c := cluster.PodCondition(pod, volume.ConditionVolumesMounted)
		if c == nil || c.Status != status || !strings.Contains(c.Reason+": "+c.Message, text) {
			return fmt.Sprintf("pod %s says %+v, wanted %s %q", name, c, status, text)
		}
		return ""
	})
}

func (w *world) awaitDeletion(name string) {
	w.t.Helper()
	eventually(w.t, func() string {
		if _, err := w.client.CoreV1().Pods("ns").Get(w.t.Context(), name, metav1.GetOptions{}); err == nil {
			return "pod " + name + " is still there"
		}
		return ""
	})
}

// endPods terminates Pods one after the other; with the last one, everything of them is gone from the node.
func (w *world) endPods(names ...string) {
	w.t.Helper()
	for _, name := range names {
		w.end(name)
	}
	w.empty()
}

// end terminates a Pod and waits until it is gone.
func (w *world) end(name string) {
	w.t.Helper()
	w.terminate(name)
	w.awaitDeletion(name)
}

func (w *world) node() *corev1.Node {
	node, err := w.client.CoreV1().Nodes().Get(w.t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		return &corev1.Node{}
	}
	return node
}

func (w *world) registered(names ...string) {
	w.t.Helper()
	eventually(w.t, func() string {
		c, err := w.client.StorageV1().CSINodes().Get(w.t.Context(), "n1", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		var got []string
		for _, d := range c.Spec.Drivers {
			got = append(got, d.Name)
		}
		if strings.Join(got, " ") != strings.Join(names, " ") {
			return fmt.Sprintf("registered are %v, wanted %v", got, names)
		}
		return ""
	})
}
