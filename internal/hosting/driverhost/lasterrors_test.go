package driverhost

import (
	"fmt"
	"strings"
	"testing"

	"volplane.dev/volplane/internal/hosting/driverfile"
)

// TestLastErrors: each process of a driver has its own error, which ends with it, and not with that of another.
func TestLastErrors(t *testing.T) {
	const about = "driver d"
	var told lastErrors
	for i, c := range []struct {
		add, drop string
		want      string
	}{
		{add: "node=no socket", want: "no socket true"},
		{add: "node=no socket", want: "no socket false"},
		{add: "controller=no secret", want: "no secret; no socket true"},
		{add: "node=no secret", want: "no secret true"},
		{drop: "node", want: "no secret false"},
		{drop: "controller", want: " true"},
		{add: "node=no socket", want: "no socket true"},
		{add: "controller=no secret", want: "no secret; no socket true"},
		{drop: "all", want: " true"},
		{drop: "all", want: " false"},
	} {
		var got string
		var is bool
		if by, text, ok := strings.Cut(c.add, "="); ok {
			got, is = told.add(about, by, text)
		} else {
			got, is = told.drop(about, strings.TrimSuffix(c.drop, "all"))
		}
		if all := fmt.Sprint(got, " ", is); all != c.want {
			t.Errorf("step %d: %q, want %q", i, all, c.want)
		}
	}
	if left := told.subjects(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// TestNotReady: the answer of a controller that is not ready is reported, while the node process serves.
func TestNotReady(t *testing.T) {
	w := newDriverHost(t)
	w.put(w.process("node", driverfile.RoleNode), w.process("unready", driverfile.RoleController))
	w.until("announced", w.announced)
	w.tells("its process " + name + "-controller is not ready: FailedPrecondition: no credentials")
}
