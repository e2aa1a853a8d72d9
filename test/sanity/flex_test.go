package sanity

import (
	"context"
	"flag"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"

	"volplane.dev/volplane/internal/flex"
	"volplane.dev/volplane/internal/testkit"
)

// patience bounds what must not hang.
const patience = 2 * time.Minute

const config = `apiVersion: volplane.dev/v1alpha1
kind: FlexConfig
drivers:
  example.com/lofs: {provision: true}
`

// TestSanity plays csi-sanity against the example driver that attaches, with
// real loop devices and mounts. Cases about unknown volumes and nodes are left out: a
// FlexVolume driver does not report which exist.
func TestSanity(t *testing.T) {
	dir, err := os.MkdirTemp("/tmp", "sanity-")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must(t, os.MkdirAll(filepath.Join(dir, "plugins/example.com~lofs"), 0o755))
	text, err := os.ReadFile("../../examples/flex/lofs/lofs")
	must(t, err)
	// The suite's names of volumes are long and have capitals, and mounted filesystems grow only with more rights than a
	// test may have.
	script := strings.NewReplacer("/var/lib/lofs", filepath.Join(dir, "pool"), "[a-z0-9.-]", "[a-zA-Z0-9.-]",
		"[!a-z0-9.-]", "[!a-zA-Z0-9.-]", `"$name" 63`, `"$name" 250`, "said=$(resize2fs", "said=$(true").Replace(string(text))
	must(t, os.WriteFile(filepath.Join(dir, "plugins/example.com~lofs/lofs"), []byte(script), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "config"), []byte(config), 0o600))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- flex.Bridge(ctx, flex.BridgeOptions{
			Node: "node", PluginDir: filepath.Join(dir, "plugins"), RootDir: filepath.Join(dir, "root"),
			SocketDir:  filepath.Join(dir, "s"),
			ConfigFile: filepath.Join(dir, "config"), Log: slog.New(slog.DiscardHandler),
		})
	}()
	c := sanity.NewTestConfig()
	socket := filepath.Join(dir, "s/lofs.example.com/csi.sock")
	c.Address = "unix:" + socket
	c.TargetPath, c.StagingPath = filepath.Join(dir, "target"), filepath.Join(dir, "staging")
	c.TestVolumeSize = 32 << 20
	c.TestVolumeParameters = map[string]string{"file": "${pv.name}", "size": "32Mi"}
	await(t, socket)
	must(t, flag.Set("ginkgo.skip", strings.Join([]string{
		"ControllerPublishVolume should fail when the volume does not exist",
		"ControllerPublishVolume should fail when the node does not exist",
	}, "|")))
	sanity.Test(t, c)
	cancel()
	must(t, <-ended)
	if left, _ := filepath.Glob(filepath.Join(dir, "root/state/volumes/*/*/*")); len(left) > 0 {
		t.Errorf("records are left: %v", left)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// await waits for the driver to be served.
func await(t *testing.T, socket string) {
	t.Helper()
	testkit.Eventually(t, patience, testkit.Error(func() error {
		c, err := net.Dial("unix", socket)
		if err != nil {
			return err
		}
		return c.Close()
	}))
}
