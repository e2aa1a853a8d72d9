package node

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// doesInline is a driver's object that allows Pods to name volumes.
func doesInline(modes ...storagev1.VolumeLifecycleMode) *storagev1.CSIDriver {
	d := noAttach(driverName)
	d.Spec.AttachRequired, d.Spec.PodInfoOnMount = ptr.To(true), ptr.To(true)
	d.Spec.VolumeLifecycleModes = modes
	return d
}

func inline(pod *corev1.Pod) {
	pod.Spec.Volumes = append(pod.Spec.Volumes,
		corev1.Volume{Name: "own", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{
			Driver: driverName, ReadOnly: ptr.To(true), FSType: ptr.To("xfs"), VolumeAttributes: map[string]string{"size": "1"},
			NodePublishSecretRef: &corev1.LocalObjectReference{Name: "s"},
		}}})
}

// TestInlineVolume: a volume that a Pod names itself is published, and nothing
// else is done or said about it, through a restart of the agent to its end.
func TestInlineVolume(t *testing.T) {
	t.Parallel()
	w, d := newRunningWorld(t, doesInline("Ephemeral"), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}, Data: map[string][]byte{"key": []byte("hidden")},
	})
	w.podWith("p", inline)
	at := filepath.Join(w.dir, "pods/uid-p/volumes/kubernetes.io~csi/own/mount")
	w.awaitCondition("p", corev1.ConditionTrue, "own="+at)
	handle := fmt.Sprintf("csi-%x", sha256.Sum256([]byte("uid-pown")))
	r := d.publishRequests()[0]
	for what, pair := range map[string][2]string{
		"handle":      {r.VolumeId, handle},
		"path":        {r.TargetPath, at},
		"staging":     {r.StagingTargetPath, ""},
		"read-only":   {fmt.Sprint(r.Readonly), "true"},
		"file system": {r.VolumeCapability.GetMount().GetFsType(), "xfs"},
		"mode":        {r.VolumeCapability.GetAccessMode().GetMode().String(), "SINGLE_NODE_WRITER"},
		"secret":      {r.Secrets["key"], "hidden"},
		"attribute":   {r.VolumeContext["size"], "1"},
		"ephemeral":   {r.VolumeContext["csi.storage.k8s.io/ephemeral"], "true"},
		"pod":         {r.VolumeContext["csi.storage.k8s.io/pod.uid"], "uid-p"},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s is %q, wanted %q", what, pair[0], pair[1])
		}
	}
	w.stop()
	w.run()
	if names := w.agent.volumes.Recorded(); len(names) > 0 {
		t.Errorf("the node is to say that it uses %v", names)
	}
	w.endPods("p")
	if got := d.history(); got != "info publish:"+handle+" info unpublish:"+handle {
		t.Errorf("calls: %s", got)
	}
	if used := w.node().Status.VolumesInUse; len(used) > 0 {
		t.Errorf("volumes in use: %v", used)
	}
}

// TestInlineVolumeIsRefused until the driver's object says that it does such
// volumes.
func TestInlineVolumeIsRefused(t *testing.T) {
	t.Parallel()
	w, _ := newRunningWorld(t, doesInline("Persistent"))
	w.podWith("p", func(p *corev1.Pod) {
		inline(p)
		p.Spec.Volumes[0].CSI.NodePublishSecretRef = nil
	})
	const refused = "driver d.example does not support volumes of mode Ephemeral: its CSIDriver object lists [Persistent]"
	w.awaitCondition("p", corev1.ConditionFalse, refused)
	w.eventSaid("FailedMount", refused)
	w.must(w.client.StorageV1().CSIDrivers().Update(t.Context(), doesInline("Persistent", "Ephemeral"),
		metav1.UpdateOptions{}))
	w.awaitCondition("p", corev1.ConditionTrue, "own=")
}

// TestRefusalIsOver when the driver is asked after all: while it does not answer, the
// Pod hears of the call, and no more of what kept it from being made.
func TestRefusalIsOver(t *testing.T) {
	t.Parallel()
	w, d := newRunningWorld(t, doesInline("Persistent"))
	answer := make(chan struct{})
	d.setHook(func(_ context.Context, call string) error {
		if strings.HasPrefix(call, "publish") {
			<-answer
		}
		return nil
	})
	w.podWith("p", func(p *corev1.Pod) {
		inline(p)
		p.Spec.Volumes[0].CSI.NodePublishSecretRef = nil
	})
	w.awaitCondition("p", corev1.ConditionFalse, "does not support volumes of mode Ephemeral")
	w.must(w.client.StorageV1().CSIDrivers().Update(t.Context(), doesInline("Persistent", "Ephemeral"),
		metav1.UpdateOptions{}))
	w.awaitCondition("p", corev1.ConditionFalse, "driver d.example was called to publish volume own")
	close(answer)
	w.awaitCondition("p", corev1.ConditionTrue, "own=")
}

// TestPersistentVolumeIsRefused by a driver that does inline volumes only.
func TestPersistentVolumeIsRefused(t *testing.T) {
	t.Parallel()
	d := noAttach(driverName)
	d.Spec.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{"Ephemeral"}
	w := newWorld(t, d)
	w.runWithDriver()
	w.addVolume(driverName, "a")
	w.pod("p", "a")
	w.awaitCondition("p", corev1.ConditionFalse, "does not support volumes of mode Persistent")
}

// TestInlineSurvivesALostJournal: the volume of a living Pod is taken over, and
// not taken for a stranger's mount.
func TestInlineSurvivesALostJournal(t *testing.T) {
	t.Parallel()
	w, d := newRunningWorld(t, doesInline("Ephemeral"))
	w.podWith("p", func(p *corev1.Pod) {
		inline(p)
		p.Spec.Volumes[0].CSI.NodePublishSecretRef = nil
	})
	w.awaitCondition("p", corev1.ConditionTrue, "own=")
	w.stop()
	w.must(nil, os.RemoveAll(filepath.Join(w.dir, "journal")))
	w.run()
	eventually(t, func() string {
		if n := strings.Count(d.history(), "publish:"); n != 2 {
			return fmt.Sprint(n, " calls to publish")
		}
		return ""
	})
	w.endPods("p")
}
