package cli_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/cli"
	"volplane.dev/volplane/internal/decide/adopt"
	"volplane.dev/volplane/internal/sidecar"
)

// said returns what a command prints, and what it complains of.
func said(t *testing.T, args ...string) (out, complaint string) {
	t.Helper()
	var o, e bytes.Buffer
	cli.Main(t.Context(), args, cli.Streams{Out: &o, Err: &e}, "test", cli.Programs{
		DriverControllers: app.ClusterControllers(), Rights: app.DriverControllerRights,
	})
	return o.String(), e.String()
}

// everyArgument returns an argument for each flag of a sidecar of which something is kept.
func everyArgument(r sidecar.Role) []string {
	var out []string
	for _, f := range r.Flags() {
		for _, value := range []string{"true", "7s", "7"} {
			argument := "--" + f.Name + "=" + value
			if k := r.Keep([]string{argument}); len(k.Args) > 0 {
				out = append(out, argument)
				break
			}
		}
	}
	return out
}

// TestKeptArgumentsAreUnderstood: 'volplane controller' takes the controllers and the arguments that manifests keep of
// a vendor's sidecars.
func TestKeptArgumentsAreUnderstood(t *testing.T) {
	vendors := adopt.Workload{Kind: "Deployment", Namespace: "storage", Name: "vendors", Pod: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "driver", Image: "driver", Args: []string{"--name=csi.example.com"}}},
	}}
	for _, name := range sidecar.Programs() {
		r, _ := sidecar.RoleOf(name)
		args := everyArgument(r)
		if r != sidecar.Snapshotter && r != sidecar.SnapshotController {
			args = append(args, "--feature-gates=Topology=false")
		}
		vendors.Pod.Containers = append(vendors.Pod.Containers, corev1.Container{Name: name, Image: name, Args: args})
	}
	plan := adopt.Decide(adopt.Facts{
		Driver: "csi.example.com", ManagedBy: "volplane", Workloads: []adopt.Workload{vendors}, WithoutNodes: new(bool),
	})
	if len(plan.ControllerArgs) < 30 || len(plan.Controllers) < 8 || len(plan.Refused) > 0 {
		t.Fatalf("too little is kept: %+v", plan)
	}
	for _, c := range plan.Controllers {
		if !slices.Contains(app.ClusterControllers(), c) {
			t.Errorf("there is no controller %s", c)
		}
	}
	args := append([]string{"controller", "--controllers=" + strings.Join(plan.Controllers, ",")}, plan.ControllerArgs...)
	if _, complaint := said(t, append(args, "--help")...); complaint != "" {
		t.Errorf("%v: %s", args, complaint)
	}
}

// TestRightsOfTheNodeWatcher: an argument of the health controller starts another one, which has its rights.
func TestRightsOfTheNodeWatcher(t *testing.T) {
	args := []string{
		"manifests", "--driver=csi.example.com", "--driver-image=d", "--image=v", "--controllers=health",
	}
	without, complaint := said(t, args...)
	with, more := said(t, append(args, "--controllers-args=--health-monitor-enable-node-watcher=true")...)
	if complaint+more != "" || strings.Contains(without, "- nodes\n") || !strings.Contains(with, "- nodes\n") {
		t.Errorf("%s%s: without the watcher\n%s\nand with it\n%s", complaint, more, without, with)
	}
}
