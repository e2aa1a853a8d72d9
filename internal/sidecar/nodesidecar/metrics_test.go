package nodesidecar

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestMetrics: what is served of some calls, in the form that Prometheus reads.
func TestMetrics(t *testing.T) {
	var m metrics
	const probe = "/csi.v1.Identity/Probe"
	m.call("d.example.com", probe, "OK", 100*time.Millisecond)
	m.call("d.example.com", probe, "OK", 3*time.Second)
	m.call("d.example.com", probe, "OK", time.Hour)
	m.call("", probe, "Unavailable", time.Millisecond)
	got := string(m.answer(t.Context(), nil).Body)
	const ok = `{driver_name="d.example.com",grpc_status_code="OK",method_name="` + probe + `"`
	for _, want := range []string{
		"# TYPE csi_sidecar_operations_seconds histogram\n",
		"csi_sidecar_operations_seconds_bucket" + ok + `,le="0.1"} 1` + "\n",
		"csi_sidecar_operations_seconds_bucket" + ok + `,le="2.5"} 1` + "\n",
		"csi_sidecar_operations_seconds_bucket" + ok + `,le="5"} 2` + "\n",
		"csi_sidecar_operations_seconds_bucket" + ok + `,le="600"} 2` + "\n",
		"csi_sidecar_operations_seconds_bucket" + ok + `,le="+Inf"} 3` + "\n",
		"csi_sidecar_operations_seconds_sum" + ok + "} 3603.1\n",
		"csi_sidecar_operations_seconds_count" + ok + "} 3\n",
		`csi_sidecar_operations_seconds_count{driver_name="unknown-driver",grpc_status_code="Unavailable",method_name="` +
			probe + `"} 1` + "\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%s\nlacks %s", got, want)
		}
	}
	for code := range 3 * maxSeries {
		m.call("d.example.com", probe, fmt.Sprintf("Code(%d)", code), time.Millisecond)
	}
	if n := strings.Count(string(m.answer(t.Context(), nil).Body), "_count{"); n > maxSeries+1 {
		t.Errorf("a driver with many codes has %d series", n)
	}
}
