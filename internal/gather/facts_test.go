package gather

import (
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/testkit/clientset"
	"volplane.dev/volplane/internal/volume"
)

// TestIntentsOfAllNamespacesAreRead: the intents of every provisioner are read,
// whatever their namespace; for a user without the right to read them, the answer says
// so.
func TestIntentsOfAllNamespacesAreRead(t *testing.T) {
	log := func(namespace, name, uid string) *corev1.ConfigMap {
		meta := metav1.ObjectMeta{
			Namespace: namespace, Name: name + "-1", Labels: map[string]string{volume.LabelIntents: name},
		}
		return &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{
			uid: `{"driver":"d","name":"pvc-` + uid + `","claim":{"uid":"` + uid + `"}}`,
		}}
	}
	client := clientset.New(log(volume.NamespaceSystem, "volplane-intents", "a"),
		log("storage", "volplane-intents-b-example-com", "b"),
		&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "storage", Name: "other"}, Data: map[string]string{"c": "{}"},
		})
	r := New(client, Options{})
	if err := r.making(metav1.NamespaceAll)(t.Context()); err != nil || r.MakingHidden || len(r.Begun) != 2 ||
		r.Begun[0].Claim.UID == r.Begun[1].Claim.UID {
		t.Errorf("begun are %v, hidden %v, %v", r.Begun, r.MakingHidden, err)
	}
	hide(client, "configmaps")
	r = New(client, Options{})
	if err := r.making(metav1.NamespaceAll)(t.Context()); err != nil || !r.MakingHidden {
		t.Errorf("hidden %v, %v", r.MakingHidden, err)
	}
}

// TestLeasesOfAllNamespacesAreRead: so is the Lease of a sidecar.
func TestLeasesOfAllNamespacesAreRead(t *testing.T) {
	client := clientset.New(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "x"}},
		&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "b", Name: "x"}})
	r := New(client, Options{})
	if err := r.leases(t.Context()); err != nil || r.LeasesHidden || len(r.Leases) != 2 || r.Now.IsZero() {
		t.Errorf("leases are %v, hidden %v, %v", r.Leases, r.LeasesHidden, err)
	}
	hide(client, "leases")
	r = New(client, Options{})
	if err := r.leases(t.Context()); err != nil || !r.LeasesHidden {
		t.Errorf("hidden %v, %v", r.LeasesHidden, err)
	}
}

// hide has the API server not let a resource be listed.
func hide(client *fake.Clientset, resource string) {
	client.PrependReactor("list", resource, func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", nil)
	})
}
