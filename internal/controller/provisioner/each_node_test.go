package provisioner

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/volume"
)

// onNodes has a provisioner work on each of some nodes, over one API, each beside its own driver.
func onNodes(t *testing.T, contest Contest, capacity map[string]int64, objects ...runtime.Object) (
	*kubetest.API, map[string]*csitest.Driver,
) {
	t.Helper()
	objects = append(objects, class(t, ""), class(t, "late name=late"))
	api, drivers := kubetest.NewAPI(t, objects...), map[string]*csitest.Driver{}
	for node, bytes := range capacity {
		config := driverConfig()
		config.Plugin.AccessibilityConstraints, config.Capacity = true, bytes
		config.Segments = map[string]string{"node": node}
		d, set := csitest.InMemory(t, config), csi.NewSet()
		drivers[node] = d
		set.Put(d.Dial().On(node, config.Segments))
		logs := Logs{Own: kube.LogPlace{Namespace: volume.NamespaceSystem, Name: "intents-" + node}}
		api.Begin(func(env controller.Env) *controller.Controller {
			return New(env, Options{Drivers: set, Requests: controller.NewRequests(), Intents: logs, Contest: contest})
		}).Work()
	}
	return api, drivers
}

// asking is a claim whose binder asks for its volume.
func asking(t *testing.T, name, class, node string) *corev1.PersistentVolumeClaim {
	t.Helper()
	if node == "" {
		return claim(t, "id=u-%s class=%s", name, class)
	}
	return claim(t, "id=u-%s class=%s node=%s", name, class, node)
}

// made returns the node on which each claim's volume was made, and fails if it is not one volume for each.
func made(t *testing.T, api *kubetest.API, drivers map[string]*csitest.Driver) map[string]string {
	t.Helper()
	out := map[string]string{}
	for node, d := range drivers {
		for _, c := range d.Calls() {
			r, is := c.Request.(*csipb.CreateVolumeRequest)
			if !is {
				continue
			}
			if where := fmt.Sprint(r.GetAccessibilityRequirements().GetRequisite()); where != fmt.Sprint(
				[]*csipb.Topology{{Segments: map[string]string{"node": node}}}) {
				t.Errorf("on node %s a volume was asked for in %s", node, where)
			}
			if before := out[r.Name]; before != "" {
				t.Errorf("%s was made on %s and on %s", r.Name, before, node)
			}
			out[r.Name] = node
		}
	}
	all, err := api.CoreV1().PersistentVolumes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(all.Items) != len(out) {
		t.Errorf("%d volumes have %d objects", len(out), len(all.Items))
	}
	for i := range all.Items {
		if v := &all.Items[i]; provision.MadeOn(v) != out[v.Name] {
			t.Errorf("volume %s of node %s is recorded as of %q", v.Name, out[v.Name], provision.MadeOn(v))
		}
	}
	return out
}

// TestOnEachNode: a claim is served on the node that was selected for it, one without a node on a node that has room;
// and only there is its volume deleted.
func TestOnEachNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var objects []runtime.Object
		for i := range 6 {
			objects = append(objects, asking(t, fmt.Sprint("c", i), "fast", ""))
		}
		objects = append(objects, asking(t, "of-a", "late", "a"), asking(t, "of-b", "late", "b"),
			asking(t, "of-c", "late", "c"), asking(t, "waits", "late", ""))
		api, drivers := onNodes(t, Contest{}, map[string]int64{"a": 10 * gib, "b": 10 * gib, "full": gib - 1}, objects...)
		kubetest.Pass(2 * time.Minute)
		where := made(t, api, drivers)
		if len(where) != 8 || where["pvc-u-of-a"] != "a" || where["pvc-u-of-b"] != "b" {
			t.Errorf("volumes are made on %v", where)
		}
		for name := range where {
			v, err := api.CoreV1().PersistentVolumes().Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			claim := &corev1.PersistentVolumeClaim{}
			claim.Namespace, claim.Name = v.Spec.ClaimRef.Namespace, v.Spec.ClaimRef.Name
			api.Drop(claim)
			v.Status.Phase = corev1.VolumeReleased
			api.Put(v)
		}
		kubetest.Pass(time.Minute)
		for node, d := range drivers {
			for _, c := range d.Calls() {
				if r, is := c.Request.(*csipb.DeleteVolumeRequest); is && where[r.VolumeId[len("id-"):]] != node {
					t.Errorf("node %s is asked to delete %s, which is on %s", node, r.VolumeId, where[r.VolumeId[len("id-"):]])
				}
			}
			if left := d.Volumes(); len(left) > 0 {
				t.Errorf("node %s has %v left", node, left)
			}
		}
	})
}

// TestContestOff: claims are left alone until a node is selected for them.
func TestContestOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, drivers := onNodes(t, Contest{Off: true}, map[string]int64{"a": 0, "b": 0}, asking(t, "c", "fast", ""))
		kubetest.Pass(time.Hour)
		if where := made(t, api, drivers); len(where) > 0 {
			t.Errorf("volumes are made on %v", where)
		}
		api.Put(asking(t, "c", "fast", "b"))
		kubetest.Pass(time.Second)
		if where := made(t, api, drivers); where["pvc-u-c"] != "b" {
			t.Errorf("volumes are made on %v", where)
		}
	})
}

// TestRoomComesBack: a claim for which no node has room is served when one has.
func TestRoomComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, drivers := onNodes(t, Contest{BaseDelay: time.Second, MaxDelay: 4 * time.Second}, map[string]int64{"a": gib},
			asking(t, "first", "fast", "a"), asking(t, "second", "fast", ""))
		kubetest.Pass(time.Minute)
		if where := made(t, api, drivers); len(where) != 1 {
			t.Errorf("volumes are made on %v", where)
		}
		first, err := api.CoreV1().PersistentVolumes().Get(t.Context(), "pvc-u-first", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		api.Drop(asking(t, "first", "fast", "a"))
		first.Status.Phase = corev1.VolumeReleased
		api.Put(first)
		kubetest.Pass(5 * time.Second)
		if left := drivers["a"].Volumes(); len(left) != 1 {
			t.Errorf("the driver has %v", left)
		}
	})
}

// TestOnlyNodesWithTheDataCompete: the copies of a volume are made on its node, though others have room for them.
func TestOnlyNodesWithTheDataCompete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, drivers := onNodes(t, Contest{}, map[string]int64{"a": 10 * gib, "b": 10 * gib, "c": 10 * gib},
			asking(t, "db", "fast", "b"))
		kubetest.Pass(time.Second)
		source := asking(t, "db", "fast", "b")
		source.Spec.VolumeName, source.Status.Phase = "pvc-u-db", corev1.ClaimBound
		api.Put(source)
		for i := range 6 {
			c := asking(t, fmt.Sprint("c", i), "fast", "")
			c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "u-db"}
			api.Put(c)
		}
		kubetest.Pass(10 * time.Minute)
		where := made(t, api, drivers)
		for i := range 6 {
			if on := where[fmt.Sprint("pvc-u-c", i)]; on != "b" {
				t.Errorf("copy %d is made on node %q", i, on)
			}
		}
	})
}
