package cluster

import (
	"os"
	"testing"
	"time"

	"volplane.dev/volplane/test/internal/kubelet"
)

// MountLimit bounds a test with a kubelet, which reacts within seconds.
const MountLimit = 5 * time.Minute

// Kubelet runs a kubelet until the test ends, and returns its directory.
func (c *Cluster) Kubelet(t *testing.T, node string) string {
	t.Helper()
	return c.KubeletWith(t, kubelet.Options{Node: node})
}

// KubeletWith runs a kubelet with options, for which it sets the directory and the identity if they are
// empty.
func (c *Cluster) KubeletWith(t *testing.T, o kubelet.Options) string {
	t.Helper()
	// Not t.TempDir: the name of a unix socket has at most 107 bytes.
	dir, err := os.MkdirTemp("", "kubelet-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	o.Dir, o.Kubeconfig = dir, c.Kubeconfig(t, "system:node:"+o.Node, "system:nodes")
	// A volume may be mounted when the Node says that it is in use.
	o.Tuning += "\nnodeStatusUpdateFrequency: 1s"
	k, err := kubelet.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.End(); err != nil {
			t.Error(err)
		}
		if said, err := os.ReadFile(k.Log); t.Failed() {
			t.Logf("the kubelet said:\n%s%v", said, err)
		}
	})
	return k.Root
}
