package sidecar_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"volplane.dev/volplane/internal/sidecar"
)

// controllers are upstream's controllers.
func controllers() []sidecar.Role {
	return []sidecar.Role{
		sidecar.Provisioner, sidecar.Attacher, sidecar.Resizer, sidecar.Snapshotter, sidecar.SnapshotController,
		sidecar.HealthMonitor,
	}
}

// leaves returns everything that options say to controllers, by its path.
func leaves(t *testing.T, o sidecar.Options) map[string]string {
	t.Helper()
	text, err := json.Marshal(o.ControllersOptions)
	if err != nil {
		t.Fatal(err)
	}
	var all any
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	var walk func(path string, at any)
	walk = func(path string, at any) {
		if of, ok := at.(map[string]any); ok {
			for name, below := range of {
				walk(path+"."+name, below)
			}
			return
		}
		out[path] = fmt.Sprint(at)
	}
	walk("", all)
	delete(out, ".Roles")
	return out
}

// changed returns what differs in the second of two options.
func changed(t *testing.T, before, after sidecar.Options) map[string]string {
	t.Helper()
	was, is := leaves(t, before), leaves(t, after)
	maps.DeleteFunc(is, func(path, value string) bool { return was[path] == value })
	return is
}

// several reads arguments of a process of several controllers.
func several(t *testing.T, args []string) sidecar.Options {
	t.Helper()
	var o sidecar.Options
	set := pflag.NewFlagSet("several", pflag.ContinueOnError)
	set.SetNormalizeFunc(sidecar.Normalise)
	o.AddControllers(set)
	err := set.Parse(args)
	if err == nil {
		err = o.Settle(sidecar.Provisioner, set, func(string) string { return "" })
	}
	if err != nil {
		t.Errorf("%v: %v", args, err)
	}
	return o
}

// otherwise returns a value that changes a flag, and the resulting difference in the sidecar's behaviour.
func otherwise(t *testing.T, r sidecar.Role, f sidecar.Flag) (value string, want map[string]string) {
	t.Helper()
	before, _ := parse(r.String(), "")
	for _, value = range []string{"false", "true", "7s", "7"} {
		o, problem := parse(r.String(), "--"+f.Name+"="+value)
		if want = changed(t, before, o); problem == "" && len(want) > 0 {
			break
		}
	}
	return value, want
}

// TestKeep: each flag of each sidecar means the same in a process of several controllers, or does not concern the
// sidecar's work. TestKeepInWords has the lost ones.
func TestKeep(t *testing.T) {
	elsewhere := strings.Fields("version csi-address kubeconfig master leader-election leader-election-namespace " +
		"leader-election-lease-duration leader-election-renew-deadline leader-election-retry-period " +
		"leader-election-labels kube-api-qps kube-api-burst http-endpoint metrics-address metrics-path enable-pprof v " +
		"logging-format beside-others short-leases feature-gates enable-volume-group-snapshots enable-capacity " +
		"node-deployment capacity-ownerref-level")
	for _, r := range controllers() {
		for _, f := range r.Flags() {
			if f.Ignored != "" || slices.Contains(elsewhere, f.Name) {
				kept := r.Keep([]string{"--" + f.Name + "=" + cmp.Or(f.Default, "true")})
				if f.Name != "feature-gates" && len(kept.Args)+len(kept.Lost) > 0 {
					t.Errorf("%s --%s: %+v, want nothing", r, f.Name, kept)
				}
				continue
			}
			value, want := otherwise(t, r, f)
			kept := r.Keep([]string{"--" + f.Name + "=" + value})
			got := changed(t, several(t, nil), several(t, kept.Args))
			if len(want) == 0 || !maps.Equal(got, want) {
				t.Errorf("%s --%s=%s becomes %v, which changes %v, want %v", r, f.Name, value, kept.Args, got, want)
			}
		}
	}
}

// TestKeepInWords: the results for arguments as in manifests.
func TestKeepInWords(t *testing.T) {
	for _, line := range lines(t, "kept.txt") {
		words, want, _ := strings.Cut(line, " | ")
		program, args, _ := strings.Cut(words, " ")
		role, _ := sidecar.RoleOf(program)
		k := role.Keep(strings.Fields(args))
		var off []string
		for name, on := range k.Gates {
			if !on {
				off = append(off, name)
			}
		}
		got := fmt.Sprintf("%v %v on node: %v, off: %v, lost: %s", k.Controllers, k.Args, k.OnNode, off,
			strings.Join(k.Lost, "; "))
		if got != want {
			t.Errorf("%s:\n got %s\nwant %s", words, got, want)
		}
	}
}
