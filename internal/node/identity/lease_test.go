package identity

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// TestLeaseIsRenewed, which is made once and changed each time after that.
func TestLeaseIsRenewed(t *testing.T) {
	client := fake.NewClientset()
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
