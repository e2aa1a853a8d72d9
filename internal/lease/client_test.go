package lease

import (
	"net/http"
	"net/http/httptest"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"volplane.dev/volplane/internal/kube"
)

// TestClient: a user's limit of requests is for those of controllers, and not for those of leases; and the declared
// rights allow what a client does with a lease.
func TestClient(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"kind":"Lease","apiVersion":"coordination.k8s.io/v1"}`))
	}))
	defer server.Close()
	config := &rest.Config{Host: server.URL, RateLimiter: flowcontrol.NewFakeNeverRateLimiter()}
	client, err := NewClient(kube.Restrict(config, "leader-election", Rights("ns", []string{"l"})), "ns", "me", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.leases.Get(t.Context(), "l", metav1.GetOptions{}); err != nil {
		t.Errorf("read the lease: %v", err)
	}
	if _, err := client.leases.Update(t.Context(), heldBy("l", "me"), metav1.UpdateOptions{}); err != nil {
		t.Errorf("write the lease: %v", err)
	}
	for _, selector := range []string{"", "metadata.name=l"} {
		w, err := client.leases.Watch(t.Context(), metav1.ListOptions{FieldSelector: selector})
		if err != nil {
			t.Fatalf("watch with %q: %v", selector, err)
		}
		w.Stop()
	}
}
