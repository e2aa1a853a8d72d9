package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/decide/attach"
)

// TestJournalComesFirst: before each call of the driver, the journal has the phase of the call.
func TestJournalComesFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t, noAttach(driverName))
	d := newFakeDriver(driverName, w.dir)
	phases := map[string]string{
		"stage": `"stage":"staging"`, "publish": `"phase":"publishing"`, "unpublish": `"phase":"unpublishing"`,
		"unstage": `"stage":"unstaging"`,
	}
	var mu sync.Mutex
	found := map[string]string{}
	d.setHook(func(_ context.Context, what string) error {
		call, _, _ := strings.Cut(what, ":")
		text := ""
		files, _ := filepath.Glob(filepath.Join(w.dir, "journal", "*.json"))
		for _, f := range files {
			data, _ := os.ReadFile(f)
			text += string(data)
		}
		mu.Lock()
		defer mu.Unlock()
		found[call] = text
		return nil
	})
	d.start(t)
	w.run()
	w.mountVolume()
	w.endPods("p")
	mu.Lock()
	defer mu.Unlock()
	for call, phase := range phases {
		if !strings.Contains(found[call], phase) {
			t.Errorf("before %s the journal said %q", call, found[call])
		}
	}
}

// TestWritesNameThePod: each write has the Pod's UID, so that it cannot change another Pod of the same
// name.
func TestWritesNameThePod(t *testing.T) {
	t.Parallel()
	w := newWorld(t, noAttach(driverName))
	var mu sync.Mutex
	seen := map[string]bool{}
	w.client.PrependReactor("*", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		switch a := a.(type) {
		case clienttesting.DeleteActionImpl:
			p := a.DeleteOptions.Preconditions
			seen["delete"] = p != nil && p.UID != nil && *p.UID == "uid-p"
		case clienttesting.PatchActionImpl:
			seen["patch"] = strings.Contains(string(a.Patch), `"uid":"uid-p"`)
		}
		return false, nil, nil
	})
	w.runWithDriver()
	w.mountVolume()
	w.end("p")
	mu.Lock()
	defer mu.Unlock()
	if !seen["delete"] || !seen["patch"] {
		t.Errorf("with the UID: %v", seen)
	}
}

// TestFinalNoAfterDoubt: the outcome of one call is unknown, and the next one is refused with a final
// code. The effect of the first one is undone nevertheless.
func TestFinalNoAfterDoubt(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"stage:", "publish:"} {
		t.Run(call, func(t *testing.T) {
			w := newWorld(t, noAttach(driverName))
			d := newFakeDriver(driverName, w.dir)
			var times atomic.Int32
			d.setHook(func(_ context.Context, what string) error {
				switch {
				case !strings.HasPrefix(what, call):
					return nil
				case times.Add(1) == 1:
					return afterwards{status.Error(codes.DeadlineExceeded, "it takes long")}
				default:
					return status.Error(codes.InvalidArgument, "never")
				}
			})
			d.start(t)
			w.run()
			w.addVolume(driverName, "a")
			w.pod("p", "a")
			w.awaitCondition("p", corev1.ConditionFalse, "never")
			w.endPods("p")
			if left := d.leftover(); left != "" {
				t.Errorf("left at the driver: %s", left)
			}
		})
	}
}

// TestAttachmentIsLookedAt: volumesAttached may still list a volume that is being detached, so the
// attachment itself is read.
func TestAttachmentIsLookedAt(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*storagev1.VolumeAttachment){
		"it goes":            func(va *storagev1.VolumeAttachment) { va.DeletionTimestamp = ptr.To(metav1.Now()) },
		"it is not attached": func(va *storagev1.VolumeAttachment) { va.Status.Attached = false },
		"of another node":    func(va *storagev1.VolumeAttachment) { va.Spec.NodeName = "n2" },
		"of another driver":  func(va *storagev1.VolumeAttachment) { va.Spec.Attacher = "e.example" },
	} {
		t.Run(name, func(t *testing.T) {
			w, d := newRunningWorld(t)
			w.addVolume(driverName, "a")
			w.attach(driverName, "a")
			all := w.client.StorageV1().VolumeAttachments()
			good, err := all.Get(t.Context(), attach.NameOf(driverName, "h-a", "n1"), metav1.GetOptions{})
			w.must(nil, err)
			bad := good.DeepCopy()
			change(bad)
			w.must(all.Update(t.Context(), bad, metav1.UpdateOptions{}))
			var looks atomic.Int32
			w.client.PrependReactor("get", "volumeattachments", func(clienttesting.Action) (bool, runtime.Object, error) {
				looks.Add(1)
				return false, nil, nil
			})
			w.pod("p", "a")
			eventually(t, func() string {
				if n := looks.Load(); n < 3 {
					return fmt.Sprint("looked at ", n, " times")
				}
				return ""
			})
			if got := d.history(); got != "info" {
				t.Errorf("calls: %s", got)
			}
			w.must(all.Update(t.Context(), good, metav1.UpdateOptions{}))
			w.awaitCondition("p", corev1.ConditionTrue, "v-a=")
		})
	}
}

// TestReadOnlyVolume: a read-only volume is mounted read-only for Pods that do not ask for that.
func TestReadOnlyVolume(t *testing.T) {
	t.Parallel()
	w, d := newRunningWorld(t, noAttach(driverName))
	w.addVolume(driverName, "a", func(pv *corev1.PersistentVolume) { pv.Spec.CSI.ReadOnly = true })
	w.addVolume(driverName, "b")
	w.pod("p", "a")
	w.awaitCondition("p", corev1.ConditionTrue, "v-a=")
	w.pod("q", "b")
	w.awaitCondition("q", corev1.ConditionTrue, "v-b=")
	for i, want := range []bool{true, false} {
		if got := d.publishRequests()[i]; got.Readonly != want {
			t.Errorf("%s was published with readonly %v", got.VolumeId, got.Readonly)
		}
	}
}

// TestNoLimit: a driver that reports no limit has none.
func TestNoLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := newFakeDriver(driverName, w.dir)
	d.maxVolumes = 0
	d.start(t)
	w.run()
	w.registered(driverName)
	c, err := w.client.StorageV1().CSINodes().Get(t.Context(), "n1", metav1.GetOptions{})
	w.must(nil, err)
	if got := c.Spec.Drivers[0].Allocatable; got != nil {
		t.Errorf("the node takes %d", *got.Count)
	}
}
