package nodelife_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"volplane.dev/volplane/internal/decide/nodelife"
	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

// TestLost: facts about node n1, which may be lost, as words, and the next step; with "report", what people are told.
func TestLost(t *testing.T) {
	golden.Play(t, "testdata/lost.txt", func(_ *testing.T, given string) string {
		f := lostFacts(given)
		p := nodelife.Lost(f)
		told := fmt.Sprintf("step: %s\n%s: %s -> %s\n", step(p), p.Because.Reason, p.Because.Message, p.Because.Next)
		if strings.HasSuffix(given, " report") {
			told += nodelife.LostReport(f)
		}
		return told
	})
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
	marked := *on.DeepCopy()
	marked.Annotations[volume.AnnLostWith] = "n1"
	v := &corev1.PersistentVolume{ObjectMeta: on}
	v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "h"}
	v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "data"}
	if !has("placeless") {
		v.Spec.NodeAffinity = topology.Affinity([]topology.Segment{{"host": "n1"}})
	}
	f.Volumes = given(has("volume") || has("marked") || has("foreign"), v)
	content := func(meta metav1.ObjectMeta) *unstructured.Unstructured {
		c := &unstructured.Unstructured{}
		c.SetName("c")
		c.SetAnnotations(meta.Annotations)
		return c
	}
	f.Contents = append(given(has("content"), content(on)), given(has("marked-content"), content(marked))...)
	for i := range 25 {
		f.Pods = append(f.Pods, given(has("many-pods") || has("pod") && i == 0, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: fmt.Sprint("web-", i),
		}})...)
	}
	attachment := storagev1.VolumeAttachment{Spec: storagev1.VolumeAttachmentSpec{
		Attacher: driver, NodeName: "n1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &v.Name},
	}}
	f.Attachments = given(has("attachment"), attachment.DeepCopy())
	attachment.ObjectMeta = marked
	f.Attachments = append(f.Attachments, given(has("marked-attachment"), &attachment)...)
	f.Intents = given(has("intents"), "log-1")
	claim := func(node, volumeName string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{volume.AnnSelectedNode: node}},
			Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: volumeName},
		}
	}
	f.Claims = slices.Concat(given(has("claim"), claim("n1", "")), given(has("bound-claim"), claim("n1", "x")),
		given(has("other-claim"), claim("n2", "")))
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
