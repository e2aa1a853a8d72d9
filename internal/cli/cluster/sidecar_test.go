package cluster

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/sidecar"
)

// TestLimit: what a user allows is for all clients of the process together, and without it none waits.
func TestLimit(t *testing.T) {
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"kind":"Node","apiVersion":"v1"}`))
	}))
	defer server.Close()
	for _, c := range []struct {
		limits sidecar.Options
		want   int
	}{
		{sidecar.Options{}, 40},
		{sidecar.Options{QPS: 0.001, Burst: 3}, 3},
		{sidecar.Options{QPS: 0.001}, rest.DefaultBurst},
		{sidecar.Options{QPS: -1, Burst: 3}, 40},
	} {
		config := &rest.Config{Host: server.URL}
		limit(config, c.limits)
		asked.Store(0)
		for range 2 {
			// Each controller has a client of its own.
			own := rest.CopyConfig(config)
			own.QPS = -1
			client, err := kubernetes.NewForConfig(own)
			if err != nil {
				t.Fatal(err)
			}
			for range 20 {
				// A request that would have to wait for longer than this fails immediately.
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				_, _ = client.CoreV1().Nodes().Get(ctx, "n", metav1.GetOptions{})
				cancel()
			}
		}
		if got := int(asked.Load()); got != c.want {
			t.Errorf("qps %v, burst %d: %d requests have come, want %d", c.limits.QPS, c.limits.Burst, got, c.want)
		}
	}
	config := &rest.Config{}
	limit(config, sidecar.Options{Burst: 7})
	if l := config.RateLimiter; l == nil || l.QPS() != rest.DefaultQPS {
		t.Error("a burst alone sets no limit")
	}
}
