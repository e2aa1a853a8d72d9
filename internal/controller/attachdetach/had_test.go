package attachdetach

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/volume"
)

// TestUsedElsewhere: what a living node has mounted is not attached to another
// one, whatever has become of the attachment; but two nodes that wait for the
// same volume do not wait for each other, and a node that never had the volume
// is not believed.
func TestUsedElsewhere(t *testing.T) {
	mounted := corev1.PodCondition{Type: volume.ConditionVolumesMounted, Status: corev1.ConditionTrue}
	for name, c := range map[string]struct {
		ready  corev1.ConditionStatus
		taints []corev1.Taint
		// there are the Pods of the node that says that it uses the volume.
		there []corev1.Pod
		// had says that it has been attached there.
		had  bool
		want int
	}{
		"it unmounts":                  {corev1.ConditionTrue, nil, nil, true, 0},
		"it never had it":              {corev1.ConditionTrue, nil, nil, false, 1},
		"its Pod has it":               {corev1.ConditionTrue, nil, []corev1.Pod{{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{mounted}}}}, false, 0},
		"its Pod waits":                {corev1.ConditionTrue, nil, []corev1.Pod{{}}, false, 1},
		"its Pod waits for it again":   {corev1.ConditionTrue, nil, []corev1.Pod{{}}, true, 1},
		"a Pod waits and is not":       {corev1.ConditionTrue, nil, []corev1.Pod{{}, {Status: corev1.PodStatus{Conditions: []corev1.PodCondition{mounted}}}}, false, 0},
		"its Pod has ended":            {corev1.ConditionTrue, nil, []corev1.Pod{{Status: corev1.PodStatus{Phase: corev1.PodSucceeded}}}, false, 0},
		"its Pod has ended, one waits": {corev1.ConditionTrue, nil, []corev1.Pod{{Status: corev1.PodStatus{Phase: corev1.PodSucceeded}}, {}}, false, 1},
		"it is dead":                   {corev1.ConditionUnknown, nil, nil, true, 1},
		"it is out of service":         {corev1.ConditionTrue, []corev1.Taint{{Key: corev1.TaintNodeOutOfService}}, nil, true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			objects := append(used("pv", "h", "n1"), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
			other := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}, Spec: corev1.NodeSpec{Taints: c.taints}}
			other.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: c.ready}}
			other.Status.VolumesInUse = []corev1.UniqueVolumeName{corev1.UniqueVolumeName(volume.UniqueName("d", "h"))}
			objects = append(objects, other)
			for i, p := range c.there {
				p.ObjectMeta = metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("there-", i), UID: types.UID(fmt.Sprint(i))}
				p.Spec.NodeName, p.Spec.Volumes = "n2", objects[2].(*corev1.Pod).Spec.Volumes
				objects = append(objects, &p)
			}
			va := attachment()
			va.Name, va.Spec.NodeName, va.Status.Attached = attach.NameOf("d", "h", "n2"), "n2", true
			if c.had {
				objects = append(objects, va)
			}
			client, c2 := built(t, Options{Now: time.Now}, objects...)
			if c.had {
				takenByForce(t, client, c2, va.Name)
			}
			for _, key := range []controller.Key{{Kind: kindNode, Name: "n1"}, {Kind: kindAttach, Name: attach.NameOf("d", "h", "n1")}} {
				if _, err := c2.Reconcile(t.Context(), key); err != nil {
					t.Fatal(err)
				}
			}
			all, err := client.StorageV1().VolumeAttachments().List(t.Context(), metav1.ListOptions{})
			if err != nil || len(all.Items) != c.want {
				t.Errorf("%d attachments, %v; want %d", len(all.Items), err, c.want)
			}
		})
	}
}

// takenByForce has an attachment go without a word, when the controller has seen
// it, and waits until it has seen that it is gone.
func takenByForce(t *testing.T, client *fake.Clientset, c *attachDetach, name string) {
	t.Helper()
	reconcile := func() {
		if _, err := c.Reconcile(t.Context(), controller.Key{Kind: kindNode, Name: "n2"}); err != nil {
			t.Fatal(err)
		}
	}
	kubetest.Eventually(t, func() string {
		if reconcile(); !c.had.has("n2", volume.UniqueName("d", "h")) {
			return "it is not known that the node has the volume"
		}
		return ""
	})
	if err := client.StorageV1().VolumeAttachments().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	kubetest.Eventually(t, func() string {
		if _, there := c.view.Attachments.Get(name); there {
			return "the attachment is still there"
		}
		return ""
	})
	// A look at the node must not make it forget.
	reconcile()
}

// TestAttachedBeforeItsVolumeIsSeen: at a start an attachment may be seen before the
// volume that it names; what is attached is remembered all the same.
func TestAttachedBeforeItsVolumeIsSeen(t *testing.T) {
	va := attachment()
	va.Name, va.Spec.NodeName, va.Status.Attached = attach.NameOf("d", "h", "n2"), "n2", true
	pv := used("pv", "h", "n1")[0].(*corev1.PersistentVolume)
	client, c := built(t, Options{Now: time.Now}, va, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}})
	if _, err := client.CoreV1().PersistentVolumes().Create(t.Context(), pv, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	kubetest.Eventually(t, func() string {
		if _, there := c.view.Volumes.Get("pv"); !there {
			return "the volume is not seen"
		}
		return ""
	})
	if _, err := c.Reconcile(t.Context(), controller.Key{Kind: kindNode, Name: "n2"}); err != nil {
		t.Fatal(err)
	}
	if !c.had.has("n2", volume.UniqueName("d", "h")) {
		t.Error("it is not known that the node has the volume")
	}
}

// TestHistory: what a node had is remembered while it may have it, and no longer.
func TestHistory(t *testing.T) {
	h := &history{volumes: map[string]map[string]bool{}}
	h.gets("n1", "v")
	h.gets("n1", "w")
	h.keep("n1", func(unique string) bool { return unique == "w" })
	if h.has("n1", "v") || !h.has("n1", "w") || h.has("n2", "w") {
		t.Errorf("it has %v", h.volumes)
	}
	if h.keep("n1", func(string) bool { return false }); len(h.volumes) > 0 {
		t.Errorf("nodes are remembered that have nothing: %v", h.volumes)
	}
}
