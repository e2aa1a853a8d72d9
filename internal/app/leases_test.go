package app

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/kube"
)

// TestWatchOfOneLease: controllers beside one driver may watch its own leases only, so each is watched by its name.
func TestWatchOfOneLease(t *testing.T) {
	asked := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Query().Get("fieldSelector")
		w.Header().Set("Content-Type", "application/json")
	}))
	defer server.Close()
	config := kube.Restrict(&rest.Config{Host: server.URL}, "leader-election", leaseRights("ns", []string{"l"}))
	l, err := newLeases(config, "ns", "me", 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	locks, err := l.locks([]string{"l"})
	if err != nil {
		t.Fatal(err)
	}
	w, err := locks[0].Leases.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + locks[0].Name})
	if err != nil {
		t.Fatal(err)
	}
	w.Stop()
	if got := <-asked; got != "metadata.name=l" {
		t.Errorf("watched with %q", got)
	}
}
