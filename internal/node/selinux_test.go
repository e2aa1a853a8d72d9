package node

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/volume"
)

// labelPrefix is the part of all labels that does not differ.
const labelPrefix = "system_u:object_r:container_file_t:"

// onSELinux is the label of files on a host with SELinux.
func onSELinux(o *corev1.SELinuxOptions) (string, error) {
	if o.Level == "s0:c666" {
		return "", errors.New("no such level")
	}
	return labelPrefix + o.Level, nil
}

// newLabellingWorld returns a world on a host with SELinux, and its driver, which has seLinuxMount and is not started.
func newLabellingWorld(t *testing.T) (*world, *fakeDriver) {
	t.Helper()
	object := noAttach(driverName)
	object.Spec.SELinuxMount = ptr.To(true)
	w := newWorld(t, object)
	w.tune = func(o *Options) { o.FileLabel = onSELinux }
	w.addVolume(driverName, "a")
	return w, newFakeDriver(driverName, w.dir)
}

// labelled creates a Pod that uses volume a with a level of SELinux.
func (w *world) labelled(name, level string) {
	w.t.Helper()
	w.podWith(name, func(p *corev1.Pod) {
		p.Spec.SecurityContext = &corev1.PodSecurityContext{SELinuxOptions: &corev1.SELinuxOptions{Level: level}}
	}, "a")
}

// flagsOf returns the mount flags that volume a is staged with, and fails for calls with others.
func (d *fakeDriver) flagsOf(t *testing.T) string {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.mixed) > 0 {
		t.Errorf("mounted with %s and with %q at the same time", d.flags["h-a"], d.mixed)
	}
	return d.flags["h-a"]
}

func wantFlags(t *testing.T, d *fakeDriver, want string) {
	t.Helper()
	if got := d.flagsOf(t); got != want {
		t.Errorf("mount flags %s, wanted %s", got, want)
	}
}

// TestLabels: a volume is staged and published with the label of its Pod. A Pod with another label, or with none, waits
// for it and is told so, also after a restart of the agent, and has the volume with its own label in the end.
func TestLabels(t *testing.T) {
	t.Parallel()
	w, d := newLabellingWorld(t)
	d.start(t)
	w.run()
	w.labelled("p", "s0:c1,c2")
	w.awaitCondition("p", corev1.ConditionTrue, "v-a=")
	wantFlags(t, d, `context="`+labelPrefix+`s0:c1,c2"`)
	w.labelled("also", "s0:c1,c2")
	w.awaitCondition("also", corev1.ConditionTrue, "v-a=")

	w.pod("none", "a")
	waits := "SELinuxLabelConflict: volume pv-a is on node n1 with the SELinux label " + labelPrefix +
		"s0:c1,c2 for Pod ns/also"
	w.awaitCondition("none", corev1.ConditionFalse, waits)
	w.heard("Pod", "none", "SELinuxLabelConflict", "volume pv-a is on node n1 with", "pod ns/also")
	before := d.history()
	w.stop()
	w.run()
	w.registered(driverName)
	w.labelled("other", "s0:c3")
	w.awaitCondition("other", corev1.ConditionFalse, waits)
	if after := strings.ReplaceAll(strings.TrimPrefix(d.history(), before), " info", ""); after != "" {
		t.Errorf("calls for Pods that wait: %s", after)
	}

	w.end("none")
	w.terminate("also")
	w.terminate("p")
	w.awaitCondition("other", corev1.ConditionTrue, "v-a=")
	wantFlags(t, d, `context="`+labelPrefix+`s0:c3"`)
	w.endPods("other")
}

// TestLabelRefused: Pods with labels that cannot be do not get the volume, are told why, and keep no other Pod from it.
func TestLabelRefused(t *testing.T) {
	t.Parallel()
	w, d := newLabellingWorld(t)
	d.start(t)
	w.run()
	w.labelled("bad", "s0:c666")
	w.awaitCondition("bad", corev1.ConditionFalse, "FailedMount: volume pv-a: no such level")
	w.labelled("more", "s0,suid")
	w.end("bad")
	w.awaitCondition("more", corev1.ConditionFalse, `"`+labelPrefix+`s0,suid" is not an SELinux label`)
	w.labelled("plain", "s0")
	w.awaitCondition("plain", corev1.ConditionTrue, "v-a=")
	wantFlags(t, d, `context="`+labelPrefix+`s0"`)
	w.endPods("more", "plain")
}

// TestLabelsOfOldRecords: what was mounted before the driver had seLinuxMount stays as it is, and a new Pod that asks
// for a label waits for it.
func TestLabelsOfOldRecords(t *testing.T) {
	t.Parallel()
	w, d := newLabellingWorld(t)
	w.tune = nil
	d.start(t)
	w.run()
	w.pod("old", "a")
	w.awaitCondition("old", corev1.ConditionTrue, "v-a=")
	w.stop()
	w.tune = func(o *Options) { o.FileLabel = onSELinux }
	w.run()
	w.registered(driverName)
	w.labelled("new", "s0:c1")
	w.awaitCondition("new", corev1.ConditionFalse, "volume pv-a is on node n1 without an SELinux label for Pod ns/old")
	wantFlags(t, d, "")
	w.terminate("old")
	w.awaitCondition("new", corev1.ConditionTrue, "v-a=")
	wantFlags(t, d, `context="`+labelPrefix+`s0:c1"`)
	w.endPods("new")
}

// TestNoLabels: on a host without SELinux, a driver with seLinuxMount receives only the mount options of the volume for
// a Pod with an SELinux label.
func TestNoLabels(t *testing.T) {
	t.Parallel()
	object := noAttach(driverName)
	object.Spec.SELinuxMount = ptr.To(true)
	w := newWorld(t, object)
	w.tune = func(o *Options) {
		o.FileLabel = func(*corev1.SELinuxOptions) (string, error) { return "", nil }
	}
	d := w.runWithDriver()
	w.addVolume(driverName, "a", func(pv *corev1.PersistentVolume) {
		pv.Spec.AccessModes, pv.Spec.MountOptions = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod},
			[]string{"noatime"}
	})
	w.podWith("p", func(p *corev1.Pod) {
		p.Spec.SecurityContext = &corev1.PodSecurityContext{SELinuxOptions: &corev1.SELinuxOptions{Level: "s0:c1,c2"}}
	}, "a")
	w.awaitCondition("p", corev1.ConditionTrue, "v-a=")
	if got := d.publishRequests()[0].VolumeCapability.GetMount().GetMountFlags(); len(got) != 1 || got[0] != "noatime" {
		t.Errorf("mount flags: %q", got)
	}
}

// TestLabelsSurviveDeath: the agent crashes before or after each of its effects while a volume goes from a Pod to
// another one with another label: it is never mounted with both, and the second Pod gets it with its own.
func TestLabelsSurviveDeath(t *testing.T) {
	t.Parallel()
	effects := relabelWithCrash(t, 0, false)
	if len(effects) < 10 {
		t.Fatalf("effects: %v", effects)
	}
	for at := 1; at <= len(effects); at++ {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d %s, after it: %v", at, effects[at-1], after), func(t *testing.T) {
				relabelWithCrash(t, at, after)
			})
		}
	}
}

// relabelWithCrash has two Pods with different labels use a volume, one after the other, with one crash in between.
func relabelWithCrash(t *testing.T, at int, after bool) []string {
	t.Helper()
	w, d := newLabellingWorld(t)
	x := &crasher{dir: w.dir, at: at, after: after, died: make(chan struct{})}
	for _, verb := range []string{"patch", "delete"} {
		w.client.PrependReactor(verb, "*", x.write)
	}
	d.setHook(x.call)
	d.start(t)
	w.labelled("p", "s0:c1")
	w.run()
	reach := func(reached func() string) {
		t.Helper()
		died := x.died
		eventually(t, func() string {
			select {
			case <-died:
				died = nil
				w.stop()
				x.restore(t)
				w.run()
			default:
			}
			return reached()
		})
	}
	has := func(name string) func() string {
		return func() string {
			p, err := w.client.CoreV1().Pods("ns").Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			if c := cluster.PodCondition(p, volume.ConditionVolumesMounted); !cluster.IsTrue(c) {
				return fmt.Sprintf("pod %s says %+v", name, c)
			}
			return ""
		}
	}
	reach(has("p"))
	wantFlags(t, d, `context="`+labelPrefix+`s0:c1"`)
	w.labelled("q", "s0:c2")
	w.markDeleted("p")
	reach(has("q"))
	wantFlags(t, d, `context="`+labelPrefix+`s0:c2"`)
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.effects
}
