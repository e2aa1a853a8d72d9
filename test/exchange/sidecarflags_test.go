package exchange

import (
	"maps"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"volplane.dev/volplane/internal/sidecar"
	"volplane.dev/volplane/test/internal/plane"
)

// TestFlagsAreUpstreams: the table of flags has exactly those of upstream's programs, with their defaults, and knows
// their feature gates.
func TestFlagsAreUpstreams(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"csi-provisioner", "csi-attacher", "csi-resizer", "csi-snapshotter", "snapshot-controller",
	} {
		t.Run(name, func(t *testing.T) {
			help, _ := exec.Command(plane.Bin(name), "--help").CombinedOutput()
			role, _ := sidecar.RoleOf(name)
			want, got := defaultsIn(string(help)), map[string]string{}
			for _, f := range role.Flags() {
				if !f.Old {
					got[f.Name] = strings.TrimPrefix(f.Default, "false")
				}
			}
			if len(want) < 20 {
				t.Fatalf("the help has only %d flags:\n%s", len(want), help)
			}
			for flag, value := range want {
				if ours, known := got[flag]; known && ours != value && (value != "" || ours != "0") {
					t.Errorf("--%s is %q by default, in the table %q", flag, value, ours)
				}
			}
			theirs, ours := slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got))
			if diff := cmp.Diff(theirs, ours); diff != "" {
				t.Errorf("flags of the program, and of the table (+):\n%s", diff)
			}
			checkGates(t, role, name, string(help))
		})
	}
}

// checkGates requires that the role accepts all gates in the help of upstream's program.
func checkGates(t *testing.T, role sidecar.Role, name, help string) {
	t.Helper()
	found := regexp.MustCompile(`(?m)^\s+(?:Options are:\s*)?(\w+)=true\|false \(`).FindAllStringSubmatch(help, -1)
	if len(found) < 2 {
		t.Fatalf("the help has only %d gates", len(found))
	}
	for _, gate := range found {
		_, _, err := role.Parse(name, []string{"--feature-gates=" + gate[1] + "=false"}, func(string) string { return "" })
		if err != nil {
			t.Error(err)
		}
	}
}

// defaultsIn returns the flags of a help of package flag or of pflag, with their defaults.
func defaultsIn(help string) map[string]string {
	flag := regexp.MustCompile(`^ +(?:-\w, )?--?([a-z][\w-]*)(?:[ =[]|$)`)
	value := regexp.MustCompile(`\(default "?([^")]*)"?\)`)
	out, last := map[string]string{}, ""
	for _, line := range strings.Split(help, "\n") {
		if found := flag.FindStringSubmatch(line); found != nil {
			last = found[1]
			out[last] = ""
		}
		if found := value.FindAllStringSubmatch(line, -1); found != nil && last != "" {
			out[last] = found[len(found)-1][1]
		}
	}
	delete(out, "help")
	if out["leader-election-labels"] == "map[]" {
		out["leader-election-labels"] = ""
	}
	return out
}
