package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/node/uses"
)

// newTwins returns a running world with the volumes z and twin, which are alike, and a, which differs. All have one
// handle. Their names are against the order in which they are mounted.
func newTwins(t *testing.T, noStage bool, differ func(*corev1.PersistentVolume)) (*world, *fakeDriver) {
	t.Helper()
	w := newWorld(t, noAttach(driverName))
	for _, name := range []string{"s", "other"} {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
		secret.Data = map[string][]byte{"key": []byte("the-key-of-" + name)}
		w.must(w.client.CoreV1().Secrets("ns").Create(t.Context(), secret, metav1.CreateOptions{}))
	}
	d := newFakeDriver(driverName, w.dir)
	d.noStage = noStage
	d.start(t)
	w.run()
	w.registered(driverName)
	for _, name := range []string{"z", "twin", "a"} {
		w.addVolume(driverName, name, func(pv *corev1.PersistentVolume) {
			twin(pv)
			if name == "a" {
				differ(pv)
			}
		})
	}
	return w, d
}

// twin gives a volume what is alike in all of them.
func twin(pv *corev1.PersistentVolume) {
	s := pv.Spec.CSI
	s.VolumeHandle, s.VolumeAttributes = "h", map[string]string{"dir": "one"}
	s.NodePublishSecretRef = &corev1.SecretReference{Namespace: "ns", Name: "s"}
}

// lastAsked is what the driver was last asked to publish of a volume, and how often it was asked.
func (d *fakeDriver) lastAsked(pv string) string {
	text, n := "", 0
	for _, r := range d.publishRequests() {
		if uses.VolumeAt(r.TargetPath) == pv {
			n++
			c := r.VolumeCapability
			text = fmt.Sprintf("%s %s %v ro=%v %s", r.VolumeContext["dir"], r.Secrets["key"], c.GetMount().GetMountFlags(),
				r.Readonly, c.AccessMode.Mode)
		}
	}
	return fmt.Sprintf("%d: %s", n, text)
}

// TestTwoVolumesOfOneHandle: each Pod gets the volume with the attributes, Secret, options and access of its own
// object. Where a driver stages it once for all, Pods that need that in another way wait.
func TestTwoVolumesOfOneHandle(t *testing.T) {
	t.Parallel()
	const first = "1: one the-key-of-s [] ro=false SINGLE_NODE_WRITER"
	other := &corev1.SecretReference{Namespace: "ns", Name: "other"}
	for name, c := range map[string]struct {
		change func(*corev1.PersistentVolume)
		staged bool
		want   string
	}{
		"attributes": {
			func(pv *corev1.PersistentVolume) { pv.Spec.CSI.VolumeAttributes["dir"] = "two" }, true,
			"1: two the-key-of-s [] ro=false SINGLE_NODE_WRITER",
		},
		"provisioner": {
			func(pv *corev1.PersistentVolume) {
				pv.Spec.CSI.VolumeAttributes["storage.kubernetes.io/csiProvisionerIdentity"] = "1"
			}, false, first,
		},
		"stage Secret": {func(pv *corev1.PersistentVolume) { pv.Spec.CSI.NodeStageSecretRef = other }, true, first},
		"Secret": {
			func(pv *corev1.PersistentVolume) { pv.Spec.CSI.NodePublishSecretRef = other }, false,
			"1: one the-key-of-other [] ro=false SINGLE_NODE_WRITER",
		},
		"options": {
			func(pv *corev1.PersistentVolume) { pv.Spec.MountOptions = []string{"noexec"} }, true,
			"1: one the-key-of-s [noexec] ro=false SINGLE_NODE_WRITER",
		},
		"read-only": {
			func(pv *corev1.PersistentVolume) { pv.Spec.CSI.ReadOnly = true }, false,
			"1: one the-key-of-s [] ro=true SINGLE_NODE_WRITER",
		},
		"access": {
			func(pv *corev1.PersistentVolume) {
				pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}
			},
			false, "1: one the-key-of-s [] ro=false MULTI_NODE_READER_ONLY",
		},
	} {
		for _, noStage := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, stages %v", name, !noStage), func(t *testing.T) {
				t.Parallel()
				w, d := newTwins(t, noStage, c.change)
				w.pod("first", "z")
				w.awaitCondition("first", corev1.ConditionTrue, "v-z=")
				w.pod("alike", "twin")
				w.awaitCondition("alike", corev1.ConditionTrue, "v-twin=")
				w.pod("other", "a")
				status, says := corev1.ConditionTrue, "v-a="
				if c.staged && !noStage {
					status, says = corev1.ConditionFalse, "volume pv-a has the handle of volume pv-z, which is mounted on node n1"
					w.heard("Pod", "other", "FailedMount", says, "user")
				}
				w.awaitCondition("other", status, says)
				w.stop()
				w.run()
				w.awaitCondition("other", status, says)
				w.end("first")
				w.end("alike")
				w.awaitCondition("other", corev1.ConditionTrue, "v-a=")
				for pv, want := range map[string]string{"pv-z": first, "pv-twin": first, "pv-a": c.want} {
					if got := d.lastAsked(pv); got != want {
						t.Errorf("%s was published with %s, wanted %s", pv, got, want)
					}
				}
				w.endPods("other")
			})
		}
	}
}

// TestTwinsFailApart: what fails for a Pod is said to that Pod and its claim only, and a driver's error discloses no
// Secret, whichever object it came with.
func TestTwinsFailApart(t *testing.T) {
	t.Parallel()
	w, d := newTwins(t, true, func(pv *corev1.PersistentVolume) {
		pv.Spec.CSI.NodePublishSecretRef = &corev1.SecretReference{Namespace: "ns", Name: "other"}
	})
	w.pod("first", "z")
	w.awaitCondition("first", corev1.ConditionTrue, "v-z=")
	fails := func(calls string) func(context.Context, string) error {
		return func(_ context.Context, call string) error {
			if !strings.HasPrefix(call, calls) {
				return nil
			}
			all := d.publishRequests()
			last := uses.VolumeAt(all[len(all)-1].TargetPath)
			return status.Error(codes.Internal, "no "+last+" by the-key-of-s, the-key-of-other")
		}
	}
	d.setHook(fails("publish:"))
	w.pod("second", "z")
	w.pod("other", "a")
	for range 2 {
		w.awaitCondition("second", corev1.ConditionFalse, "no pv-z by ***")
		w.awaitCondition("other", corev1.ConditionFalse, "no pv-a by ***")
		w.heard("Pod", "other", "FailedMount", "no pv-a by ***", "node n1")
		w.stop()
		w.run()
	}
	d.setHook(nil)
	w.awaitCondition("second", corev1.ConditionTrue, "v-z=")
	w.awaitCondition("other", corev1.ConditionTrue, "v-a=")
	d.setHook(fails("expand:"))
	w.grow("a")
	w.heard("PersistentVolumeClaim", "a", "FileSystemResizeFailed", "NodeExpandVolume", "node n1")
	w.stop()
	d.setHook(fails("unpublish:"))
	w.run()
	w.terminate("first")
	w.heard("Pod", "first", "FailedUnmount", "by ***, ***", "node n1")
	d.setHook(nil)
	w.endPods("first", "second", "other")
	w.stop()
	events, err := w.client.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
	w.must(nil, err)
	for i := range events.Items {
		e := &events.Items[i]
		of := e.InvolvedObject.Name
		if of != "other" && of != "a" && (strings.Contains(e.Message, "pv-a") || e.Reason == "FileSystemResizeFailed") ||
			strings.Contains(e.Message, "the-key-of") {
			t.Errorf("%s hears %s: %s", of, e.Reason, e.Message)
		}
	}
}

// grow does what a resizer does when the controller's part of an expansion is done.
func (w *world) grow(name string) {
	w.t.Helper()
	w.must(w.client.CoreV1().PersistentVolumes().Patch(w.t.Context(), "pv-"+name, types.MergePatchType,
		[]byte(`{"spec":{"capacity":{"storage":"2Gi"}}}`), metav1.PatchOptions{}))
	w.must(w.client.CoreV1().PersistentVolumeClaims("ns").Patch(w.t.Context(), name, types.MergePatchType, []byte(
		`{"status":{"allocatedResources":{"storage":"2Gi"},"allocatedResourceStatuses":{"storage":"NodeResizePending"}}}`,
	), metav1.PatchOptions{}, "status"))
}

// TestTwinsGrow: each claim has its own size, and the volume is grown where its own Pod has it.
func TestTwinsGrow(t *testing.T) {
	t.Parallel()
	w, d := newTwins(t, false, func(pv *corev1.PersistentVolume) {
		pv.Spec.CSI.NodeExpandSecretRef = &corev1.SecretReference{Namespace: "ns", Name: "other"}
	})
	for pod, claim := range map[string]string{"first": "z", "other": "a"} {
		w.pod(pod, claim)
		w.awaitCondition(pod, corev1.ConditionTrue, "v-"+claim+"=")
	}
	size := func(claim string) string {
		c, err := w.client.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), claim, metav1.GetOptions{})
		w.must(nil, err)
		return c.Status.Capacity.Storage().String()
	}
	for _, claim := range []string{"a", "z"} {
		w.grow(claim)
		w.heard("PersistentVolumeClaim", claim, "FileSystemResizeSuccessful", "volume pv-"+claim, "")
		if claim == "a" && size("z") != "1Gi" {
			t.Error("the other claim grew, too")
		}
	}
	var got []string
	d.set(func() {
		for _, r := range d.expanded {
			got = append(got, uses.VolumeAt(r.VolumePath)+" with "+r.Secrets["key"])
		}
	})
	if all := strings.Join(got, ", "); all != "pv-a with the-key-of-other, pv-z with " || size("a")+size("z") != "2Gi2Gi" {
		t.Errorf("grown: %s, to %s and %s", all, size("a"), size("z"))
	}
	w.endPods("first", "other")
}

// TestTwinDevices: a block device is in each Pod's directory under the name of the Pod's own volume.
func TestTwinDevices(t *testing.T) {
	t.Parallel()
	w, _ := newTwins(t, false, func(*corev1.PersistentVolume) {})
	for _, name := range []string{"y", "b"} {
		w.addVolume(driverName, name, func(pv *corev1.PersistentVolume) {
			twin(pv)
			pv.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
		})
	}
	w.pod("first", "y")
	w.awaitCondition("first", corev1.ConditionTrue, "v-y=")
	w.pod("other", "b")
	w.awaitCondition("other", corev1.ConditionTrue, "v-b=")
	for pod, pv := range map[string]string{"first": "pv-y", "other": "pv-b"} {
		link := uses.DeviceLink(w.dir, "uid-"+pod, pv)
		if at, err := os.Readlink(link); at != uses.TargetPath(w.dir, "uid-"+pod, pv, true) {
			t.Errorf("%s leads to %s, %v", link, at, err)
		}
	}
	w.pod("files", "twin")
	w.awaitCondition("files", corev1.ConditionFalse, "volume pv-twin has the handle of volume pv-y")
	w.endPods("files", "first", "other")
}

// TestTwinAlone: a volume for one Pod only is shared with no Pod of another object.
func TestTwinAlone(t *testing.T) {
	t.Parallel()
	w, _ := newTwins(t, true, func(pv *corev1.PersistentVolume) {
		pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	})
	w.pod("first", "z")
	w.awaitCondition("first", corev1.ConditionTrue, "v-z=")
	w.pod("other", "a")
	w.awaitCondition("other", corev1.ConditionFalse, "volume pv-a is for one Pod only and Pod ns/first has it")
	w.pod("alike", "twin")
	w.awaitCondition("alike", corev1.ConditionTrue, "v-twin=")
	w.terminate("first")
	w.terminate("alike")
	w.awaitCondition("other", corev1.ConditionTrue, "v-a=")
	w.pod("late", "z")
	w.awaitCondition("late", corev1.ConditionFalse, "volume pv-a is for one Pod only and Pod ns/other has it")
	w.endPods("late", "other")
}

// TestTwinsOfALostRecord: a running Pod keeps its volume, and what was staged by an object that nothing names any more
// is unstaged before a Pod gets the volume.
func TestTwinsOfALostRecord(t *testing.T) {
	t.Parallel()
	for _, first := range []string{"z", "a"} {
		for _, runs := range []bool{true, false} {
			t.Run(fmt.Sprintf("of %s, which a Pod has: %v", first, runs), func(t *testing.T) {
				t.Parallel()
				w, d := newTwins(t, false, func(pv *corev1.PersistentVolume) { pv.Spec.CSI.VolumeAttributes["dir"] = "two" })
				other := map[string]string{"z": "a", "a": "z"}[first]
				waits := "volume pv-" + other + " has the handle of volume pv-" + first
				w.pod("first", first)
				w.awaitCondition("first", corev1.ConditionTrue, "v-"+first)
				w.pod("other", other)
				w.awaitCondition("other", corev1.ConditionFalse, waits)
				w.stop()
				records, err := filepath.Glob(filepath.Join(w.dir, "journal/*.json"))
				w.must(nil, err)
				for _, r := range records {
					w.must(nil, os.WriteFile(r, []byte("{"), 0o600))
				}
				calls := "stage publish stage publish"
				if !runs {
					calls = "stage publish unstage stage publish"
					w.must(nil, w.client.CoreV1().Pods("ns").Delete(t.Context(), "first", metav1.DeleteOptions{}))
					w.must(nil, os.RemoveAll(filepath.Join(w.dir, "pods")))
					d.set(func() { clear(d.published) })
				}
				w.run()
				eventually(t, func() string {
					if got := d.callsFor("h"); got != calls {
						return "calls: " + got
					}
					return ""
				})
				if runs {
					w.awaitCondition("other", corev1.ConditionFalse, waits)
					w.endPods("other", "first")
					return
				}
				w.awaitCondition("other", corev1.ConditionTrue, "v-"+other)
				w.endPods("other")
			})
		}
	}
}
