package node

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/volume"
)

func TestRegistrationWritesTheObjects(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := newFakeDriver(driverName, w.dir)
	w.run()
	d.start(t)
	w.registered(driverName)
	node := w.node()
	c, err := w.client.StorageV1().CSINodes().Get(t.Context(), "n1", metav1.GetOptions{})
	w.must(nil, err)
	entry := c.Spec.Drivers[0]
	for what, pair := range map[string][2]string{
		"node id":    {entry.NodeID, "id-" + driverName},
		"keys":       {strings.Join(entry.TopologyKeys, " "), "topology.example/zone"},
		"limit":      {fmt.Sprint(*entry.Allocatable.Count), "7"},
		"owner":      {c.OwnerReferences[0].Kind + " " + string(c.OwnerReferences[0].UID), "Node " + string(node.UID)},
		"topology":   {node.Labels["topology.example/zone"], "z1"},
		"host name":  {node.Labels[corev1.LabelHostname], "n1"},
		"legacy ids": {node.Annotations[volume.AnnLegacyNodeID], `{"d.example":"id-d.example"}`},
		"who mounts": {node.Annotations[volume.AnnControllerManagedAttach], "true"},
		"ready state": {
			string(node.Status.Conditions[0].Type + "=" + corev1.NodeConditionType(node.Status.Conditions[0].Status)),
			"Ready=True",
		},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s is %q, wanted %q", what, pair[0], pair[1])
		}
	}
	eventually(t, func() string {
		if told := d.answers(); len(told) != 1 || !told[0].PluginRegistered {
			return "the driver was not told"
		}
		return ""
	})
}

// TestDriverGoes: its entry and its id go, the topology label stays as with a
// kubelet.
func TestDriverGoes(t *testing.T) {
	t.Parallel()
	w, d := newRunningWorld(t)
	d.stop()
	w.registered()
	eventually(t, func() string {
		node := w.node()
		if _, ok := node.Annotations[volume.AnnLegacyNodeID]; ok {
			return "the annotation stays"
		}
		if node.Labels["topology.example/zone"] != "z1" {
			return "the label went"
		}
		return ""
	})
}

// TestRegistrationReplaces: what a driver says the second time stands alone
// (S1-007).
func TestRegistrationReplaces(t *testing.T) {
	t.Parallel()
	w, d := newRunningWorld(t)
	d.stop()
	w.registered()
	d.topology = map[string]string{"topology.example/rack": "r1"}
	d.start(t)
	w.registered(driverName)
	c, err := w.client.StorageV1().CSINodes().Get(t.Context(), "n1", metav1.GetOptions{})
	w.must(nil, err)
	if keys := c.Spec.Drivers[0].TopologyKeys; len(keys) != 1 || keys[0] != "topology.example/rack" {
		t.Errorf("keys are %v", keys)
	}
}

func TestRegistrationIsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(d *fakeDriver)
		want   string
	}{
		"another name": {func(d *fakeDriver) { d.registerAs = "other.example" }, "calls itself"},
		"topology collision": {
			func(d *fakeDriver) { d.topology = map[string]string{"zone": "z2"} },
			`detected topology value collision: driver reported "zone":"z2" but existing label is "zone":"z1"; ` +
				`if no volume is used by the old value any more, remove it: kubectl label node n1 zone-`,
		},
		"node unknown": {func(d *fakeDriver) {
			d.hook = func(context.Context, string) error { return status.Error(codes.Internal, "no idea") }
		}, "no idea"},
		"topology too large": {func(d *fakeDriver) {
			m := map[string]string{}
			for i := range 2000 {
				m[fmt.Sprint("k", i)] = strings.Repeat("x", 60)
			}
			d.topology = m
		}, "segments"},
		"more topology than labels": {func(d *fakeDriver) {
			d.topology = map[string]string{}
			for i := range 33 {
				d.topology[fmt.Sprint("k", i)] = "x"
			}
		}, "reported 33 topology segments, and 32 can be labels"},
		"topology key of volplane's": {func(d *fakeDriver) {
			d.topology = map[string]string{"volplane.dev/plane": "x"}
		}, `"volplane.dev/plane" cannot be a label of the node: the prefix volplane.dev/ is volplane's own`},
		"topology value is no label": {func(d *fakeDriver) {
			d.topology = map[string]string{"k": strings.Repeat("x", 5000)}
		}, `cannot be a label of the node: must be no more than 63`},
		"topology key is no label": {func(d *fakeDriver) {
			d.topology = map[string]string{"a b": "x"}
		}, `"a b":"x" cannot be a label of the node`},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u", Labels: map[string]string{"zone": "z1"}},
			})
			d := newFakeDriver(driverName, w.dir)
			c.change(d)
			d.start(t)
			w.run()
			eventually(t, func() string {
				for _, a := range d.answers() {
					if !a.PluginRegistered && strings.Contains(a.Error, c.want) {
						return ""
					}
				}
				return "the driver was not told " + c.want
			})
			w.registered()
			next := "user"
			if d.hook != nil || c.want == "segments" {
				next = "node n1"
			}
			w.heard("Node", "n1", "RegistrationRefused", d.socket(), next)
		})
	}
}

// TestNodeInfoFailsLater: the entries of a driver that does not know its node
// any more go (S1-008).
func TestNodeInfoFailsLater(t *testing.T) {
	t.Parallel()
	w, d := newRunningWorld(t)
	w.stop()
	d.setHook(func(context.Context, string) error { return status.Error(codes.Internal, "no") })
	w.run()
	w.registered()
	d.setHook(nil)
	w.registered(driverName)
}

// TestNodeOnly: a driver whose registration says that its controller is elsewhere is not asked for it.
func TestNodeOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := newFakeDriver(driverName, w.dir)
	d.promises, d.nodeOnly = true, true
	d.start(t)
	w.run()
	w.registered(driverName)
	if h := d.history(); h != "info" {
		t.Errorf("it was called: %s", h)
	}
}

// TestLostDriver: a driver that ends whenever it is asked for its controller is registered without that after the
// second time, and stays so when it starts anew. Who answers in time keeps its controller.
func TestLostDriver(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lost       int
		controller bool
	}{
		"by chance": {1, true},
		"always":    {100, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			d := newFakeDriver(driverName, w.dir)
			d.promises = true
			asked := 0
			d.setHook(func(_ context.Context, call string) error {
				if call != "controller" {
					return nil
				}
				if asked++; asked <= c.lost {
					return status.Error(codes.Unavailable, "the process ended")
				}
				return nil
			})
			d.start(t)
			w.run()
			for range 2 {
				w.registered(driverName)
				eventually(t, func() string {
					if found, ok := w.agent.Drivers.Get(driverName); !ok || found.HasController != c.controller {
						return fmt.Sprintf("registered %t: %+v", ok, found)
					}
					return ""
				})
				d.stop()
				w.registered()
				d.start(t)
			}
			w.registered(driverName)
			if n := strings.Count(d.history(), "controller"); !c.controller && n != 2 {
				t.Errorf("it was asked for its controller %d times: %s", n, d.history())
			}
		})
	}
}

// TestSecondSocketOfADriver waits until the first one is gone.
func TestSecondSocketOfADriver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first, second := newFakeDriver(driverName, w.dir), newFakeDriver("x.example", w.dir)
	first.start(t)
	w.run()
	w.registered(driverName)
	second.registerAs = driverName
	second.start(t)
	eventually(t, func() string {
		for _, a := range second.answers() {
			if strings.Contains(a.Error, "is already registered by") {
				return ""
			}
		}
		return "the second was not refused"
	})
	w.registered(driverName)
}

// TestSuccessorOfARefused: what takes the place of a driver while that is refused does not hear the refusal.
func TestSuccessorOfARefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	wrong, right := newFakeDriver(driverName, w.dir), newFakeDriver(driverName, w.dir)
	asked, replaced := make(chan struct{}), make(chan struct{})
	wrong.setHook(func(context.Context, string) error {
		close(asked)
		<-replaced
		return status.Error(codes.Internal, "no idea")
	})
	wrong.start(t)
	w.run()
	<-asked
	wrong.stop()
	right.start(t)
	close(replaced)
	w.registered(driverName)
	eventually(t, func() string {
		if len(right.answers()) == 0 {
			return "the successor was told nothing"
		}
		return ""
	})
	if told := right.answers()[0]; !told.PluginRegistered {
		t.Errorf("the successor was told at first: %s", told.Error)
	}
}

// TestHangingRegistration: a socket that never answers keeps nobody waiting.
func TestHangingRegistration(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := filepath.Join(w.dir, "plugins_registry")
	w.must(nil, os.MkdirAll(dir, 0o700))
	l, err := net.Listen("unix", filepath.Join(dir, "a-reg.sock"))
	w.must(nil, err)
	defer l.Close()
	slow := newFakeDriver("b.example", w.dir)
	slow.setHook(func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() })
	slow.start(t)
	w.runWithDriver()
}

// TestDriverReturns: a driver that dies without tidying up, and comes back at
// the same sockets, goes on.
func TestDriverReturns(t *testing.T) {
	t.Parallel()
	w, d := newRunningWorld(t, noAttach(driverName))
	w.mountVolume()
	d.stop()
	w.terminate("p")
	d.start(t)
	w.awaitDeletion("p")
	w.registered(driverName)
	w.empty()
}

// TestNodeDeleted: somebody deletes the Node under its agent.
func TestNodeDeleted(t *testing.T) {
	t.Parallel()
	w, _ := newRunningWorld(t, noAttach(driverName))
	w.mountVolume()
	w.must(nil, w.client.StorageV1().CSINodes().Delete(t.Context(), "n1", metav1.DeleteOptions{}))
	w.must(nil, w.client.CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{}))
	w.registered(driverName)
	eventually(t, func() string {
		if len(w.node().Status.VolumesInUse) != 1 || w.node().Labels["topology.example/zone"] != "z1" {
			return "the node is not as it was"
		}
		return ""
	})
}

// TestForeignCSINode: one that belongs to an earlier Node of the same name is
// made anew (S1-018).
func TestForeignCSINode(t *testing.T) {
	t.Parallel()
	old := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{
		Name: "n1", OwnerReferences: []metav1.OwnerReference{{Kind: "Node", Name: "n1", UID: "earlier"}},
	}}
	old.Spec.Drivers = []storagev1.CSINodeDriver{{Name: "old.example", NodeID: "x"}}
	w := newWorld(t, old)
	w.run()
	newFakeDriver(driverName, w.dir).start(t)
	w.registered(driverName)
}
