package nodes

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"volplane.dev/volplane/test/internal/plane"
)

// TestHosts runs testdata/hosts/*.txtar on three hosts: network namespaces with one network. The commands on1, on2 and
// on3 run a program on them; host 1 is at 198.18.0.1. $DIR is a directory on the disk, for mounts.
func TestHosts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", "hosts"), RequireExplicitExec: true, Setup: threeHosts,
	})
}

func threeHosts(e *testscript.Env) error {
	dir, err := os.MkdirTemp("", "vp-")
	if err != nil {
		return err
	}
	e.Setenv("DIR", dir)
	e.Defer(func() { _ = os.RemoveAll(dir) })
	bin := filepath.Join(e.WorkDir, "on")
	if err := os.Mkdir(bin, 0o755); err != nil {
		return err
	}
	name := fmt.Sprintf("vp%d-%s", os.Getpid(), filepath.Base(e.WorkDir)) // scripts run side by side
	for n := 1; n <= 3; n++ {
		host := fmt.Sprintf("%s-%d", name, n)
		e.Defer(func() { _ = exec.Command("ip", "netns", "del", host).Run() })
		run := fmt.Sprintf("#!/bin/sh\nexec nsenter --net=/run/netns/%s \"$@\"\n", host)
		if err := os.WriteFile(filepath.Join(bin, fmt.Sprintf("on%d", n)), []byte(run), 0o755); err != nil {
			return err
		}
	}
	path := []string{bin, filepath.Dir(plane.Bin("kubectl")), e.Getenv("PATH")}
	e.Setenv("PATH", strings.Join(path, string(os.PathListSeparator)))
	e.Setenv("HOME", e.WorkDir)
	return connect(name)
}

// connect makes the namespaces NAME-1 to NAME-3. The first one has a bridge to which the others are connected.
func connect(name string) error {
	for _, line := range strings.Split(strings.TrimSpace(`
netns add NAME-1
netns add NAME-2
netns add NAME-3
-n NAME-1 link set lo up
-n NAME-1 link add net type bridge
-n NAME-1 addr add 198.18.0.1/24 dev net
-n NAME-1 link set net up
-n NAME-1 link add to2 type veth peer name net netns NAME-2
-n NAME-1 link add to3 type veth peer name net netns NAME-3
-n NAME-1 link set to2 master net up
-n NAME-1 link set to3 master net up
-n NAME-2 addr add 198.18.0.2/24 dev net
-n NAME-3 addr add 198.18.0.3/24 dev net
-n NAME-2 link set lo up
-n NAME-3 link set lo up
-n NAME-2 link set net up
-n NAME-3 link set net up`), "\n") {
		out, err := exec.Command("ip", strings.Fields(strings.ReplaceAll(line, "NAME", name))...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("ip %s: %w: %s", line, err, out)
		}
	}
	return nil
}
