package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/durable"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/node/volumes"
	"volplane.dev/volplane/internal/volume"
)

const driverName = "d.example"

func noAttach(name string) *storagev1.CSIDriver {
	return &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSIDriverSpec{AttachRequired: ptr.To(false)},
	}
}

func TestLifeOfAVolume(t *testing.T) {
	t.Parallel()
	w, d := newRunningWorld(t)
	w.addVolume(driverName, "a")
	w.pod("p", "a")
	w.awaitCondition("p", corev1.ConditionFalse, "WaitForAttach")
	if used := w.node().Status.VolumesInUse; len(used) != 1 {
		t.Errorf("volumes in use while it waits: %v", used)
	}
	w.attach(driverName, "a")
	w.awaitCondition("p", corev1.ConditionTrue,
		"v-a="+filepath.Join(w.dir, "pods/uid-p/volumes/kubernetes.io~csi/pv-a/mount"))
	if got := d.history(); got != "info stage:h-a:/dev/a: publish:h-a" {
		t.Errorf("calls: %s", got)
	}
	w.pod("q", "a")
	w.awaitCondition("q", corev1.ConditionTrue, "v-a=")
	w.end("p")
	w.end("q")
	eventually(t, func() string {
		if used := w.node().Status.VolumesInUse; len(used) > 0 {
			return "volumes in use stay"
		}
		return ""
	})
	if got := d.history(); got !=
		"info stage:h-a:/dev/a: publish:h-a publish:h-a unpublish:h-a unpublish:h-a unstage:h-a" {
		t.Errorf("calls: %s", got)
	}
	w.empty()
}

// empty says that nothing of any volume is left on the disk.
func (w *world) empty() {
	w.t.Helper()
	eventually(w.t, func() string {
		for _, pattern := range []string{
			"journal/*.json*", "pods/*", "plugins/kubernetes.io/csi/[^v]*/*", "plugins/kubernetes.io/csi/volumeDevices/*/*",
		} {
			if left, _ := filepath.Glob(filepath.Join(w.dir, pattern)); len(left) > 0 {
				return "left: " + strings.Join(left, " ")
			}
		}
		return ""
	})
}

func TestPodWithoutVolumes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.run()
	w.pod("p")
	w.awaitCondition("p", corev1.ConditionTrue, "no volumes")
	w.end("p")
}

func TestMissingThings(t *testing.T) {
	t.Parallel()
	w := newWorld(t, noAttach(driverName))
	w.run()
	w.pod("p", "a")
	w.awaitCondition("p", corev1.ConditionFalse, "ClaimMissing")
	w.heard("Pod", "p", "ClaimMissing", "there is no claim a", "user")
	w.addVolume(driverName, "a")
	w.awaitCondition("p", corev1.ConditionFalse, "DriverMissing")
	w.heard("Pod", "p", "DriverMissing", "driver d.example is not registered", driverName)
	newFakeDriver(driverName, w.dir).start(t)
	w.awaitCondition("p", corev1.ConditionTrue, "v-a=")
}

// TestRestart: the agent ends while the driver works; the next one takes over
// and ends what nobody wants any more, without touching what is wanted.
func TestRestart(t *testing.T) {
	t.Parallel()
	w, d := newRunningWorld(t, noAttach(driverName))
	w.addVolume(driverName, "a")
	w.addVolume(driverName, "b")
	w.pod("p", "a")
	w.pod("q", "b")
	w.awaitCondition("p", corev1.ConditionTrue, "v-a=")
	w.awaitCondition("q", corev1.ConditionTrue, "v-b=")
	w.stop()
	w.must(nil, w.client.CoreV1().Pods("ns").Delete(t.Context(), "q", metav1.DeleteOptions{}))
	d.mu.Lock()
	d.calls = nil
	d.mu.Unlock()
	w.run()
	eventually(t, func() string {
		if got := d.history(); got != "info unpublish:h-b unstage:h-b" {
			return "calls: " + got
		}
		if used := w.node().Status.VolumesInUse; len(used) != 1 || !strings.HasSuffix(string(used[0]), "h-a") {
			return "volumes in use are not those of the one that is left"
		}
		return ""
	})
}

// TestUnknownStage: a stage without an answer, then an agent that ends, then a
// Pod that goes: the stage is undone.
func TestUnknownStage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, noAttach(driverName))
	d := newFakeDriver(driverName, w.dir)
	d.start(t)
	d.setHook(func(ctx context.Context, call string) error {
		if strings.HasPrefix(call, "stage:") {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	})
	w.run()
	w.addVolume(driverName, "a")
	w.pod("p", "a")
	eventually(t, func() string {
		if !strings.Contains(d.history(), "stage:h-a") {
			return "no stage"
		}
		return ""
	})
	w.stop()
	d.setHook(nil)
	w.terminate("p")
	w.run()
	w.awaitDeletion("p")
	eventually(t, func() string {
		if !strings.HasSuffix(d.history(), "unstage:h-a") {
			return "calls: " + d.history()
		}
		return ""
	})
	w.empty()
}

// TestFailuresAreRepeated: final and unknown errors, at every step.
func TestFailuresAreRepeated(t *testing.T) {
	t.Parallel()
	w := newWorld(t, noAttach(driverName))
	d := newFakeDriver(driverName, w.dir)
	d.start(t)
	failed := map[string]int{}
	d.setHook(func(_ context.Context, call string) error {
		failed[call]++
		switch failed[call] {
		case 1:
			return status.Error(codes.Internal, "no")
		case 2:
			return status.Error(codes.Unavailable, "perhaps")
		}
		return nil
	})
	w.run()
	w.mountVolume()
	w.endPods("p")
	w.eventSaid("FailedMount", "NodeStageVolume by driver d.example: Internal: no")
	w.eventSaid("FailedUnmount", "NodeUnpublishVolume by driver d.example: Internal: no")
}

// eventSaid waits for an event with a text, whoever is next.
func (w *world) eventSaid(reason, text string) {
	w.t.Helper()
	w.event(func(e *corev1.Event) bool { return e.Reason == reason && strings.Contains(e.Message, text) },
		reason+" with "+text)
}

// heard waits for an event about an object with a text and who is next.
func (w *world) heard(kind, name, reason, text, next string) {
	w.t.Helper()
	w.event(func(e *corev1.Event) bool {
		return e.InvolvedObject.Kind == kind && e.InvolvedObject.Name == name && e.Reason == reason &&
			strings.Contains(e.Message, text) && e.Annotations[volume.AnnNext] == next
	}, kind+" "+name+": "+reason+" with "+text+", next "+next)
}

func (w *world) event(wanted func(*corev1.Event) bool, what string) {
	w.t.Helper()
	eventually(w.t, func() string {
		events, err := w.client.CoreV1().Events("").List(w.t.Context(), metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		var all []string
		for i := range events.Items {
			e := &events.Items[i]
			if wanted(e) {
				return ""
			}
			all = append(all, e.InvolvedObject.Name+": "+e.Reason+" "+e.Message+" -> "+e.Annotations[volume.AnnNext])
		}
		return "no event " + what + "; there are " + strings.Join(all, "; ")
	})
}

// TestHangingDriverDelaysNobody: more volumes than a driver may occupy hang,
// and another driver's volume is mounted meanwhile.
func TestHangingDriverDelaysNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t, noAttach("slow.example"), noAttach(driverName))
	slow, quick := newFakeDriver("slow.example", w.dir), newFakeDriver(driverName, w.dir)
	slow.setHook(func(ctx context.Context, call string) error {
		if call == "info" {
			return nil
		}
		<-ctx.Done()
		return ctx.Err()
	})
	slow.start(t)
	quick.start(t)
	w.run()
	for i := range 3 * volumes.DriverLimit {
		name := "s" + string(rune('a'+i%26)) + string(rune('a'+i/26))
		w.addVolume("slow.example", name)
		w.pod(name, name)
	}
	eventually(t, func() string {
		if n := strings.Count(slow.history(), "stage:"); n < volumes.DriverLimit {
			return "the slow driver is not full yet"
		}
		return ""
	})
	w.mountVolume()
	if n := strings.Count(slow.history(), "stage:"); n != volumes.DriverLimit {
		t.Errorf("%d calls at once, %d are allowed", n, volumes.DriverLimit)
	}
	eventually(t, func() string {
		pods, err := w.client.CoreV1().Pods("ns").List(t.Context(), metav1.ListOptions{})
		w.must(nil, err)
		busy := 0
		for i := range pods.Items {
			c := cluster.PodCondition(&pods.Items[i], volume.ConditionVolumesMounted)
			if c != nil && c.Reason == "DriverBusy" && pods.Items[i].Annotations[volume.AnnNextMounted] == "slow.example" {
				busy++
			}
		}
		if busy != 2*volumes.DriverLimit {
			return fmt.Sprint(busy, " Pods say that the driver is busy with others")
		}
		return ""
	})
}

func TestSecrets(t *testing.T) {
	t.Parallel()
	w, d := newRunningWorld(t, noAttach(driverName), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}, Data: map[string][]byte{"key": []byte("hidden")},
	})
	w.addVolume(driverName, "a", func(pv *corev1.PersistentVolume) {
		pv.Spec.CSI.NodeStageSecretRef = &corev1.SecretReference{Namespace: "ns", Name: "s"}
	})
	w.pod("p", "a")
	w.awaitCondition("p", corev1.ConditionTrue, "v-a=")
	if got := d.history(); !strings.Contains(got, "stage:h-a::hidden") {
		t.Errorf("calls: %s", got)
	}
	files, err := filepath.Glob(filepath.Join(w.dir, "journal", "*"))
	w.must(nil, err)
	for _, f := range files {
		if data, err := os.ReadFile(f); err == nil && strings.Contains(string(data), "hidden") {
			t.Errorf("%s holds the secret", f)
		}
	}
}

func TestMountAtIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, noAttach(driverName))
	w.runWithDriver()
	w.addVolume(driverName, "a")
	for name, path := range map[string]string{
		"rel": "data", "dots": "/data/../etc", "own": w.dir + "/journal", "above": filepath.Dir(w.dir),
		"none": w.dir + "-none",
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, UID: types.UID("uid-" + name), Annotations: map[string]string{volume.AnnMountAt: path},
		}}
		pod.Spec.NodeName = "n1"
		pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "a"},
		}}}
		w.must(w.client.CoreV1().Pods("ns").Create(t.Context(), pod, metav1.CreateOptions{}))
		w.awaitCondition(name, corev1.ConditionFalse, "FailedMount: volume cannot be shown at the host path")
	}
}

func TestOneAgentAtATime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.run()
	w.registered()
	if _, err := durable.TryLock(filepath.Join(w.dir, "lock")); !errors.Is(err, durable.ErrLocked) {
		t.Errorf("got %v", err)
	}
	w.stop()
	lock, err := durable.Lock(t.Context(), filepath.Join(w.dir, "lock"))
	w.must(nil, err)
	w.must(nil, lock.Close())
}

// TestRootDirIsNoLink: the mount table would never show what is mounted below it.
func TestRootDirIsNoLink(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	link := w.dir + "-link"
	w.must(nil, os.Symlink(w.dir, link))
	t.Cleanup(func() { _ = os.Remove(link) })
	for _, dir := range []string{link, filepath.Join(link, "below")} {
		a, err := New(Options{
			Name: "n1", RootDir: dir, Client: w.client, Caches: kube.NewNodeCaches(w.client, "n1"), Drivers: csi.NewSet(),
			Log: slog.New(slog.DiscardHandler),
		})
		w.must(a, err)
		if err := a.Run(t.Context()); !errors.Is(err, errOptions) || !strings.Contains(err.Error(), "symbolic link") {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

// TestLostJournal: the record cannot be read; the node's own word and the directories
// are enough to take the volume away.
func TestLostJournal(t *testing.T) {
	t.Parallel()
	for argues, damage := range map[string]func(file string) error{
		"torn": func(file string) error { return os.WriteFile(file, []byte("{"), 0o600) },
		"a link": func(file string) error {
			return errors.Join(os.Rename(file, file+".elsewhere"), os.Symlink(file+".elsewhere", file))
		},
	} {
		t.Run(argues, func(t *testing.T) {
			t.Parallel()
			w, d := newRunningWorld(t, noAttach(driverName))
			w.mountVolume()
			w.stop()
			files, err := filepath.Glob(filepath.Join(w.dir, "journal", "*.json"))
			w.must(nil, err)
			w.must(nil, damage(files[0]))
			w.terminate("p")
			w.run()
			w.awaitDeletion("p")
			eventually(t, func() string {
				if !strings.HasSuffix(d.history(), "unpublish:h-a unstage:h-a") || len(w.node().Status.VolumesInUse) > 0 {
					return "calls: " + d.history()
				}
				return ""
			})
			w.eventSaid("JournalTorn", "quarantine")
		})
	}
}
