package app

import (
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

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
	locks := l.locks([]string{"l"})
	w, err := locks[0].Leases.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + locks[0].Name})
	if err != nil {
		t.Fatal(err)
	}
	w.Stop()
	if got := <-asked; got != "metadata.name=l" {
		t.Errorf("watched with %q", got)
	}
}

// TestRenewalsDoNotWait: a user's limit of requests is for those of controllers, and not for those of leases.
func TestRenewalsDoNotWait(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"kind":"Lease","apiVersion":"coordination.k8s.io/v1"}`))
	}))
	defer server.Close()
	config := &rest.Config{Host: server.URL, RateLimiter: flowcontrol.NewFakeNeverRateLimiter()}
	l, err := newLeases(config, "ns", "me", 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.renewed.Get(t.Context(), "l", metav1.GetOptions{}); err != nil {
		t.Errorf("the lease: %v", err)
	}
	client, err := clientFor(ControlPlaneOptions{
		ConfigFor: func(string) (*rest.Config, error) { return config, nil },
	}, "attacher", kube.Read("", "nodes"), kube.NewFlow())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{}); err == nil {
		t.Error("a controller's request is not limited")
	}
}

// TestClusterPageNamesLeases: docs/cluster.md has each controller of a cluster in its table, with its lease.
func TestClusterPageNamesLeases(t *testing.T) {
	page, err := os.ReadFile("../../docs/cluster.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, role := range ClusterControllers() {
		lease := strings.Replace(leaseNames([]string{role}, "name")[0], "name", "DRIVER", 1)
		want := "(?m)^\\| `" + role + "` \\|.*\\| `" + lease + "` \\|$"
		if !regexp.MustCompile(want).Match(page) {
			t.Errorf("no row is like %s", want)
		}
	}
}
