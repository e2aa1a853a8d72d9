package gather

import (
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// TestLeasesOfAllNamespacesAreRead: the Lease of a sidecar is read, whatever its
// namespace; for a user without the right to read Leases, the answer says so.
func TestLeasesOfAllNamespacesAreRead(t *testing.T) {
	client := fake.NewClientset(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "x"}},
		&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "b", Name: "x"}})
	r := New(client, Options{})
	if err := r.leases(t.Context()); err != nil || r.LeasesHidden || len(r.Leases) != 2 || r.Now.IsZero() {
		t.Errorf("leases are %v, hidden %v, %v", r.Leases, r.LeasesHidden, err)
	}
	refuse := func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "leases"}, "", nil)
	}
	client.PrependReactor("list", "leases", refuse)
	r = New(client, Options{})
	if err := r.leases(t.Context()); err != nil || !r.LeasesHidden {
		t.Errorf("hidden %v, %v", r.LeasesHidden, err)
	}
}
