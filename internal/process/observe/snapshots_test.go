package observe

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestSnapshots: each line is a life of a snapshot, of which a step takes a second, and what it adds.
func TestSnapshots(t *testing.T) {
	is := func(change func(*Snapshot)) Snapshot {
		s := Snapshot{UID: "u", Driver: "d"}
		change(&s)
		return s
	}
	begun, created := is(func(*Snapshot) {}), is(func(s *Snapshot) { s.Created = true })
	ready := is(func(s *Snapshot) { s.Created, s.Ready = true, true })
	deleting := is(func(s *Snapshot) { s.Created, s.Ready, s.Deleting = true, true, true })
	gone, given := is(func(s *Snapshot) { s.Gone = true }), is(func(s *Snapshot) { s.PreProvisioned = true })
	givenReady := is(func(s *Snapshot) { s.PreProvisioned, s.Ready = true, true })
	unknown := is(func(s *Snapshot) { s.Driver = "" })
	for _, c := range []struct {
		name string
		life []Snapshot
		want []string
		open string
	}{
		{"is begun", []Snapshot{begun}, nil, "2"},
		{"is created", []Snapshot{begun, created}, []string{"d CreateSnapshot dynamic success 1"}, "1"},
		{"is ready", []Snapshot{begun, begun, created, ready}, []string{
			"d CreateSnapshot dynamic success 2", "d CreateSnapshotAndReady dynamic success 3",
		}, "0"},
		{"was there before", []Snapshot{ready, ready}, nil, "0"},
		{"is given", []Snapshot{given, givenReady}, []string{"d CreateSnapshotAndReady pre-provisioned success 1"}, "0"},
		{"is deleted", []Snapshot{ready, deleting, deleting, gone}, []string{"d DeleteSnapshot dynamic success 2"}, "0"},
		{"is given up", []Snapshot{unknown, deleting, gone}, []string{
			"d CreateSnapshot dynamic cancel 2", "d CreateSnapshotAndReady dynamic cancel 2",
			"d DeleteSnapshot dynamic success 1",
		}, "0"},
		{"has no driver", []Snapshot{unknown, is(func(s *Snapshot) { s.Driver, s.Created = "", true })}, []string{
			"unknown CreateSnapshot dynamic success 1",
		}, "1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := New("")
				s := r.Snapshots()
				for i, step := range c.life {
					if i > 0 {
						<-time.After(time.Second)
					}
					s.Changed(step)
				}
				if got := sums(text(t, r)); !slices.Equal(got, c.want) {
					t.Errorf("got %q", got)
				}
				has(t, r, "snapshot_controller_operations_in_flight "+c.open)
			})
		})
	}
}

// sums returns "driver operation type status seconds" of each operation.
func sums(text string) []string {
	var out []string
	for line := range strings.Lines(text) {
		labels, sum, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), nameSnapshots+"_sum{"), "} ")
		if !ok || !strings.HasPrefix(line, nameSnapshots+"_sum{") {
			continue
		}
		values := map[string]string{}
		for l := range strings.SplitSeq(labels, ",") {
			key, value, _ := strings.Cut(l, "=")
			values[key] = strings.Trim(value, `"`)
		}
		out = append(out, strings.Join([]string{
			values["driver_name"], values["operation_name"], values["snapshot_type"], values["operation_status"], sum,
		}, " "))
	}
	return out
}
