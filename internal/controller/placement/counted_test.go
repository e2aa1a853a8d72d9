package placement

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/controller/story"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/testkit/clientset"
)

// TestCountedOnce: a Pod that has just been bound to a node is both on its way and there, but takes the room of one
// Pod.
func TestCountedOnce(t *testing.T) {
	client := clientset.New()
	caches := kube.NewCaches(client)
	p := &placer{pods: caches.WritePods(client), csiNodes: caches.CSINodes()}
	pod := func(patch string) *corev1.Pod { return story.Object[*corev1.Pod](t, "pod "+patch) }
	p.pods.Wrote(pod(`{metadata: {resourceVersion: "1"}, spec: {volumes: null, nodeName: n1}}`))
	onTheWay := []*corev1.Pod{pod("{spec: {volumes: null}}"), pod("{metadata: {name: q}, spec: {volumes: null}}")}
	if got := p.node(story.Object[*corev1.Node](t, "cluster"), onTheWay); got.Pods != 2 {
		t.Errorf("there are %d Pods on the node, want p and q", got.Pods)
	}
}
