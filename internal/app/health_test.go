package app

import (
	"slices"
	"testing"
	"time"

	"volplane.dev/volplane/internal/controller/health"
	"volplane.dev/volplane/internal/sidecar"
)

// TestHealthMonitor: the options of the health monitor, and where its watcher of nodes runs.
func TestHealthMonitor(t *testing.T) {
	o := sidecar.HealthMonitorOptions{Every: time.Hour, WatchesNodes: true}
	o.Timeout, o.Workers = time.Second, 7
	if got, want := (Sidecars{Identity: "id", Choices: sidecar.Choices{HealthMonitor: o}}).health(), (health.Options{
		Every: time.Hour, Timeout: time.Second, Volumes: 7, Wanted: true,
	}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	watcher := health.WatcherDeclaration().Name
	for _, c := range []struct {
		roles []string
		want  bool
	}{
		{[]string{"attacher", "health"}, true}, {[]string{"attacher"}, false}, {nil, false},
	} {
		roles := withNodeWatcher(c.roles, o)
		if runs := (ControlPlaneOptions{Roles: roles}).runs(watcher); runs != c.want {
			t.Errorf("beside %v the watcher runs: %v", c.roles, runs)
		}
	}
	without := withNodeWatcher([]string{"health"}, sidecar.HealthMonitorOptions{})
	if slices.Contains(without, watcher) {
		t.Error("it runs without being asked for")
	}
}
