package integration

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/volume"
)

// newMeasured runs a control plane in which each node is a topology segment. The driver has storage
// capacity tracking, and is called at short intervals.
func newMeasured(t *testing.T, change ...func(*csitest.Config)) *plane {
	t.Helper()
	return newPlane(t, change...).measured()
}

// measured restarts the controllers of a plane as newMeasured needs them.
func (p *plane) measured() *plane {
	p.t.Helper()
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

// askedAgain waits until the driver was called many times more.
func (p *plane) askedAgain() {
	p.t.Helper()
	from := len(p.measurements())
	p.eventually(func() string {
		if n := len(p.measurements()); n < from+20 {
			return fmt.Sprintf("asked %d times", n-from)
		}
		return ""
	})
}

func (p *plane) capacityWrites() (n int) {
	for _, w := range p.writes.since(0) {
		if w.role == "capacity" && !strings.Contains(w.path, "/events") {
			n++
		}
	}
	return n
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

// TestCapacityForImmediate: with the option, classes with immediate binding have objects, too.
func TestCapacityForImmediate(t *testing.T) {
	p := newMeasured(t)
	p.stop()
	p.tune = func(o *app.ControlPlaneOptions) { o.CapacityForImmediate = true }
	p.tellsRoom(p.driver, map[string]int64{"n1": 1 << 30})
	p.createClass("now")
	p.start()
	p.told("now n1 1Gi", "now n2 0")
}

// TestCapacityIsWrittenOnce: an unchanged capacity is not written again, neither after a restart nor when
// the driver was away.
func TestCapacityIsWrittenOnce(t *testing.T) {
	p := newMeasured(t)
	p.tellsRoom(p.driver, map[string]int64{"n1": 10 << 30})
	p.createLateClass("fast", p.conn.Name)
	p.told("fast n1 10Gi", "fast n2 0")
	p.askedAgain()
	if n := p.capacityWrites(); n != 2 {
		t.Errorf("%d writes for 2 objects", n)
	}
	p.stop()
	p.drivers.Remove(p.conn)
	p.start()
	p.createLateClass("slow", p.conn.Name) // is seen, but cannot be queried
	p.drivers.Put(p.conn)
	p.told("fast n1 10Gi", "fast n2 0", "slow n1 10Gi", "slow n2 0")
	p.askedAgain()
	if n := p.capacityWrites(); n != 4 {
		t.Errorf("%d writes for 4 objects and a restart", n)
	}
}

// TestCapacityAfterVolumes: the driver is called soon after a volume was created or deleted, or did not
// fit. For many volumes it is called at most twice a second.
func TestCapacityAfterVolumes(t *testing.T) {
	p := newMeasured(t, func(c *csitest.Config) {
		c.Capacity, c.Plugin.AccessibilityConstraints, c.Segments = 100<<30, true, map[string]string{"name": "n1"}
	})
	p.stop()
	p.tune = nil // The poll never comes.
	p.createLateClass("fast", p.conn.Name)
	p.start()
	p.told("fast n1 100Gi", "fast n2 100Gi")
	before, begin := len(p.measurements()), time.Now()
	for i := range 20 {
		name := fmt.Sprint("c", i)
		p.createLateClaim(name, "fast", corev1.ReadWriteOnce)
		p.createPod(name, "", name)
	}
	// The volumes are all at n1: nothing is known to be new elsewhere.
	p.told("fast n1 80Gi", "fast n2 100Gi")
	// Twice in a second, and for what came in between.
	most := max(10, 2*int(time.Since(begin)/time.Second)+2)
	if n := len(p.measurements()) - before; n > most {
		t.Errorf("asked %d times for 20 volumes", n)
	}
	p.deletePod("c0")
	p.deleteClaim("c0")
	p.told("fast n1 81Gi", "fast n2 100Gi")

	before = len(p.measurements())
	p.driver.OnCall("CreateVolume", func(int, any) csitest.Action {
		return csitest.Action{Err: status.Error(codes.ResourceExhausted, "full")}
	})
	p.createLateClaim("late", "fast", corev1.ReadWriteOnce)
	p.createPod("late", "", "late")
	p.waitForEvent("PersistentVolumeClaim", "late", volume.ReasonProvisioningFailed, "full")
	p.eventually(func() string {
		if len(p.measurements()) == before {
			return "not asked after the driver had no room"
		}
		return ""
	})
}

// anotherDriver adds a driver that has only GetCapacity, and is not registered at any node yet.
func (p *plane) anotherDriver() (*csitest.Driver, *csi.Driver) {
	p.t.Helper()
	d := csitest.Start(p.t, csitest.Config{
		Name: "other.example.com", Plugin: csi.PluginCapabilities{ControllerService: true},
		Controller: csi.ControllerCapabilities{GetCapacity: true},
	})
	conn, err := csi.Dial(p.ctx, d.Socket)
	p.must(err)
	p.t.Cleanup(func() { _ = conn.Close() })
	p.drivers.Put(conn)
	return d, conn
}

// TestCapacityOfHostileDrivers: an invalid answer, or none, is not written. An event says why, and no other
// driver waits for this one.
func TestCapacityOfHostileDrivers(t *testing.T) {
	p := newImpatientPlane(t).measured()
	other, conn := p.anotherDriver()
	p.registers("n1", p.conn.Name, conn.Name)
	p.tellsRoom(p.driver, map[string]int64{"n1": 1 << 30, "n2": 2 << 30})
	p.tellsRoom(other, map[string]int64{"n1": 5 << 30})
	p.createLateClass("fast", p.conn.Name)
	p.createLateClass("calm", conn.Name)
	p.told("fast n1 1Gi", "fast n2 2Gi", "calm n1 5Gi")

	room := int64(5 << 30)
	for what, action := range map[string]csitest.Action{
		"negative GetCapacityResponse.available_capacity": {Answer: &csipb.GetCapacityResponse{AvailableCapacity: -1}},
		"negative Int64Value.value": {
			Answer: &csipb.GetCapacityResponse{AvailableCapacity: 1, MaximumVolumeSize: wrapperspb.Int64(-5)},
		},
		"disk on fire":     {Err: status.Error(codes.Internal, "disk on fire")},
		"unmarshal":        {Answer: csitest.Raw("\xff\xff\xff\xff")},
		"DeadlineExceeded": {Hang: true},
	} {
		p.driver.OnCall("GetCapacity", func(int, any) csitest.Action { return action })
		// Each has a class of its own: client-go writes 25 events about an object, and then one in five minutes.
		room += 1 << 30
		class := fmt.Sprint("bad", room>>30)
		p.createLateClass(class, p.conn.Name)
		p.waitForEvent("StorageClass", class, volume.ReasonCapacityUnknown,
			"does not tell the capacity of class "+class+" in name=n", what)
		p.must(p.client.StorageV1().StorageClasses().Delete(p.ctx, class, metav1.DeleteOptions{}))
		// The other driver continues in the meantime.
		p.tellsRoom(other, map[string]int64{"n1": room})
		p.told("fast n1 1Gi", "fast n2 2Gi", fmt.Sprintf("calm n1 %dGi", room>>30))
	}
	p.tellsRoom(p.driver, map[string]int64{"n1": 3 << 30})
	p.told("fast n1 3Gi", "fast n2 0", fmt.Sprintf("calm n1 %dGi", room>>30))
}

// TestCapacityIsAskedInTurn: a driver has one GetCapacity call in flight, however many classes it has.
// While it does not answer, other drivers are asked.
func TestCapacityIsAskedInTurn(t *testing.T) {
	p := newMeasured(t)
	other, conn := p.anotherDriver()
	p.tellsRoom(other, map[string]int64{"n1": 5 << 30})
	answers := make(chan struct{})
	p.driver.OnCall("GetCapacity", func(int, any) csitest.Action {
		<-answers
		return csitest.Action{}
	})
	for i := range 20 {
		p.createLateClass(fmt.Sprint("c", i), p.conn.Name)
	}
	p.createLateClass("calm", conn.Name)
	p.registers("n1", p.conn.Name, conn.Name)
	p.told("calm n1 5Gi")
	if n := p.calls("GetCapacity"); n > 1 {
		t.Errorf("%d questions at once", n)
	}
	close(answers)
	p.eventually(func() string {
		if n := len(p.capacities()); n != 41 {
			return fmt.Sprintf("%d objects", n)
		}
		return ""
	})
}

// TestCapacityAnswerLost: the response to a creation is lost, and the controller finds the object by its
// name.
func TestCapacityAnswerLost(t *testing.T) {
	p := newMeasured(t)
	p.stop()
	var lost atomic.Int32
	p.tune = func(o *app.ControlPlaneOptions) {
		config := o.ConfigFor
		o.CapacityPoll = 50 * time.Millisecond
		o.ConfigFor = func(role string) (*rest.Config, error) {
			c, err := config(role)
			if err == nil && role == "capacity" {
				c.Wrap(func(next http.RoundTripper) http.RoundTripper {
					return tripper(func(r *http.Request) (*http.Response, error) {
						answer, err := next.RoundTrip(r)
						if err == nil && r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "csistoragecapacities") &&
							lost.Add(1) <= 2 {
							return nil, errors.Join(errors.New("the answer is lost"), answer.Body.Close())
						}
						return answer, err
					})
				})
			}
			return c, err
		}
	}
	p.tellsRoom(p.driver, map[string]int64{"n1": 1 << 30, "n2": 2 << 30})
	p.createLateClass("fast", p.conn.Name)
	p.start()
	p.told("fast n1 1Gi", "fast n2 2Gi")
	p.askedAgain()
	for _, w := range p.writes.since(0) {
		if w.role == "capacity" && w.method == http.MethodDelete {
			t.Errorf("an object was made twice: %s", w)
		}
	}
}

// TestCapacityCrash: wherever the controller stops, no object is created twice and none is missing.
func TestCapacityCrash(t *testing.T) {
	p := newMeasured(t)
	p.tellsRoom(p.driver, map[string]int64{"n1": 1 << 30, "n2": 2 << 30})
	for n := range 4 {
		p.stop()
		for _, o := range p.capacities() {
			p.must(p.client.StorageV1().CSIStorageCapacities(o.Namespace).Delete(p.ctx, o.Name, metav1.DeleteOptions{}))
		}
		for _, c := range []string{"fast", "slow"} {
			if n == 0 {
				p.createLateClass(c, p.conn.Name)
			}
		}
		var count atomic.Int32
		reached := make(chan struct{})
		p.writes.onWrite(func(w write) {
			if w.role == "capacity" && int(count.Add(1)) == n+1 {
				close(reached)
			}
		})
		p.start()
		<-reached
		p.stop()
		p.writes.onWrite(nil)
		p.start()
		p.told("fast n1 1Gi", "fast n2 2Gi", "slow n1 1Gi", "slow n2 2Gi")
	}
}

// TestCapacityOfASidecar: objects that a sidecar created are adopted. One of two equal objects is deleted,
// and objects of others are unchanged.
func TestCapacityOfASidecar(t *testing.T) {
	p := newMeasured(t)
	// An object whose class is not there yet would be obsolete.
	p.stop()
	p.tellsRoom(p.driver, map[string]int64{"n1": 1 << 30, "n2": 2 << 30})
	made := func(name, class, node, driver, by string) *storagev1.CSIStorageCapacity {
		o, err := p.client.StorageV1().CSIStorageCapacities("default").Create(p.ctx, &storagev1.CSIStorageCapacity{
			ObjectMeta: metav1.ObjectMeta{
				Name: name, Labels: map[string]string{volume.LabelDriver: driver, volume.LabelManagedBy: by},
			},
			StorageClassName: class, NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{"name": node}},
			Capacity: ptr.To(resource.MustParse("7Gi")),
		}, metav1.CreateOptions{})
		p.must(err)
		return o
	}
	first := made("csisc-bbbbb", "fast", "n1", p.conn.Name, volume.ManagedByProvisioner)
	made("csisc-ccccc", "gone", "n1", p.conn.Name, volume.ManagedByProvisioner)
	made("csisc-ddddd", "fast", "n9", p.conn.Name, volume.ManagedByProvisioner)
	strangers := []*storagev1.CSIStorageCapacity{
		made("csisc-eeeee", "gone", "n8", "other.example.com", volume.ManagedByProvisioner),
		made("csisc-fffff", "fast", "n8", p.conn.Name, "external-provisioner-n1"),
	}
	p.createLateClass("fast", p.conn.Name)
	p.start()
	p.told("fast n1 1Gi", "fast n2 2Gi", "gone n8 7Gi", "fast n8 7Gi")
	now, err := p.client.StorageV1().CSIStorageCapacities("default").Get(p.ctx, first.Name, metav1.GetOptions{})
	p.must(err)
	if now.UID != first.UID {
		t.Error("the object of the sidecar was made anew")
	}
	made("csisc-zzzzz", "fast", "n2", p.conn.Name, volume.ManagedByProvisioner)
	p.told("fast n1 1Gi", "fast n2 2Gi", "gone n8 7Gi", "fast n8 7Gi")
	for _, s := range strangers {
		now, err := p.client.StorageV1().CSIStorageCapacities("default").Get(p.ctx, s.Name, metav1.GetOptions{})
		p.must(err)
		if now.ResourceVersion != s.ResourceVersion {
			t.Errorf("object %s was changed", s.Name)
		}
	}
}

// TestPlacementByCapacity: a Pod is placed where there is capacity for its claim. Without capacity it
// waits, and the driver is not called.
func TestPlacementByCapacity(t *testing.T) {
	p := newMeasured(t)
	p.tellsRoom(p.driver, map[string]int64{"n1": 1 << 20, "n2": 2 << 30})
	p.createLateClass("fast", p.conn.Name)
	p.createLateClaim("c", "fast", corev1.ReadWriteOnce)
	p.createPod("web", "", "c")
	p.waitForPlacement("web")
	if node := p.getClaim("c").Annotations[volume.AnnSelectedNode]; node != "n2" {
		t.Errorf("the volume is made for %s, room is on n2", node)
	}
	p.tellsRoom(p.driver, map[string]int64{"n1": 1 << 20})
	p.told("fast n1 1Mi", "fast n2 0")
	before := p.calls("CreateVolume")
	p.createLateClaim("d", "fast", corev1.ReadWriteOnce)
	p.createPod("db", "", "d")
	const words = "node(s) did not have enough free storage: claim d asks for 1Gi, class fast has volumes of up to "
	p.waitForNoPlacement("db", "0/2 nodes are available: n1: "+words+"1Mi there; n2: "+words+"0 there")
	if p.calls("CreateVolume") != before {
		t.Error("the driver was asked for a volume that does not fit")
	}
	p.tellsRoom(p.driver, map[string]int64{"n1": 1 << 30})
	p.waitForPlacement("db")
	if node := p.getClaim("d").Annotations[volume.AnnSelectedNode]; node != "n1" {
		t.Errorf("the volume is made for %s, room is on n1", node)
	}
}

// TestPlacementBeforeCapacity: Pods of a driver without a capacity wait, and are placed after the driver's
// first answer.
func TestPlacementBeforeCapacity(t *testing.T) {
	p := newMeasured(t)
	p.driver.OnCall("GetCapacity", func(int, any) csitest.Action {
		return csitest.Action{Err: status.Error(codes.Unavailable, "starting")}
	})
	p.createLateClass("fast", p.conn.Name)
	p.createLateClaim("c", "fast", corev1.ReadWriteOnce)
	p.createPod("web", "", "c")
	words := "node(s) did not have enough free storage: driver " + p.conn.Name +
		" has not told how much of class fast there is"
	p.waitForNoPlacement("web", "0/2 nodes are available: n1: "+words+"; n2: "+words)
	p.driver.OnCall("GetCapacity", nil)
	p.waitForPlacement("web")
}
