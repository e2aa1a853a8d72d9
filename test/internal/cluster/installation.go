package cluster

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"volplane.dev/volplane/internal/sidecar/manifest"
	"volplane.dev/volplane/test/internal/plane"
)

// Installation is what `volplane manifests` has made in a cluster.
type Installation struct {
	*Cluster
	T   *testing.T
	Ctx context.Context //nolint:containedctx // that of the test
	// Base is the driver's name as it is used in other names, and Space its namespace, which has the same name unless the
	// flags say otherwise.
	Base, Space string
}

// Install applies the manifests for a driver with kubectl, as an administrator would.
func (c *Cluster) Install(ctx context.Context, t *testing.T, driver string, flags ...string) *Installation {
	t.Helper()
	i := &Installation{Cluster: c, T: t, Ctx: ctx, Base: manifest.Base(driver), Space: manifest.Base(driver)}
	for _, f := range flags {
		if space, ok := strings.CutPrefix(f, "--namespace="); ok {
			i.Space = space
		}
	}
	flags = append([]string{
		"manifests", "--driver=" + driver, "--driver-image=example.com/driver:1", "--image=example.com/volplane:1",
	}, flags...)
	text, err := exec.CommandContext(ctx, plane.Bin("volplane"), flags...).Output()
	if err != nil {
		t.Fatal(err)
	}
	// The second time is an upgrade without changes.
	for range 2 {
		c.Kubectl(ctx, t, string(text), "apply", "--validate=strict", "-f", "-")
	}
	return i
}

// Kubectl runs Kubernetes' own client as the administrator. It must succeed, and warn of nothing.
func (c *Cluster) Kubectl(ctx context.Context, t *testing.T, input string, args ...string) {
	t.Helper()
	// kubectl also logs a watch that it restarts, with that word.
	if said := c.KubectlSays(ctx, t, input, args...); strings.Contains("\n"+said, "\nWarning:") {
		t.Fatalf("kubectl %s:\n%s", args[0], said)
	}
}

// KubectlSays runs kubectl, and returns what it says. It must succeed.
func (c *Cluster) KubectlSays(ctx context.Context, t *testing.T, input string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(ctx, plane.Bin("kubectl"), append(args, "--kubeconfig="+c.AdminKubeconfig())...)
	cmd.Stdin = strings.NewReader(input)
	said, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", args[0], err, said)
	}
	return string(said)
}

// ServeSnapshots has the cluster serve the custom resources of snapshots.
func (c *Cluster) ServeSnapshots(ctx context.Context, t *testing.T) {
	t.Helper()
	c.Kubectl(ctx, t, "", "apply", "-f", filepath.Join("..", "..", "standalone", "apiserver", "crds"))
}

// Must ends the test if there is an error.
func (i *Installation) Must(err error) {
	i.T.Helper()
	if err != nil {
		i.T.Fatal(err)
	}
}
