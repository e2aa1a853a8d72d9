package observe

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"volplane.dev/volplane/internal/process/revision"
)

// unknownDriver is the name of a driver that has not reported its name.
const unknownDriver = "unknown-driver"

// Registry holds the counts of a process. It is safe for concurrent use.
type Registry struct {
	all *prometheus.Registry

	calls, streams, queued, worked, operations, requestTime, provisionTime, deleteTime, snapshots *prometheus.HistogramVec
	added, retried, requests, provisioned, provisionFails, deleted, deleteFails                   *prometheus.CounterVec

	leading leading
	queues  queues
	pace    pace
	gauges  gauges
	// alone says that no other registry of the process counts requests.
	alone bool
}

// New returns a registry of counts, and of what is known of the build. Those of the Go runtime and of the process are
// added by WithProcess.
func New(version string) *Registry {
	r := &Registry{
		all: prometheus.NewRegistry(), calls: histogramOf(nameCalls), streams: histogramOf(nameStreams),
		added:   counterOf(nameAdds),
		retried: counterOf(nameRetries), queued: histogramOf(nameQueued), worked: histogramOf(nameWork),
		operations: histogramOf(nameOperations), requests: counterOf(nameRequests), requestTime: histogramOf(nameRequestTime),
		provisioned: counterOf(nameProvision), provisionFails: counterOf(nameProvisionFails),
		provisionTime: histogramOf(nameProvisionTime), deleted: counterOf(nameDelete),
		deleteFails: counterOf(nameDeleteFails), deleteTime: histogramOf(nameDeleteTime),
		snapshots: histogramOf(nameSnapshots),
	}
	r.all.MustRegister(r.calls, r.streams, r.added, r.retried, r.queued, r.worked, r.operations, r.requests, r.requestTime,
		r.provisioned, r.provisionFails, r.provisionTime, r.deleted, r.deleteFails, r.deleteTime, r.snapshots)
	r.Gauge(nameBuild, func(set Set) { set(1, version, revision.Of(), goVersion()) })
	r.Gauge(nameLeader, r.leading.collect)
	r.Gauge(nameSlowpath, r.leading.collectReread)
	r.queues.register(r)
	return r
}

// WithProcess adds the counts of the Go runtime, of the process and of requests to the API server, which another
// registry of the process may have. It must be called before the registry is used.
func (r *Registry) WithProcess() *Registry {
	if r != nil {
		r.alone = true
		r.all.MustRegister(collectors.NewGoCollector(),
			collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	}
	return r
}

// Gatherer returns what gathers all counts; nil of a nil Registry.
func (r *Registry) Gatherer() prometheus.Gatherer {
	if r == nil {
		return nil
	}
	return r.all
}

// Set sets the value of a gauge with these labels.
type Set func(value float64, labels ...string)

// Gauge has a function set the values of a gauge, or of a counter that is kept elsewhere, whenever the metrics are
// collected. What it does not set is left out; of values with the same labels, the first one counts. Of functions for
// the same metric, the last one counts.
func (r *Registry) Gauge(name string, set func(Set)) {
	if r == nil {
		return
	}
	f := family(name)
	g := gaugeFunc{f.desc(), prometheus.GaugeValue, set}
	if f.Type == counter {
		g.kind = prometheus.CounterValue
	}
	r.gauges.Store(name, g)
	r.all.Unregister(g)
	r.all.MustRegister(g)
}

// gaugeFunc is a gauge whose values are computed when they are collected.
type gaugeFunc struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	set  func(Set)
}

// Describe implements prometheus.Collector.
func (g gaugeFunc) Describe(out chan<- *prometheus.Desc) { out <- g.desc }

// Collect implements prometheus.Collector.
func (g gaugeFunc) Collect(out chan<- prometheus.Metric) {
	seen := map[string]bool{}
	g.set(func(value float64, labels ...string) {
		key := strings.Join(labels, "\x00")
		if seen[key] {
			return
		}
		seen[key] = true
		// A label that is not UTF-8 makes a metric with an error, which is reported to the scraper.
		m, err := prometheus.NewConstMetric(g.desc, g.kind, value, labels...)
		if err != nil {
			m = prometheus.NewInvalidMetric(g.desc, err)
		}
		out <- m
	})
}

// Call counts a call of a driver that has ended.
func (r *Registry) Call(driver, method, code string, took time.Duration) {
	if r != nil {
		driver = cmp.Or(driver, unknownDriver)
		r.calls.WithLabelValues(driver, method, code).Observe(took.Seconds())
		r.pace.count(driver, time.Now())
	}
}

// Stream counts a stream of changed blocks that was served to a client.
func (r *Registry) Stream(driver, method, code string, took time.Duration) {
	if r != nil {
		r.streams.WithLabelValues(cmp.Or(driver, unknownDriver), method, code).Observe(took.Seconds())
	}
}

// Provisioned counts an attempt to make a volume of a class. source is the kind of the object whose data it gets.
func (r *Registry) Provisioned(class, source string, took time.Duration, err error) {
	switch {
	case r == nil:
	case err != nil:
		r.provisionFails.WithLabelValues(class, source).Inc()
	default:
		r.provisioned.WithLabelValues(class, source).Inc()
		r.provisionTime.WithLabelValues(class, source).Observe(took.Seconds())
	}
}

// Deleted counts an attempt to delete a volume of a class.
func (r *Registry) Deleted(class string, took time.Duration, err error) {
	switch {
	case r == nil:
	case err != nil:
		r.deleteFails.WithLabelValues(class).Inc()
	default:
		r.deleted.WithLabelValues(class).Inc()
		r.deleteTime.WithLabelValues(class).Observe(took.Seconds())
	}
}

// Requests returns a decorator that counts the requests of a client of the API server, if WithProcess was called.
func (r *Registry) Requests(next http.RoundTripper) http.RoundTripper {
	if r == nil || !r.alone {
		return next
	}
	return roundTripper{next, r}
}

type roundTripper struct {
	next http.RoundTripper
	r    *Registry
}

// RoundTrip implements http.RoundTripper.
func (t roundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	start := time.Now()
	answer, err := t.next.RoundTrip(req)
	code := "<error>" // as client-go says it
	if err == nil {
		code = strconv.Itoa(answer.StatusCode)
	}
	t.r.requests.WithLabelValues(code, req.Method, req.URL.Host).Inc()
	t.r.requestTime.WithLabelValues(req.Method, req.URL.Host).Observe(time.Since(start).Seconds())
	return answer, err
}

// Family describes a metric.
type Family struct {
	// Name is the whole name, without what a histogram adds.
	Name string
	// Type is "counter", "gauge" or "histogram".
	Type string
	// Labels are the names of the labels.
	Labels []string
	// Help says what is counted. That of an upstream metric is upstream's, because two programs that say different
	// things of one name cannot be gathered together.
	Help string
	// Buckets are the upper bounds of a histogram's buckets.
	Buckets []float64
	// From are the programs that serve it.
	From From
}

// From says which programs serve a metric.
type From string

// The programs: those beside a driver in a cluster, volplaned, and the node agent alone or in volplaned.
const (
	FromControllers From = "controller"
	FromMetadata    From = "snapshot-metadata, volplaned"
	FromPlane       From = "volplaned"
	FromBoth        From = "controller, volplaned"
	FromNode        From = "node agent"
	FromAll         From = "all"
)

const (
	counter   = "counter"
	gauge     = "gauge"
	histogram = "histogram"
)

// Families returns all metrics but those of the Go runtime and of the process.
func Families() []Family { return slices.Concat(upstreamFamilies(), ownFamilies(), nodeFamilies()) }

// family returns the description of a metric. The names are constants of this package or of who feeds it.
func family(name string) Family {
	all := Families()
	i := slices.IndexFunc(all, func(f Family) bool { return f.Name == name })
	return all[i]
}

func (f Family) desc() *prometheus.Desc { return prometheus.NewDesc(f.Name, f.Help, f.Labels, nil) }

func counterOf(name string) *prometheus.CounterVec {
	f := family(name)
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: f.Name, Help: f.Help}, f.Labels)
}

func histogramOf(name string) *prometheus.HistogramVec {
	f := family(name)
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: f.Name, Help: f.Help, Buckets: f.Buckets}, f.Labels)
}
