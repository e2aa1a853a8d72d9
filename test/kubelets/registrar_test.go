package kubelets

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/csi/registrar"
	"volplane.dev/volplane/internal/hosting/local"
	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/test/internal/cluster"
	"volplane.dev/volplane/test/internal/plane"
	"volplane.dev/volplane/test/internal/upstream"
)

// TestRegistrarRealKubelet: a kubelet knows a driver while `volplane registrar` runs beside it, even after each of the
// two was killed. The kubelet forgets the driver when the registrar is asked to stop. When the kubelet refuses the
// driver, the registrar ends with the reason (S1-003, S1-013).
func TestRegistrarRealKubelet(t *testing.T) {
	c := cluster.Start(t)
	r := &registered{Cluster: c, t: t, root: c.Kubelet(t, "n1")}
	var cancel context.CancelFunc
	r.ctx, cancel = context.WithTimeout(t.Context(), cluster.MountLimit)
	defer cancel()
	stop := r.serve("id-1")
	first := r.announce()
	r.known("id-1")
	first.Kill()
	second := r.announce()
	r.known("id-1")
	// The driver's answers about its node are read again.
	stop()
	r.serve("id-2")
	r.known("id-2")
	second.End()
	r.known("")
	if _, err := os.Lstat(registrar.Path(r.registry(), volume.LocalDriver)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the registration socket is left: %v", err)
	}
	if said := r.refused(r.flags("/nowhere/csi.sock")...); !strings.Contains(said, "/nowhere/csi.sock") {
		t.Errorf("a registrar whose driver is not to be reached said %s", said)
	}
}

// TestTopologyUnderNodeRestriction: a kubelet may set labels with a driver's own prefix, but not labels
// that are reserved for administrators. Then it refuses the driver, and the registrar says why (S1-098).
func TestTopologyUnderNodeRestriction(t *testing.T) {
	c := cluster.Start(t, "--enable-admission-plugins=NodeRestriction")
	r := &registered{Cluster: c, t: t, root: c.Kubelet(t, "n1")}
	var cancel context.CancelFunc
	r.ctx, cancel = context.WithTimeout(t.Context(), cluster.MountLimit)
	defer cancel()
	topology := func(key string) *csitest.Driver {
		config := csitest.Full()
		config.Segments = map[string]string{key: "a"}
		return csitest.Start(t, config)
	}
	beside := func(d *csitest.Driver) []string {
		return []string{
			"registrar", "--csi-address=" + d.Socket, "--kubelet-registration-path=" + d.Socket,
			"--plugin-registration-path=" + r.registry(),
		}
	}
	own := upstream.Start(t, "volplane", beside(topology("topology.csi.example.com/rack"))...)
	r.known("node-1")
	n, err := c.Client.CoreV1().Nodes().Get(r.ctx, "n1", metav1.GetOptions{})
	if err != nil || n.Labels["topology.csi.example.com/rack"] != "a" {
		t.Errorf("the node has labels %v: %v", n.Labels, err)
	}
	own.End()
	said := r.refused(beside(topology("csi.kubernetes.io/rack"))...)
	if !strings.Contains(said, "is not allowed to modify labels: csi.kubernetes.io/rack") {
		t.Errorf("the registrar said %s", said)
	}
}

// refused runs a registrar to its end, and returns its output.
func (r *registered) refused(flags ...string) string {
	r.t.Helper()
	said, err := exec.CommandContext(r.ctx, plane.Bin("volplane"), flags...).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 ||
		!strings.Contains(string(said), "the node agent refuses the driver") {
		r.t.Errorf("the registrar ended with %v: %s", err, said)
	}
	return string(said)
}

// registered is a cluster with a kubelet and a driver.
type registered struct {
	*cluster.Cluster
	t    *testing.T
	ctx  context.Context //nolint:containedctx // that of the test
	root string
}

func (r *registered) registry() string { return filepath.Join(r.root, "plugins_registry") }

func (r *registered) socket() string {
	return filepath.Join(r.root, "plugins", volume.LocalDriver, "csi.sock")
}

// serve runs the bundled driver without registering it, until the test ends or the returned function is
// called.
func (r *registered) serve(nodeID string) (stop func()) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- local.Serve(ctx, local.Options{
			NodeID: nodeID, PoolDir: filepath.Join(filepath.Dir(r.root), "pool"), Endpoint: r.socket(),
			Log: slog.New(slog.DiscardHandler),
		})
	}()
	stop = func() {
		cancel()
		if err := <-ended; err != nil {
			r.t.Error(err)
		}
		ended <- nil
	}
	r.t.Cleanup(stop)
	return stop
}

func (r *registered) flags(endpoint string) []string {
	return []string{
		"registrar", "--csi-address=" + r.socket(), "--kubelet-registration-path=" + endpoint,
		"--plugin-registration-path=" + r.registry(),
	}
}

func (r *registered) announce() *upstream.Program {
	r.t.Helper()
	return upstream.Start(r.t, "volplane", r.flags(r.socket())...)
}

// known waits until the kubelet has written this node id, or has removed the driver if it is empty.
func (r *registered) known(nodeID string) {
	r.t.Helper()
	upstream.Eventually(r.ctx, r.t, func() string {
		n, err := r.Client.StorageV1().CSINodes().Get(r.ctx, "n1", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		var is string
		for _, d := range n.Spec.Drivers {
			is += d.NodeID
		}
		if is != nodeID {
			return fmt.Sprintf("the kubelet knows %+v, not %q", n.Spec.Drivers, nodeID)
		}
		return ""
	})
}
