package observe

import (
	"maps"
	"testing"
	"time"
)

// TestPace: calls count for a minute, each driver's for itself, and a driver that was called once is reported with 0.
func TestPace(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	var p pace
	for range 30 {
		p.count("a", now)
	}
	p.count("b", now.Add(-50*time.Second))
	for range 6 {
		p.count("b", now)
	}
	for _, c := range []struct {
		after time.Duration
		want  map[string]float64
	}{
		{0, map[string]float64{"a": 0.5, "b": 7.0 / 60}},
		{20 * time.Second, map[string]float64{"a": 0.5, "b": 0.1}},
		{2 * time.Minute, map[string]float64{"a": 0, "b": 0}},
	} {
		if got := p.at(now.Add(c.after)); !maps.Equal(got, c.want) {
			t.Errorf("after %s the pace is %v, want %v", c.after, got, c.want)
		}
	}
	p.count("a", now.Add(3*time.Minute))
	if got := p.at(now.Add(3 * time.Minute))["a"]; got != 1.0/60 {
		t.Errorf("a slot that is used anew counts %v", got)
	}
}

// TestValues: a gauge is read alone, and one that no function sets has no values.
func TestValues(t *testing.T) {
	r := New("v")
	r.Gauge(DriverUp, func(set Set) { set(1, "a") })
	got := map[string]float64{}
	r.Values(DriverUp, func(value float64, labels ...string) { got[labels[0]] = value })
	r.Values(Leftover, func(float64, ...string) { t.Error("a gauge that nobody sets has a value") })
	if !maps.Equal(got, map[string]float64{"a": 1}) {
		t.Errorf("got %v", got)
	}
	r.Call("", "/m", "OK", time.Millisecond)
	if len(r.Pace()) != 1 {
		t.Errorf("pace %v", r.Pace())
	}
}
