package upstream

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	settings "volplane.dev/volplane/internal/process/options"
)

// Mounting configures a driver whose volumes are tmpfs, because the node agent checks that a mount exists.
func Mounting(c *csitest.Config) {
	TwoNodes(c)
	c.Hooks = map[string]func(any) error{
		"NodePublishVolume": func(req any) error {
			target := req.(*csipb.NodePublishVolumeRequest).GetTargetPath()
			if err := os.MkdirAll(target, 0o750); err != nil {
				return err
			}
			return unix.Mount("none", target, "tmpfs", 0, "size=1m")
		},
		"NodeUnpublishVolume": func(req any) error {
			target := req.(*csipb.NodeUnpublishVolumeRequest).GetTargetPath()
			return errors.Join(unix.Unmount(target, 0), os.Remove(target))
		},
	}
}

// TwoNodes gives a driver the nodes n1 and n2.
func TwoNodes(c *csitest.Config) { c.NodeID, c.OtherNodes = "id-n1", []string{"id-n2"} }

// RunAgent runs volplane's node agent for a node over a directory until the test
// ends.
func RunAgent(t *testing.T, api Server, node, root string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended, log := make(chan error, 1), &LastWords{}
	go func() {
		ended <- app.Node(ctx, settings.NodeOptions{
			Name: node, RootDir: root, Config: api.ClientConfig("system:node:"+node, "system:nodes"),
			Drivers: csi.NewSet(), Log: slog.New(slog.NewTextHandler(log, nil)),
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the node agent said:\n%s", log)
		}
	})
}

// Zone is the driver's topology key.
const Zone = "topology.test/zone"

// Leading adds flags with which a lease expires soon, but not merely because the machine is busy.
func Leading(flags ...string) []string {
	return append(flags, "--leader-election-lease-duration=12s", "--leader-election-renew-deadline=10s",
		"--leader-election-retry-period=500ms")
}

// SyncPeriod is the resync period of Kubernetes' binder, which does much of its work only then.
const SyncPeriod = 200 * time.Millisecond

// LongestRetry is the longest back-off of Kubernetes' provisioner.
const LongestRetry = 400 * time.Millisecond

// Server is an API server, volplane's or Kubernetes' own.
type Server interface {
	AdminConfig() *rest.Config
	AdminKubeconfig() string
	ClientConfig(user string, groups ...string) *rest.Config
}

// TheirBinder has the controllers of Kubernetes that bind claims and volumes.
var TheirBinder = []string{
	"persistentvolume-binder-controller", "persistentvolume-protection-controller",
	"persistentvolumeclaim-protection-controller",
}

// StartDriver starts a driver with all capabilities, without topology, and connects to it.
func StartDriver(t *testing.T, change ...func(*csitest.Config)) (*csitest.Driver, *csi.Set) {
	t.Helper()
	config := csitest.Full()
	config.Segments, config.Plugin.AccessibilityConstraints = nil, false
	for _, f := range change {
		f(&config)
	}
	driver := csitest.Start(t, config)
	d, err := csi.Dial(t.Context(), driver.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	drivers := csi.NewSet()
	drivers.Put(d)
	return driver, drivers
}
