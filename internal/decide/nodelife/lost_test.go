package nodelife_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"volplane.dev/volplane/internal/decide/nodelife"
	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/volume"
)

// TestLost: each row is the facts about node n1 as words, and the next step.
func TestLost(t *testing.T) {
	for _, c := range []struct{ argues, facts, want string }{
		{"a host that lives is not lost", "node ready volume", "refused"},
		{"unless somebody insists", "node ready force volume", "fence"},
		{"nobody gives up the host of the control plane", "node own force", "refused"},
		{"a kubelet that lives cannot be fenced here", "node ready force unfenceable", "refused"},
		{"one that is off needs no fence", "node unfenceable volume", "taint volume"},
		{"nothing is let go before the host is fenced", "node volume pod attachment intents", "fence"},
		{"the Node stays while Pods are bound to it", "node fenced tainted pod", "pod"},
		{"and while volumes are attached to it", "node fenced tainted attachment", ""},
		{"an attachment of a node-local driver needs no driver", "node fenced tainted local attachment", "attachment"},
		{"a volume that only this host had is lost", "node fenced tainted volume", "volume remove"},
		{"it is marked once", "fenced marked", "done"},
		{"a volume that another host reaches is left alone", "fenced volume shared", "done"},
		{"so are the snapshots of such a host", "fenced volume shared content", "done"},
		{"a snapshot is lost with its host", "fenced content", "content"},
		{"a volume of another host is not", "fenced foreign", "done"},
		{"what it had begun is forgotten, and claims go elsewhere", "fenced intents claim", "forget reselect"},
		{"the Node may have been deleted before", "volume", "fence"},
		{"killed in the middle, it goes on", "node fenced tainted marked", "remove"},
		{"a node that was alive is not refused in the middle", "node ready tainted fenced marked", "remove"},
	} {
		if got := step(nodelife.Lost(lostFacts(c.facts))); got != c.want {
			t.Errorf("%s: %s: the step is %q, want %q", c.argues, c.facts, got, c.want)
		}
	}
}

func lostFacts(words string) nodelife.LostFacts {
	const driver = "d"
	f := nodelife.LostFacts{Name: "n1", Local: map[string]bool{}}
	has := func(word string) bool { return strings.Contains(" "+words+" ", " "+word+" ") }
	f.Own, f.Force, f.Fenced, f.Unfenceable = has("own"), has("force"), has("fenced"), has("unfenceable")
	f.Local[driver] = has("local")
	f.Others = []*corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n2", Labels: map[string]string{"host": "n2"}}}}
	if has("shared") {
		f.Others[0].Labels["host"] = "n1"
	}
	if has("node") {
		f.Node = lostNode(has)
	}
	on := metav1.ObjectMeta{Name: "x", Annotations: map[string]string{volume.AnnProvisionedOn: "n1"}}
	if has("foreign") {
		on.Annotations[volume.AnnProvisionedOn] = "n2"
	}
	if has("marked") {
		on.Annotations[volume.AnnLostWith] = "n1"
	}
	v := &corev1.PersistentVolume{ObjectMeta: on}
	v.Spec.NodeAffinity = topology.Affinity([]topology.Segment{{"host": "n1"}})
	f.Volumes = given(has("volume") || has("marked") || has("foreign"), v)
	content := &unstructured.Unstructured{}
	content.SetAnnotations(on.Annotations)
	f.Contents = given(has("content"), content)
	f.Pods = given(has("pod"), &corev1.Pod{})
	f.Attachments = given(has("attachment"), &storagev1.VolumeAttachment{
		Spec: storagev1.VolumeAttachmentSpec{Attacher: driver, NodeName: "n1"},
	})
	f.Intents = given(has("intents"), "log-1")
	f.Claims = given(has("claim"), &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Annotations: map[string]string{volume.AnnSelectedNode: "n1"},
	}})
	return f
}

func given[T any](is bool, one T) []T {
	if !is {
		return nil
	}
	return []T{one}
}

func lostNode(has func(word string) bool) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	if has("ready") {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	}
	if has("tainted") {
		n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
	}
	return n
}

func step(p nodelife.LostPlan) string {
	var out []string
	for _, s := range []struct {
		is   bool
		name string
	}{
		{p.Refused, "refused"},
		{p.Fence, "fence"},
		{p.Taint, "taint"},
		{len(p.Volumes) > 0, "volume"},
		{len(p.Contents) > 0, "content"},
		{len(p.Attachments) > 0, "attachment"},
		{len(p.Pods) > 0, "pod"},
		{len(p.Forget) > 0, "forget"},
		{len(p.Reselect) > 0, "reselect"},
		{p.Remove, "remove"},
		{p.Done, "done"},
	} {
		if s.is {
			out = append(out, s.name)
		}
	}
	return fmt.Sprint(strings.Join(out, " "))
}
