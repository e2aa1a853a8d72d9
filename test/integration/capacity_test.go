package integration

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/volume"
)

// newMeasured runs a control plane in which each node is a topology segment. The driver has storage
// capacity tracking, and is called at short intervals.
func newMeasured(t *testing.T) *plane {
	t.Helper()
	p := newPlane(t)
	p.stop()
	p.tune = func(o *app.ControlPlaneOptions) { o.CapacityPoll = 50 * time.Millisecond }
	for _, n := range []string{"n1", "n2"} {
		p.registers(n, p.conn.Name)
	}
	d, err := p.client.StorageV1().CSIDrivers().Get(p.ctx, p.conn.Name, metav1.GetOptions{})
	p.must(err)
	d.Spec.StorageCapacity = ptr.To(true)
	_, err = p.client.StorageV1().CSIDrivers().Update(p.ctx, d, metav1.UpdateOptions{})
	p.must(err)
	p.start()
	return p
}

// registers replaces a CSINode by one with these drivers, whose topology key is the node's name.
func (p *plane) registers(node string, drivers ...string) {
	p.t.Helper()
	n := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node}}
	for _, d := range drivers {
		n.Spec.Drivers = append(n.Spec.Drivers, storagev1.CSINodeDriver{
			Name: d, NodeID: "id-" + node, TopologyKeys: []string{"name"},
		})
	}
	p.must(p.client.StorageV1().CSINodes().Delete(p.ctx, node, metav1.DeleteOptions{}))
	_, err := p.client.StorageV1().CSINodes().Create(p.ctx, n, metav1.CreateOptions{})
	p.must(err)
}

// tellsRoom has the driver return these capacities by node, and 0 for other nodes.
func (p *plane) tellsRoom(d *csitest.Driver, at map[string]int64) {
	d.OnCall("GetCapacity", func(_ int, req any) csitest.Action {
		return csitest.Action{Answer: &csipb.GetCapacityResponse{
			AvailableCapacity: at[req.(*csipb.GetCapacityRequest).GetAccessibleTopology().GetSegments()["name"]],
		}}
	})
}

func (p *plane) capacities() []storagev1.CSIStorageCapacity {
	p.t.Helper()
	all, err := p.client.StorageV1().CSIStorageCapacities("").List(p.ctx, metav1.ListOptions{})
	p.must(err)
	return all.Items
}

// told waits until the CSIStorageCapacity objects are exactly these: "class node size" each.
func (p *plane) told(want ...string) {
	p.t.Helper()
	slices.Sort(want)
	p.eventually(func() string {
		var got []string
		for _, o := range p.capacities() {
			got = append(got, fmt.Sprint(o.StorageClassName, " ", o.NodeTopology.MatchLabels["name"], " ", o.Capacity))
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			return fmt.Sprintf("told is %q, not %q", got, want)
		}
		return ""
	})
}

// measurements returns all requests of GetCapacity.
func (p *plane) measurements() (all []*csipb.GetCapacityRequest) {
	for _, c := range p.driver.Calls() {
		if r, ok := c.Request.(*csipb.GetCapacityRequest); ok {
			all = append(all, r)
		}
	}
	return all
}

// TestCapacityIsTold (B-05): there is one object for each late-binding class and each segment. The objects
// follow the driver, its nodes and its classes, and are created again when they are deleted.
func TestCapacityIsTold(t *testing.T) {
	p := newMeasured(t)
	p.tellsRoom(p.driver, map[string]int64{"n1": 10 << 30})
	parameters := map[string]string{"tier": "1", "csi.storage.k8s.io/fstype": "xfs"}
	_, err := p.client.StorageV1().StorageClasses().Create(p.ctx, &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: p.conn.Name, Parameters: parameters,
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
	}, metav1.CreateOptions{})
	p.must(err)
	p.createClass("now")
	p.createLateClass("stranger", "other.example.com")
	p.told("fast n1 10Gi", "fast n2 0")
	for _, r := range p.measurements() {
		mode := r.GetVolumeCapabilities()[0].GetAccessMode().GetMode()
		if !maps.Equal(r.GetParameters(), parameters) || len(r.GetAccessibleTopology().GetSegments()) != 1 ||
			mode != csipb.VolumeCapability_AccessMode_UNKNOWN {
			t.Errorf("asked %v", r)
		}
	}
	for _, o := range p.capacities() {
		if o.Namespace != volume.NamespaceSystem || !strings.HasPrefix(o.Name, "csisc-") || len(o.OwnerReferences) > 0 ||
			o.Labels["csi.storage.k8s.io/drivername"] != p.conn.Name ||
			o.Labels["csi.storage.k8s.io/managed-by"] != "external-provisioner" {
			t.Errorf("object %s/%s %v", o.Namespace, o.Name, o.Labels)
		}
	}
	p.tellsRoom(p.driver, map[string]int64{"n1": 9 << 30, "n2": 1 << 30})
	p.told("fast n1 9Gi", "fast n2 1Gi")
	p.createLateClass("slow", p.conn.Name)
	p.told("fast n1 9Gi", "fast n2 1Gi", "slow n1 9Gi", "slow n2 1Gi")
	for _, o := range p.capacities() {
		p.must(p.client.StorageV1().CSIStorageCapacities(o.Namespace).Delete(p.ctx, o.Name, metav1.DeleteOptions{}))
	}
	p.told("fast n1 9Gi", "fast n2 1Gi", "slow n1 9Gi", "slow n2 1Gi")
	p.must(p.client.StorageV1().StorageClasses().Delete(p.ctx, "fast", metav1.DeleteOptions{}))
	p.told("slow n1 9Gi", "slow n2 1Gi")
	p.must(p.client.CoreV1().Nodes().Delete(p.ctx, "n2", metav1.DeleteOptions{}))
	p.told("slow n1 9Gi")
	p.registers("n1")
	p.told()
	p.registers("n1", p.conn.Name)
	p.told("slow n1 9Gi")
}
