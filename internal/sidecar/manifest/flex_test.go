package manifest_test

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/cli"
	"volplane.dev/volplane/internal/testkit/golden"
)

// flexPrinted returns what volplane flex manifest prints, and complains of.
func flexPrinted(t *testing.T, flags ...string) (out, err string) {
	t.Helper()
	var o, e bytes.Buffer
	args := append([]string{"flex", "manifest", "example.com/lofs", "--image", "registry.example.com/lofs:1"}, flags...)
	programs := cli.Programs{DriverControllers: app.ClusterControllers(), Rights: app.DriverControllerRights}
	code := cli.Main(t.Context(), args, cli.Streams{Out: &o, Err: &e}, "test", programs)
	if (code == 0) != (e.Len() == 0) {
		t.Errorf("it ended with %d and says %s", code, &e)
	}
	return o.String(), e.String()
}

// TestFlexDaemonSet: a driver on each node (F-055, F-058, F-059).
func TestFlexDaemonSet(t *testing.T) {
	for file, flags := range map[string][]string{
		"flex": nil,
		"flex-everything": {
			"--source=/drivers/lofs", "--dir=/etc/kubernetes/volumeplugins", "--payload-dir=/var/lib/flex-payload",
			"--selinux-type=spc_t", "--namespace=storage",
		},
	} {
		out, _ := flexPrinted(t, flags...)
		golden.Equal(t, filepath.Join("testdata", file+".yaml"), out)
		var set appsv1.DaemonSet
		if err := yaml.UnmarshalStrict([]byte(out), &set); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

func TestFlexRefusals(t *testing.T) {
	for _, flags := range [][]string{
		{"--dir=relative"}, {"--dir=/"}, {"--dir=/a/../b"}, {"--source=lofs"}, {"--payload-dir=x"},
	} {
		if out, err := flexPrinted(t, flags...); out != "" || !strings.Contains(err, "is not an absolute path") {
			t.Errorf("%v: %s%s", flags, out, err)
		}
	}
}
