package app

import (
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"volplane.dev/volplane/internal/kube"
)

// TestLeaseNames: the leases of the controllers of a driver are those of upstream's sidecars, in an order that releases
// do not change.
func TestLeaseNames(t *testing.T) {
	if got, want := leaseNames(ClusterControllers(), "test.csi.example.com"), []string{
		"test-csi-example-com", "external-attacher-leader-test-csi-example-com", "external-resizer-test-csi-example-com",
		"external-snapshotter-leader-test-csi-example-com", "external-health-monitor-leader-test-csi-example-com",
		"snapshot-controller-leader",
	}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestRequestsAreLimited: a user's limit of requests is for those of controllers.
func TestRequestsAreLimited(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	config := &rest.Config{Host: server.URL, RateLimiter: flowcontrol.NewFakeNeverRateLimiter()}
	client, err := clientFor(ControlPlaneOptions{
		ConfigFor: func(string) (*rest.Config, error) { return config, nil },
	}, "attacher", kube.Read("", "nodes"), kube.NewFlow())
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
	if err == nil || !strings.Contains(err.Error(), "rate limit") {
		t.Errorf("a controller's request is not limited: %v", err)
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
