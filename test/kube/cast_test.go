package kube

import (
	"context"
	"slices"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/test/internal/cluster"
	"volplane.dev/volplane/test/internal/differential"
	"volplane.dev/volplane/test/internal/upstream"
)

// TestOurProvisionerInACluster: volplane's provisioner works as a driver's sidecar in a cluster of
// Kubernetes, with the rights that it declares.
func TestOurProvisionerInACluster(t *testing.T) {
	t.Parallel()
	c := newMixedCluster(t, "persistentvolume-binder-controller", "persistentvolume-protection-controller",
		"persistentvolumeclaim-protection-controller")
	c.play(t, func() func() { return c.Ours(t, c.drivers, "provisioner") })
}

// TestOurBinderInACluster: volplane's binder and protection work in place of Kubernetes' controllers, with
// its provisioner and its scheduler.
func TestOurBinderInACluster(t *testing.T) {
	t.Parallel()
	c := newMixedCluster(t)
	c.Ours(t, csi.NewSet(), "binder", "protection")
	c.deletesAgain = true
	c.play(t, func() func() { return c.TheirProvisioner(t, c.driver) })
}

// TestOurStorageInACluster: all storage controllers of volplane work in place of Kubernetes' controllers,
// with its scheduler.
func TestOurStorageInACluster(t *testing.T) {
	t.Parallel()
	c := newMixedCluster(t)
	c.play(t, func() func() { return c.Ours(t, c.drivers, "binder", "provisioner", "protection") })
}

// mixedCluster is a cluster whose storage controllers are volplane's or Kubernetes'. The scheduler, the
// controller of ephemeral volumes and the garbage collector are Kubernetes'.
type mixedCluster struct {
	differential.Side
	cluster *cluster.Cluster
	driver  *csitest.Driver
	drivers *csi.Set
	// start starts the provisioner and the other parts of its process, and stop ends them.
	start, stop func()
	// deletesAgain says that the provisioner may delete a volume twice, as Kubernetes' does
	// when it observes its own write late.
	deletesAgain bool
}

// newMixedCluster starts a cluster with the nodes n-a, n-b and n-c, each in a zone of its own.
func newMixedCluster(t *testing.T, controllers ...string) *mixedCluster {
	t.Helper()
	k8s := cluster.Start(t)
	c := &mixedCluster{Side: differential.Side{Name: "cluster", Server: k8s, Client: k8s.Client}, cluster: k8s}
	c.driver, c.drivers = upstream.StartDriver(t, func(c *csitest.Config) { c.Plugin.AccessibilityConstraints = true })
	for _, z := range []string{"a", "b", "c"} {
		k8s.Node(t, "n-"+z, z, c.driver.Name())
	}
	k8s.Controllers(t, append(controllers, "ephemeral-volume-controller", "garbage-collector-controller")...)
	k8s.Scheduler(t)
	return c
}

// play plays all scenes, one after the other.
func (c *mixedCluster) play(t *testing.T, provisioner func() (stop func())) {
	c.start = func() { c.stop = provisioner() }
	c.start()
	for _, s := range []struct {
		name string
		play func(*scene)
		// made and deleted are the numbers of creations and deletions at the driver; -1 means any number.
		made, deleted int
	}{
		{"immediate", immediate, 1, 1},
		{"late", late, 2, 2},
		{"full", full, -1, 1},
		{"node-gone", nodeGone, 1, 1},
		{"set", set, 3, 3},
		{"retain", retain, 1, 1},
		{"by-hand", byHand, 0, 0},
		{"ephemeral", ephemeral, 1, 1},
		{"restart", restart, 2, 2},
		{"many", many, -1, -1},
	} {
		passed := t.Run(s.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), upstream.Limit)
			defer cancel()
			scene := c.newScene(ctx, t, s.name)
			s.play(scene)
			scene.over()
			count := map[string]int{}
			for _, call := range c.driver.Calls()[scene.before:] {
				count[call.Method]++
			}
			wrong := func(got, want int) bool { return want >= 0 && got != want }
			deletedOften := c.deletesAgain && count["DeleteVolume"] > s.deleted
			if wrong(count["CreateVolume"], s.made) || wrong(count["DeleteVolume"], s.deleted) && !deletedOften {
				t.Errorf("the driver was asked %v, want %d creations, %d deletions", count, s.made, s.deleted)
			}
		})
		if !passed {
			// Its leftovers obstruct the others.
			return
		}
	}
}

// newScene creates a namespace. The driver creates volumes in the first zone of the request.
func (c *mixedCluster) newScene(ctx context.Context, t *testing.T, name string) *scene {
	t.Helper()
	s := &scene{
		t: t, ctx: ctx, mixedCluster: c, client: c.Client, driver: c.driver, name: name, before: len(c.driver.Calls()),
	}
	_, err := c.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
		metav1.CreateOptions{})
	s.must(err)
	// Pods have one; its controller does not run.
	_, err = c.Client.CoreV1().ServiceAccounts(name).Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	s.must(err)
	c.driver.OnCall("CreateVolume", func(_ int, req any) csitest.Action { return thereFirst(req) })
	c.driver.OnCall("DeleteVolume", nil)
	t.Cleanup(func() {
		if t.Failed() {
			s.events()
		}
	})
	return s
}

func thereFirst(req any) csitest.Action {
	r := req.(*csipb.CreateVolumeRequest)
	return csitest.Action{After: true, Answer: &csipb.CreateVolumeResponse{Volume: &csipb.Volume{
		VolumeId: "id-" + r.GetName(), CapacityBytes: r.GetCapacityRange().GetRequiredBytes(),
		AccessibleTopology: r.GetAccessibilityRequirements().GetPreferred()[:1],
	}}}
}

// zones returns the zones of a request, "abc" for a, b and c.
func zones(r *csipb.CreateVolumeRequest) (requisite, preferred string) {
	join := func(all []*csipb.Topology) (out string) {
		for _, t := range all {
			out += t.GetSegments()[upstream.Zone]
		}
		return out
	}
	return join(r.GetAccessibilityRequirements().GetRequisite()), join(r.GetAccessibilityRequirements().GetPreferred())
}

// ordered returns the letters of a text in order.
func ordered(text string) string {
	r := []rune(text)
	slices.Sort(r)
	return string(r)
}
