package apiserver_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"volplane.dev/volplane/standalone/apiserver"
	"volplane.dev/volplane/standalone/standalonetest"
)

// halfBroken gathers the metrics of a registry, and an error.
type halfBroken struct{ *prometheus.Registry }

func (h halfBroken) Gather() ([]*dto.MetricFamily, error) {
	all, err := h.Registry.Gather()
	return all, errors.Join(err, errors.New("one of them is broken"))
}

// TestMetrics: other metrics are served together with those of the API server, also when some of them cannot be
// gathered, to users who may read the path.
func TestMetrics(t *testing.T) {
	t.Parallel()
	all := prometheus.NewRegistry()
	depth := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "workqueue_depth", Help: "[BETA] Current depth of workqueue",
	}, []string{"name"})
	depth.WithLabelValues("binder").Set(7)
	all.MustRegister(depth)
	s := start(t, apiserver.Options{DataDir: shortDir(t), Listen: "127.0.0.1:0", Metrics: halfBroken{all}})
	defer s.Stop()
	get := func(user string) (string, error) {
		rest := standalonetest.Client(t, s, user).Discovery().RESTClient()
		text, err := rest.Get().AbsPath("/metrics").Do(t.Context()).Raw()
		return string(text), err
	}
	text, err := get("")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"\nworkqueue_depth{name=\"binder\"} 7\n", "\nworkqueue_depth{name=\"crd_finalizer\"} ", "\ngo_goroutines ",
		"\napiserver_request_total{",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %s", want)
		}
	}
	if strings.Count(text, "# TYPE workqueue_depth ") != 1 {
		t.Error("a metric of both is served twice")
	}
	if _, err := get("somebody"); !apierrors.IsForbidden(err) {
		t.Errorf("a user without the right reads them: %v", err)
	}
}
