package observe

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

// text returns all counts as they are served.
func text(t *testing.T, r *Registry) string {
	t.Helper()
	var b strings.Builder
	for _, f := range gathered(t, r) {
		if _, err := expfmt.MetricFamilyToText(&b, f); err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

func gathered(t *testing.T, r *Registry) []*dto.MetricFamily {
	t.Helper()
	all, err := r.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// has fails unless the counts have each line.
func has(t *testing.T, r *Registry, lines ...string) {
	t.Helper()
	all := strings.Split(text(t, r), "\n")
	for _, want := range lines {
		if !slices.Contains(all, want) {
			t.Errorf("no line %s in\n%s", want, strings.Join(all, "\n"))
		}
	}
}

// full is a registry in which each metric has a value.
func full() *Registry {
	r := New("v1.2.3").WithProcess()
	r.Call("d.example", "/csi.v1.Controller/CreateVolume", "OK", time.Second)
	r.Stream("d.example", "MetadataAllocated", "OK", time.Second)
	for _, err := range []error{nil, errors.New("no room")} {
		r.Provisioned("fast", "", time.Second, err)
		r.Deleted("fast", time.Second, err)
	}
	q := r.Queue("binder", func() Load { return Load{2, 3 * time.Second, 2 * time.Second} })
	q.Added()
	q.Begun(time.Second)
	q.Ended("claim", "ok", time.Second)
	q.Retried()
	s := r.Snapshots()
	s.Changed(Snapshot{UID: "u"})
	s.Changed(Snapshot{UID: "u", Driver: "d.example", Ready: true})
	r.Follow(&led{})
	_, _ = r.Requests(failing{}).RoundTrip(httptest.NewRequest(http.MethodGet, "https://api.example/x", nil))
	for _, f := range Families() {
		if f.Type == gauge && !slices.Contains(kept(), f.Name) {
			r.Gauge(f.Name, func(set Set) { set(1, f.Labels...) })
		}
	}
	return r
}

// kept are the gauges that the registry has by itself.
func kept() []string {
	return []string{nameBuild, nameLeader, nameDepth, nameUnfinished, nameLongest, nameSnapshotsOpen}
}

type failing struct{}

func (failing) RoundTrip(*http.Request) (*http.Response, error) { return nil, errors.New("no route") }

// TestFamilies: the table has all metrics, with the types and the labels with which they are gathered.
func TestFamilies(t *testing.T) {
	want := map[string]Family{}
	for _, f := range Families() {
		if _, twice := want[f.Name]; twice {
			t.Errorf("%s is there twice", f.Name)
		}
		want[f.Name] = f
	}
	for _, g := range gathered(t, full()) {
		if strings.HasPrefix(g.GetName(), "go_") || strings.HasPrefix(g.GetName(), "process_") {
			continue
		}
		f, ok := want[g.GetName()]
		delete(want, g.GetName())
		var labels []string
		for _, l := range g.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		sorted := slices.Sorted(slices.Values(f.Labels))
		if !ok || f.Type != strings.ToLower(g.GetType().String()) || !slices.Equal(labels, sorted) || f.Help != g.GetHelp() {
			t.Errorf("gathered as %s %s %v, described as %+v", g.GetName(), g.GetType(), labels, f)
		}
	}
	for name := range want {
		t.Errorf("%s is not gathered", name)
	}
}

// TestLint: the names are as Prometheus wants them.
func TestLint(t *testing.T) {
	problems, err := promlint.NewWithMetricFamilies(gathered(t, full())).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// TestCounts: what is reported is counted under upstream's names.
func TestCounts(t *testing.T) {
	r := full()
	r.Call("", "/csi.v1.Identity/Probe", "Unavailable", time.Second)
	has(t, r,
		`csi_sidecar_operations_seconds_count{driver_name="d.example",grpc_status_code="OK",`+
			`method_name="/csi.v1.Controller/CreateVolume"} 1`,
		`csi_sidecar_operations_seconds_count{driver_name="unknown-driver",grpc_status_code="Unavailable",`+
			`method_name="/csi.v1.Identity/Probe"} 1`,
		`controller_persistentvolumeclaim_provision_total{class="fast",source=""} 1`,
		`controller_persistentvolumeclaim_provision_failed_total{class="fast",source=""} 1`,
		`controller_persistentvolumeclaim_provision_duration_seconds_count{class="fast",source=""} 1`,
		`controller_persistentvolume_delete_failed_total{class="fast"} 1`,
		`controller_persistentvolume_delete_duration_seconds_count{class="fast"} 1`,
		`workqueue_depth{name="binder"} 2`, `workqueue_unfinished_work_seconds{name="binder"} 3`,
		`workqueue_longest_running_processor_seconds{name="binder"} 2`, `workqueue_adds_total{name="binder"} 1`,
		`volplane_operation_duration_seconds_count{controller="binder",operation="claim",result="ok"} 1`,
		`rest_client_requests_total{code="<error>",host="api.example",method="GET"} 1`,
	)
}

// TestGaugeIsReplaced: of functions for the same gauge the last one counts, as when controllers restart, and of
// values with the same labels the first one.
func TestGaugeIsReplaced(t *testing.T) {
	r := New("")
	for i := range 3 {
		r.Gauge(Intents, func(set Set) {
			set(float64(i))
			set(7)
		})
	}
	has(t, r, "volplane_intents 2")
}

// TestBadLabel: a label that is not UTF-8 hides no other metric.
func TestBadLabel(t *testing.T) {
	r := New("")
	r.Gauge(DriverUp, func(set Set) { set(1, "\xff") })
	r.Gauge(Intents, func(set Set) { set(7) })
	all, err := r.Gatherer().Gather()
	if err == nil || !slices.ContainsFunc(all, func(f *dto.MetricFamily) bool { return f.GetName() == Intents }) {
		t.Errorf("%v, %d families", err, len(all))
	}
}

// TestNil: a process without a server counts nothing.
func TestNil(t *testing.T) {
	var r *Registry
	r.Call("d", "m", "OK", time.Second)
	r.Provisioned("", "", 0, nil)
	r.Deleted("", 0, nil)
	r.Gauge(Intents, nil)
	r.Follow(&led{})
	if r.WithProcess() != nil || r.Queue("q", nil) != nil || r.Snapshots() != nil ||
		r.Gatherer() != nil {
		t.Error("a nil registry is not nothing")
	}
	for _, r := range []*Registry{r, New("")} {
		if got := r.Requests(failing{}); got != (failing{}) {
			t.Errorf("requests go through %v", got)
		}
	}
}
