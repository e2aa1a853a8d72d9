package apiserver_test

import (
	"encoding/json"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/decide/identity"
	"volplane.dev/volplane/internal/volume"
)

// TestWhatANodeHadIsFoundWithIt: volumes that were given up with a node belong to it again when the node is invited
// again, because its host deletes them from then on; volumes given up with another node stay lost.
func TestWhatANodeHadIsFoundWithIt(t *testing.T) {
	t.Parallel()
	c := newHostCluster(t)
	var paths []string
	for _, node := range []string{"n1", "n2"} {
		lost := map[string]string{volume.AnnLostWith: node}
		v := c.object(c.claim("c-"+node, "own", node), node, func(v *corev1.PersistentVolume) {
			v.Annotations[volume.AnnLostWith] = node
		})
		if err := c.create(c.admin, v); err != nil {
			t.Fatal(err)
		}
		must(c.admin.StorageV1().VolumeAttachments().Create(t.Context(), &storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: "a-" + node, Annotations: lost},
			Spec: storagev1.VolumeAttachmentSpec{
				Attacher: ownDriver, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &v.Name},
			},
		}, metav1.CreateOptions{}))(t)
		paths = append(paths, "/api/v1/persistentvolumes/"+v.Name, "/apis/storage.k8s.io/v1/volumeattachments/a-"+node)
		for _, k := range contentKinds() {
			c.makeContent(k, "s-"+node, ownDriver, node)
			c.expect(k.kind, c.contents(c.admin, k, http.MethodPatch, "/s-"+node,
				`{"metadata":{"annotations":{"`+volume.AnnLostWith+`":"`+node+`"}}}`), "")
			paths = append(paths, "/apis/"+k.group+"/v1/"+k.resource+"/s-"+node)
		}
	}
	api := c.admin.Discovery().RESTClient()
	if n := lostWith(t, api, paths); n["n1"] != 4 || n["n2"] != 4 {
		t.Fatalf("lost were %v objects", n)
	}
	for range 2 {
		must(api.Post().AbsPath(identity.PathInvitation).SetHeader("Content-Type", "application/json").
			Body(encode(t, identity.Invite{Node: "n1", Seconds: 60})).DoRaw(t.Context()))(t)
		if n := lostWith(t, api, paths); n["n1"] != 0 || n["n2"] != 4 {
			t.Errorf("n1 is invited again, and lost are %v objects", n)
		}
	}
}

// lostWith counts the objects that are marked as lost, by their nodes.
func lostWith(t *testing.T, api rest.Interface, paths []string) map[string]int {
	t.Helper()
	n := map[string]int{}
	for _, path := range paths {
		var o metav1.PartialObjectMetadata
		said := must(api.Get().AbsPath(path).SetHeader("Accept", "application/json").DoRaw(t.Context()))(t)
		if err := json.Unmarshal(said, &o); err != nil {
			t.Fatal(err)
		}
		n[o.Annotations[volume.AnnLostWith]]++
	}
	return n
}
