package attachdetach

import (
	"cmp"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/volume"
)

// TestUsedElsewhere: a volume that a living node has mounted is not attached to another one, whatever has become of the
// attachment; but two nodes that wait for the same volume do not wait for each other, and the claim of a node that
// never had the volume does not count (for one that had it, see TestComesBackWithIt).
func TestUsedElsewhere(t *testing.T) {
	with := func(kind corev1.PodConditionType, status corev1.ConditionStatus) corev1.Pod {
		return corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: kind, Status: status}}}}
	}
	mounted, waits := with(volume.ConditionVolumesMounted, corev1.ConditionTrue), corev1.Pod{}
	ended, going := corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodSucceeded}},
		corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{Time: time.Unix(1e9, 0)}}}
	away := *mounted.DeepCopy()
	away.Spec.NodeName = "n3"
	for name, c := range map[string]struct {
		// there are the Pods of the node that says that it uses the volume.
		there []corev1.Pod
		want  int
	}{
		"it never had it":              {nil, 1},
		"its Pod has it":               {[]corev1.Pod{mounted}, 0},
		"another node's Pod has it":    {[]corev1.Pod{away}, 1},
		"its Pod waits":                {[]corev1.Pod{waits}, 1},
		"its Pod has unmounted":        {[]corev1.Pod{with(volume.ConditionVolumesMounted, corev1.ConditionFalse)}, 1},
		"its Pod has something else":   {[]corev1.Pod{with(corev1.PodScheduled, corev1.ConditionTrue)}, 1},
		"its Pod is going":             {[]corev1.Pod{going}, 0},
		"a Pod waits and is not":       {[]corev1.Pod{waits, mounted}, 0},
		"its Pod has ended":            {[]corev1.Pod{ended}, 0},
		"its Pod has ended, one waits": {[]corev1.Pod{ended, waits}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			nobodys := used("pv", "h", "n1")[0].(*corev1.PersistentVolume)
			nobodys.Name, nobodys.Spec.ClaimRef = "nobodys", nil
			objects := append(used("pv", "h", "n1"), nobodys, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
			other := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}
			other.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
			other.Status.VolumesInUse = []corev1.UniqueVolumeName{corev1.UniqueVolumeName(volume.UniqueName("d", "h"))}
			objects = append(objects, other)
			for i, p := range c.there {
				p.Namespace, p.Name, p.UID = "ns", fmt.Sprint("there-", i), types.UID(fmt.Sprint(i))
				p.Spec.NodeName, p.Spec.Volumes = cmp.Or(p.Spec.NodeName, "n2"), objects[2].(*corev1.Pod).Spec.Volumes
				objects = append(objects, &p)
			}
			client, c2 := started(t, Options{Now: time.Now}, objects...)
			for _, key := range []controller.Key{
				{Kind: kindNode, Name: "n1"}, {Kind: kindAttach, Name: attach.NameOf("d", "h", "n1")},
			} {
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

// TestHistory: a node's former attachments are remembered as long as it may still have the volume.
func TestHistory(t *testing.T) {
	h := &history{volumes: map[string]map[string]bool{}}
	h.add("n1", "v")
	h.add("n1", "w")
	h.retain("n1", func(unique string) bool { return unique == "w" })
	if h.has("n1", "v") || !h.has("n1", "w") || h.has("n2", "w") {
		t.Errorf("it has %v", h.volumes)
	}
	if h.retain("n1", func(string) bool { return false }); len(h.volumes) > 0 {
		t.Errorf("nodes are remembered that have nothing: %v", h.volumes)
	}
}
