package nodesidecar

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"volplane.dev/volplane/internal/process/healthz"
)

const (
	// metricName is what upstream's livenessprobe serves.
	metricName = "csi_sidecar_operations_seconds"
	// maxSeries bounds the series: a driver may answer with any number as its code.
	maxSeries = 64
	expoType  = "text/plain; version=0.0.4; charset=utf-8"
)

// bounds returns the upper bounds of the histogram's buckets, in seconds; they are upstream's.
func bounds() [13]float64 { return [13]float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600} }

// metrics counts the calls of a driver, and says so as Prometheus reads it. Prometheus' own library would take more
// memory than the rest of the program. The zero value is ready for use.
type metrics struct {
	mu     sync.Mutex
	series map[series]*histogram
}

type series struct{ driver, method, code string }

type histogram struct {
	// buckets counts the calls that took no longer than each bound, and more than the one before.
	buckets [13]int
	count   int
	sum     float64
}

// call counts a call.
func (m *metrics) call(driver, method, code string, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.series == nil {
		m.series = map[series]*histogram{}
	}
	key := series{cmp.Or(driver, "unknown-driver"), method, code}
	if m.series[key] == nil && len(m.series) >= maxSeries {
		key = series{code: "other"}
	}
	h := m.series[key]
	if h == nil {
		h = &histogram{}
		m.series[key] = h
	}
	h.count++
	h.sum += took.Seconds()
	all := bounds()
	if i, _ := slices.BinarySearch(all[:], took.Seconds()); i < len(all) {
		h.buckets[i]++
	}
}

// answer returns the metrics in Prometheus' text format.
func (m *metrics) answer(context.Context, url.Values) healthz.Answer {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out bytes.Buffer
	fmt.Fprintf(&out, "# HELP %s [ALPHA] Container Storage Interface operation duration with gRPC error code status "+
		"total\n# TYPE %[1]s histogram\n", metricName)
	order := slices.SortedFunc(maps.Keys(m.series), func(a, b series) int {
		return cmp.Or(cmp.Compare(a.driver, b.driver), cmp.Compare(a.method, b.method), cmp.Compare(a.code, b.code))
	})
	for _, s := range order {
		h, below := m.series[s], 0
		// None of the three has a character that must be escaped: the driver's name is a domain.
		labels := fmt.Sprintf(`driver_name="%s",grpc_status_code="%s",method_name="%s"`, s.driver, s.code, s.method)
		for i, n := range h.buckets {
			below += n
			fmt.Fprintf(&out, "%s_bucket{%s,le=\"%v\"} %d\n", metricName, labels, bounds()[i], below)
		}
		fmt.Fprintf(&out, "%s_bucket{%s,le=\"+Inf\"} %d\n%[1]s_sum{%[2]s} %[4]v\n%[1]s_count{%[2]s} %[3]d\n", metricName,
			labels, h.count, h.sum)
	}
	return healthz.Answer{Code: http.StatusOK, Type: expoType, Body: out.Bytes()}
}
