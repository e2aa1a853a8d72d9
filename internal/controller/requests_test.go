package controller

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// TestRequests: a request stays until it is forgotten, separately for each claim, and the provisioner is notified of
// new ones only.
func TestRequests(t *testing.T) {
	r := NewRequests()
	var woken []types.UID
	steps := []struct {
		name string
		do   func()
		// woken are the claims that the provisioner is notified of; a and b are the requests then.
		woken []types.UID
		a, b  string
		serve bool
	}{
		{"nobody serves", func() {}, nil, "", "", false},
		{"it is asked for all the same", func() { r.Ask("a", "d") }, nil, "d", "", false},
		{"somebody serves", func() {
			r.Serve(func(d, _ string) bool { return d == "d" }, func(c types.UID) { woken = append(woken, c) })
		}, nil, "d", "", true},
		{"the same is no news", func() { r.Ask("a", "d") }, nil, "d", "", true},
		{"another claim", func() { r.Ask("b", "d") }, []types.UID{"b"}, "d", "d", true},
		{"another driver", func() { r.Ask("b", "e") }, []types.UID{"b"}, "d", "e", true},
		{"one is forgotten", func() { r.Forget("b") }, nil, "d", "", true},
		{"and asked for again", func() { r.Ask("b", "e") }, []types.UID{"b"}, "d", "e", true},
	}
	for _, s := range steps {
		woken = nil
		s.do()
		if got := r.Asked("a"); got != s.a {
			t.Errorf("%s: for a is asked %q, want %q", s.name, got, s.a)
		}
		if got := r.Asked("b"); got != s.b {
			t.Errorf("%s: for b is asked %q, want %q", s.name, got, s.b)
		}
		if !slices.Equal(woken, s.woken) || r.Served("d", "n") != s.serve || r.Served("e", "n") {
			t.Errorf("%s: notified of %v, want %v; serves d: %v, e: %v", s.name, woken, s.woken, r.Served("d", "n"),
				r.Served("e", "n"))
		}
	}
}
