package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/node/journal"
	"volplane.dev/volplane/internal/node/uses"
)

// TestOrphans: mounts that nothing explains stay. Those at paths of the agent are reported at the Node;
// those at other paths and of running Pods are not.
func TestOrphans(t *testing.T) {
	t.Parallel()
	w := newWorld(t, noAttach(driverName))
	t.Cleanup(w.detachAll)
	unknown, staged := uses.TargetPath(w.dir, "uid-gone", "pv-x", false),
		uses.StagingPath(w.dir, driverName, "h-x", "pv-x", false)
	lives, strange := uses.TargetPath(w.dir, "uid-p", "pv-y", false), filepath.Join(w.dir, "strange")
	all := []string{unknown, staged, lives, strange}
	for _, at := range all {
		w.must(nil, os.MkdirAll(at, 0o700))
		w.must(nil, unix.Mount("none", at, "tmpfs", 0, ""))
	}
	w.pod("p", "claim-that-is-missing")
	w.run()
	w.heard("Node", "n1", "MountUnknown", unknown, "user")
	w.heard("Node", "n1", "MountUnknown", staged, "user")
	w.event(func(e *corev1.Event) bool {
		return e.Reason == "MountUnknown" && !strings.Contains(e.Message, lives) && !strings.Contains(e.Message, strange)
	}, "an event of the unknown ones alone")
	for _, at := range all {
		if _, mounted, err := mount.At(at); err != nil || !mounted {
			t.Errorf("%s was taken away, %v", at, err)
		}
	}
}

// TestUnknownWhileRunning: somebody mounts something at a path of drivers. It is reported at the Node
// and stays; mounts that came and went with a Pod are not reported.
func TestUnknownWhileRunning(t *testing.T) {
	t.Parallel()
	w := newWorld(t, noAttach(driverName))
	t.Cleanup(w.detachAll)
	w.tune = func(o *Options) { o.TrustDrivers, o.StatsEvery = false, time.Millisecond }
	d := newFakeDriver(driverName, w.dir)
	d.mountStage = tmpfs
	d.mount = func(at string) error {
		w.must(nil, os.MkdirAll(at, 0o700))
		return tmpfs(at)
	}
	d.start(t)
	w.run()
	w.addVolume(driverName, "a")
	for i := range 3 {
		name := fmt.Sprint("p", i)
		w.pod(name, "a")
		w.awaitCondition(name, corev1.ConditionTrue, "v-a=")
		w.end(name)
	}
	strange := uses.TargetPath(w.dir, "uid-gone", "pv-x", false)
	w.must(nil, os.MkdirAll(strange, 0o700))
	w.must(nil, tmpfs(strange))
	w.heard("Node", "n1", "MountUnknown", strange, "user")
	events, err := w.client.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
	w.must(nil, err)
	for _, e := range events.Items {
		if e.Reason == "MountUnknown" && !strings.Contains(e.Message, "mounted at "+strange+",") {
			t.Errorf("told: %s", e.Message)
		}
	}
	if _, mounted, err := mount.At(strange); err != nil || !mounted {
		t.Errorf("it is mounted no more: %v", err)
	}
}

// TestMissingRecord: while the agent is stopped, the journal's record of a volume is lost and its Pod
// is deleted. Whatever object still identifies the volume, its driver unpublishes and unstages it, and
// only then its entry in volumesInUse is removed.
func TestMissingRecord(t *testing.T) {
	t.Parallel()
	gone := func(w *world) {
		w.must(nil, w.client.CoreV1().Pods("ns").Delete(w.t.Context(), "p", metav1.DeleteOptions{}))
	}
	noPV := func(w *world) {
		w.must(nil, w.client.CoreV1().PersistentVolumes().Delete(w.t.Context(), "pv-a", metav1.DeleteOptions{}))
	}
	notUsed := func(w *world) {
		node := w.node()
		node.Status.VolumesInUse = nil
		w.must(w.client.CoreV1().Nodes().UpdateStatus(w.t.Context(), node, metav1.UpdateOptions{}))
	}
	for name, c := range map[string]struct {
		lose  []func(*world)
		trust bool
	}{
		"the Node says that it uses it":                 {[]func(*world){gone}, false},
		"there is only the volume's object":             {[]func(*world){gone, notUsed}, false},
		"there is only the Node's word":                 {[]func(*world){gone, noPV}, false},
		"its driver mounts nothing":                     {[]func(*world){gone}, true},
		"its driver mounts nothing, nobody says a word": {[]func(*world){gone, notUsed}, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			t.Cleanup(w.detachAll)
			d := newFakeDriver(driverName, w.dir)
			if !c.trust {
				w.tune = verifyMounts
				d.mountStage = tmpfs
				d.mount = func(at string) error {
					w.must(nil, os.MkdirAll(at, 0o700))
					return unix.Mount(uses.StagingPath(w.dir, driverName, "h-a", "pv-a", false), at, "", unix.MS_BIND, "")
				}
			}
			d.start(t)
			w.run()
			w.registered(driverName)
			w.mountAttached()
			w.stop()
			w.loseRecords()
			for _, lose := range c.lose {
				lose(w)
			}
			w.run()
			w.empty()
			eventually(t, func() string {
				if used := w.node().Status.VolumesInUse; len(used) > 0 {
					return fmt.Sprint("the node says that it uses ", used)
				}
				return ""
			})
			if got := d.history(); d.leftover() != "" || !strings.Contains(got, "unpublish:h-a unstage:h-a") {
				t.Errorf("the driver has %q, calls: %s", d.leftover(), got)
			}
			if left, err := mount.Below(w.dir); err != nil || len(left) > 0 {
				t.Errorf("still mounted: %v, %v", left, err)
			}
		})
	}
}

// TestOldRecord: a record from a backup lacks a Pod that has received the volume since, and is gone.
// The driver unpublishes its target.
func TestOldRecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t, noAttach(driverName))
	d := w.mounting(tmpfs, tmpfs)
	w.mountVolume()
	old := w.agent.journal.Get("d.example^h-a")
	w.pod("q", "a")
	w.awaitCondition("q", corev1.ConditionTrue, "v-a=")
	w.stop()
	w.must(nil, w.agent.journal.Put(old))
	w.must(nil, w.client.CoreV1().Pods("ns").Delete(t.Context(), "q", metav1.DeleteOptions{}))
	w.run()
	want := "h-a h-a " + uses.TargetPath(w.dir, "uid-p", "pv-a", false)
	eventually(t, func() string {
		if got := d.leftover(); got != want {
			return "the driver has " + got
		}
		return ""
	})
	w.awaitCondition("p", corev1.ConditionTrue, "v-a=")
	w.endPods("p")
}

// loseRecords deletes the files of the journal, and nothing else.
func (w *world) loseRecords() {
	w.t.Helper()
	records, err := filepath.Glob(filepath.Join(w.dir, "journal/*.json"))
	w.must(nil, err)
	for _, r := range records {
		w.must(nil, os.Remove(r))
	}
}

// TestRunningPodKeepsItsVolume: a running Pod keeps its volume when its claim or volume is deleted; the
// volume is unmounted with the Pod.
func TestRunningPodKeepsItsVolume(t *testing.T) {
	t.Parallel()
	w, d := newRunningWorld(t, noAttach(driverName))
	w.mountVolume()
	w.must(nil, w.client.CoreV1().PersistentVolumeClaims("ns").Delete(t.Context(), "a", metav1.DeleteOptions{}))
	w.must(nil, w.client.CoreV1().PersistentVolumes().Delete(t.Context(), "pv-a", metav1.DeleteOptions{}))
	w.awaitCondition("p", corev1.ConditionFalse, "ClaimMissing")
	w.agent.volumes.AddAll("")
	w.addVolume(driverName, "b")
	w.pod("q", "b")
	w.awaitCondition("q", corev1.ConditionTrue, "v-b=")
	if got := d.history(); strings.Contains(got, "unpublish:") {
		t.Errorf("calls: %s", got)
	}
	w.endPods("p", "q")
}

// TestBusyOrphan: somebody has deleted the journal's records, the Pod is gone, and its mount is busy.
// The volume is not released for its detach until it can be unmounted.
func TestBusyOrphan(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.mounting(nil, tmpfs)
	w.mountAttached()
	busy, err := os.Create(filepath.Join(uses.TargetPath(w.dir, "uid-p", "pv-a", false), "open"))
	w.must(nil, err)
	defer busy.Close()
	w.stop()
	w.loseRecords()
	w.must(nil, w.client.CoreV1().Pods("ns").Delete(t.Context(), "p", metav1.DeleteOptions{}))
	d.setHook(func(context.Context, string) error {
		if len(w.node().Status.VolumesInUse) == 0 {
			t.Error("the node does not say that it uses the volume")
		}
		return nil
	})
	w.run()
	eventually(t, func() string {
		if !strings.Contains(d.history(), "unpublish:") {
			return "the driver is not asked to take it away: " + d.history()
		}
		return ""
	})
	if used := w.node().Status.VolumesInUse; len(used) != 1 {
		t.Errorf("the node says that it uses %v", used)
	}
	w.must(nil, busy.Close())
	eventually(t, func() string {
		if used := w.node().Status.VolumesInUse; len(used) > 0 {
			return fmt.Sprint("the node says that it uses ", used)
		}
		return ""
	})
	if left, err := mount.Below(w.dir); err != nil || len(left) > 0 {
		t.Errorf("still mounted: %v, %v", left, err)
	}
}

// TestJournalLostAndKilled: the journal is lost, and the agent that notices that is killed before it
// has rebuilt records. The next one still rebuilds those of a Pod without a condition.
func TestJournalLostAndKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, noAttach(driverName))
	d := w.mounting(tmpfs, tmpfs)
	w.mountVolume()
	w.stop()
	w.must(w.client.CoreV1().Pods("ns").Patch(t.Context(), "p", types.MergePatchType,
		[]byte(`{"status":{"conditions":null}}`), metav1.PatchOptions{}, "status"))
	w.must(nil, os.RemoveAll(filepath.Join(w.dir, "journal")))
	_, _, err := journal.Open(filepath.Join(w.dir, "journal"), "")
	w.must(nil, err)
	w.run()
	w.awaitCondition("p", corev1.ConditionTrue, "v-a=")
	w.endPods("p")
	if got := d.leftover(); got != "" {
		t.Errorf("left at the driver: %s", got)
	}
}
