package identity

import (
	"fmt"
	"slices"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"volplane.dev/volplane/internal/testkit/clientset"
)

// TestLeaseIsRenewed, which is made once and changed each time after that.
func TestLeaseIsRenewed(t *testing.T) {
	client := clientset.New()
	o := &object{client: client, name: "n1"}
	leases := client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	var last metav1.MicroTime
	for range 3 {
		if err := o.renew(t.Context()); err != nil {
			t.Fatal(err)
		}
		lease, err := leases.Get(t.Context(), "n1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if !last.Before(lease.Spec.RenewTime) || *lease.Spec.HolderIdentity != "n1" ||
			*lease.Spec.LeaseDurationSeconds != leaseSeconds {
			t.Error(fmt.Sprint("renewed after ", last, ": ", lease.Spec))
		}
		last = *lease.Spec.RenewTime
	}
}

// TestLeaseBelongsToItsNode, whoever made it: otherwise it stays when the Node is gone.
func TestLeaseBelongsToItsNode(t *testing.T) {
	earlier := metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: "n1", UID: "earlier"}
	for name, before := range map[string][]runtime.Object{
		"a new one": nil, "without an owner": {leaseOf()}, "of an earlier Node": {leaseOf(earlier)},
	} {
		client := clientset.New(append(before, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "now"}})...)
		o := &object{client: client, name: "n1"}
		if _, err := o.ensure(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := o.renew(t.Context()); err != nil {
			t.Fatal(err)
		}
		lease, err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), "n1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		want := earlier
		want.UID = "now"
		if !slices.Equal(lease.OwnerReferences, []metav1.OwnerReference{want}) {
			t.Errorf("%s belongs to %v", name, lease.OwnerReferences)
		}
	}
}

func leaseOf(owners ...metav1.OwnerReference) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: corev1.NamespaceNodeLease, Name: "n1", OwnerReferences: owners,
	}}
}
