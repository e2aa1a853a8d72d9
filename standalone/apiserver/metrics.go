package apiserver

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/component-base/metrics/legacyregistry"
)

// metricsPath is also where Kubernetes' API server has its metrics. Reading them requires a right to this path.
const metricsPath = "/metrics"

// scrapes is how many requests for metrics are answered at the same time.
const scrapes = 4

// serveMetrics serves other metrics together with those of the API server. A failure of one of them hides no other.
func serveMetrics(paths *mux.PathRecorderMux, others prometheus.Gatherer) {
	paths.Unregister(metricsPath)
	paths.Handle(metricsPath, promhttp.HandlerFor(prometheus.Gatherers{legacyregistry.DefaultGatherer, others},
		promhttp.HandlerOpts{
			ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: scrapes, EnableOpenMetrics: true,
		}))
}
