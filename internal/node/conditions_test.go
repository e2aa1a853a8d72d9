package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"
)

const degraded = csipb.VolumeHealthErrorType_DEGRADED

// entries returns what a driver tells of a volume, one entry for each pair of a reason and a message.
func entries(words ...string) []*csipb.VolumeHealth_VolumeHealthEntry {
	var out []*csipb.VolumeHealth_VolumeHealthEntry
	for pair := range slices.Chunk(words, 2) {
		out = append(out, &csipb.VolumeHealth_VolumeHealthEntry{Status: degraded, Reason: pair[0], Message: pair[1]})
	}
	return out
}

// newSickWorld returns a world in which a driver is asked all the time how it is.
func newSickWorld(t *testing.T, objects ...runtime.Object) (*world, *fakeDriver) {
	t.Helper()
	w := newWorld(t, append(objects, noAttach(driverName))...)
	w.tune = func(o *Options) { o.StatsEvery = 10 * time.Millisecond }
	d := newFakeDriver(driverName, w.dir)
	d.hasHealth = true
	d.start(t)
	return w, d
}

// says waits until the Pod's volumeHealth is as wanted.
func (w *world) says(pod, want string) {
	w.t.Helper()
	eventually(w.t, func() string {
		p, err := w.client.CoreV1().Pods("ns").Get(w.t.Context(), pod, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		var all []string
		for _, h := range p.Status.VolumeHealth {
			if h.LastTransitionTime.IsZero() {
				return "it does not say since when"
			}
			all = append(all, h.Name+":")
			for _, c := range h.HealthConditions {
				all = append(all, fmt.Sprintf("%s %s %q", c.Status, c.Reason, c.Message))
			}
		}
		if got := strings.Join(all, " "); got != want {
			return fmt.Sprintf("the Pod says %s, wanted %s", got, want)
		}
		return ""
	})
}

// TestVolumeHealth: what a driver tells of a volume comes into the status of its Pod, is kept while the driver answers
// with errors, also over a restart of the agent, and ends when the driver says so.
func TestVolumeHealth(t *testing.T) {
	t.Parallel()
	w, d := newSickWorld(t)
	w.run()
	w.mountVolume()
	d.set(func() { d.problems = entries("OnePath", "one path is\nleft", "no quorum", "") })
	const ill = `v-a: Degraded OnePath "one path is left" Degraded Unspecified "no quorum"`
	w.says("p", ill)
	w.isIll("p", corev1.ConditionFalse)
	w.stop()
	d.set(func() { d.noHealth, d.problems = status.Error(codes.Internal, "no"), nil })
	asked := strings.Count(d.history(), "health:")
	w.run()
	w.askedAgain(d, "health:", asked)
	w.says("p", ill)
	d.set(func() { d.noHealth = nil })
	w.says("p", "v-a:")
	w.endPods("p")
}

// askedAgain waits until a driver was asked a question five times more.
func (w *world) askedAgain(d *fakeDriver, question string, before int) {
	w.t.Helper()
	eventually(w.t, func() string {
		if n := strings.Count(d.history(), question); n < before+5 {
			return fmt.Sprintf("%s was asked %d times", question, n)
		}
		return ""
	})
}

// TestHealthWithoutStatistics: a driver that cannot measure a volume is asked how it is nevertheless.
func TestHealthWithoutStatistics(t *testing.T) {
	t.Parallel()
	w, d := newSickWorld(t)
	d.setHook(func(_ context.Context, call string) error {
		if strings.HasPrefix(call, "stats:") {
			return status.Error(codes.Internal, "it does not answer")
		}
		return nil
	})
	d.problems = entries("OnePath", "")
	w.run()
	w.mountVolume()
	w.says("p", `v-a: Degraded OnePath ""`)
	w.endPods("p")
}

// TestConditionsOfOlderDrivers: the condition that a driver of CSI 1.12 reports beside the usage of a volume is passed
// on like the health of later drivers; an answer without it changes nothing.
func TestConditionsOfOlderDrivers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, noAttach(driverName))
	w.tune = func(o *Options) { o.StatsEvery = 10 * time.Millisecond }
	d := newFakeDriver(driverName, w.dir)
	d.older = `{"volume_condition":{"abnormal":true,"message":"one path is left"}}`
	d.start(t)
	w.run()
	w.mountVolume()
	const ill = `v-a: Degraded VolumeConditionAbnormal "one path is left"`
	w.says("p", ill)
	w.isIll("p", corev1.ConditionFalse)
	w.heard("Pod", "p", "VolumeConditionAbnormal", "one path is left", driverName)
	d.set(func() { d.older = `{"usage":[{"unit":"BYTES","total":"9","used":"4","available":"5"}]}` })
	eventually(t, func() string {
		if s, _ := w.agent.health.Of("d.example^h-a"); s.Usage.Total != 9 {
			return "the usage is not known"
		}
		return ""
	})
	w.says("p", ill)
	d.set(func() { d.older = `{"volume_condition":{"message":"fine"}}` })
	w.says("p", "v-a:")
	w.endPods("p")
}

// TestHealthOfAttempts: a driver that cannot mount a volume is asked why, with the path at which it was to be; before
// somebody wants the volume, it is asked nothing about it.
func TestHealthOfAttempts(t *testing.T) {
	t.Parallel()
	for step, asked := range map[string]string{"stage:": "health:h-a: ", "publish:": "health:h-a:/"} {
		for _, code := range []codes.Code{codes.Internal, codes.FailedPrecondition} {
			t.Run(step+code.String(), func(t *testing.T) {
				w, d := newSickWorld(t)
				d.problems = entries("NoPath", "")
				d.setHook(func(_ context.Context, call string) error {
					if strings.HasPrefix(call, step) {
						return status.Error(code, "it cannot be reached")
					}
					return nil
				})
				w.run()
				w.registered(driverName)
				w.addVolume(driverName, "a")
				w.askedAgain(d, "storage", strings.Count(d.history(), "storage"))
				if history := d.history(); strings.Contains(history, "health:") {
					t.Errorf("asked before anybody wanted the volume: %s", history)
				}
				w.pod("p", "a")
				w.says("p", `v-a: Degraded NoPath ""`)
				w.heard("Pod", "p", "VolumeConditionAbnormal", "NoPath", driverName)
				eventually(t, func() string {
					if code == codes.Internal && !strings.Contains(d.history()+" ", asked) {
						return "not asked as wanted"
					}
					return ""
				})
			})
		}
	}
}

// TestHealthIsDropped: an API server that does not serve the field is not written to again and again.
func TestHealthIsDropped(t *testing.T) {
	t.Parallel()
	w, d := newSickWorld(t)
	w.client.PrependReactor("patch", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		patch, ok := a.(clienttesting.PatchActionImpl)
		if !ok || !strings.Contains(string(patch.Patch), `"volumeHealth"`) {
			return false, nil, nil
		}
		patch.Patch = []byte(strings.Replace(string(patch.Patch), `"volumeHealth"`, `"unknown"`, 1))
		_, o, err := clienttesting.ObjectReaction(w.tracker)(patch)
		return true, o, err
	})
	d.problems = entries("OnePath", "")
	w.run()
	w.mountVolume()
	w.isIll("p", corev1.ConditionFalse)
	writes := func() (n int) {
		for _, a := range w.client.Actions() {
			if a.Matches("patch", "pods") {
				n++
			}
		}
		return n
	}
	w.agent.pods.Add("ns/p")
	w.askedAgain(d, "health:", strings.Count(d.history(), "health:"))
	before := writes()
	for range 5 {
		w.agent.pods.Add("ns/p")
		w.askedAgain(d, "health:", strings.Count(d.history(), "health:"))
	}
	if n := writes(); n > before+1 {
		t.Errorf("it was written %d times more", n-before)
	}
}

// storage waits until the CSINode tells of the storage of drivers as wanted.
func (w *world) storage(want string) {
	w.t.Helper()
	eventually(w.t, func() string {
		c, err := w.client.StorageV1().CSINodes().Get(w.t.Context(), "n1", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		var all []string
		for _, h := range c.Status.StorageHealth {
			for _, s := range h.HealthConditions {
				all = append(all, fmt.Sprintf("%s: %s %s %q", h.Name, s.Status, s.Reason, s.Message))
				if s.VolumeMode != nil {
					all = append(all, string(*s.VolumeMode)+" "+string(*s.AccessMode))
				}
			}
		}
		if got := strings.Join(all, " "); got != want {
			return fmt.Sprintf("storage is %s, wanted %s", got, want)
		}
		return ""
	})
}

// backend is what a driver tells of its storage.
func backend(reason, message string) []*csipb.NodeGetStorageHealthResponse_StorageBackendHealth {
	return []*csipb.NodeGetStorageHealthResponse_StorageBackendHealth{{
		Status: csipb.StorageHealthErrorType_STORAGE_DEGRADED, Reason: reason, Message: message,
		VolumeCapability: &csipb.VolumeCapability{
			AccessType: &csipb.VolumeCapability_Block{Block: &csipb.VolumeCapability_BlockVolume{}},
			AccessMode: &csipb.VolumeCapability_AccessMode{Mode: csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER},
		},
	}}
}

// TestStorageHealth: what a driver tells of its storage comes into the CSINode, and goes with the problem, and with the
// driver, whether it goes while an agent runs or not.
func TestStorageHealth(t *testing.T) {
	t.Parallel()
	w, d := newSickWorld(t)
	tune := w.tune
	w.tune = func(o *Options) { tune(o); o.RegistrationGrace = 50 * time.Millisecond }
	w.run()
	w.registered(driverName)
	w.storage("")
	const ill = `d.example: StorageDegraded Slow "" Block ReadWriteMany`
	for _, end := range []func(){
		func() { d.set(func() { d.storage = nil }) },
		func() { d.stop(); w.registered(); w.storage(""); d.start(t) },
		func() { w.stop(); d.stop(); w.run(); w.registered() },
	} {
		d.set(func() { d.storage = backend("Slow", "") })
		w.storage(ill)
		end()
		d.set(func() { d.storage = nil })
		w.storage("")
	}
}

// TestStorageHealthIsRefused: an API server that does not serve it is no failure, also when the driver goes.
func TestStorageHealthIsRefused(t *testing.T) {
	t.Parallel()
	w, d := newSickWorld(t)
	refused := make(chan struct{}, 100)
	w.client.PrependReactor("update", "csinodes", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() != "status" {
			return false, nil, nil
		}
		select {
		case refused <- struct{}{}:
		default:
		}
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "csinodes"}, "n1", errors.New("off"))
	})
	d.storage = backend("Slow", "")
	w.run()
	w.registered(driverName)
	<-refused
	<-refused
	d.stop()
	w.registered()
}

// TestSecretsInHealth: a driver tells a secret of an earlier call where it tells how its volumes and its storage are,
// also to an agent that did not give it the secret.
func TestSecretsInHealth(t *testing.T) {
	t.Parallel()
	const secret = "correct-horse-battery"
	w, d := newSickWorld(t, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}, Data: map[string][]byte{"key": []byte(secret)},
	})
	w.run()
	w.registered(driverName)
	w.addVolume(driverName, "a", func(pv *corev1.PersistentVolume) {
		pv.Spec.CSI.NodeStageSecretRef = &corev1.SecretReference{Namespace: "ns", Name: "s"}
	})
	w.pod("p", "a")
	w.awaitCondition("p", corev1.ConditionTrue, "v-a=")
	w.stop()
	d.set(func() {
		d.problems, d.storage = entries("Key", "key="+secret, secret, ""), backend("Key", "key="+secret)
	})
	w.run()
	w.says("p", `v-a: Degraded Key "key=***" Degraded Unspecified "***"`)
	w.storage(`d.example: StorageDegraded Key "key=***" Block ReadWriteMany`)
}
