package observe

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

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
	FromMetadata    From = "snapshot-metadata"
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
