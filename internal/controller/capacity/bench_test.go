package capacity

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/decide/capacity"
	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/volume"
)

const (
	driverName = "d.example"
	gib        = 1 << 30
)

// bench is a controller that does one step on request. It only records the keys that it wants to reconcile.
type bench struct {
	t       *testing.T
	client  *kubetest.API
	driver  *csitest.Driver
	dialed  *csi.Driver
	drivers *csi.Set
	c       *controller.Controller
	step    func(context.Context, controller.Key) (controller.Result, error)

	woken kubetest.Notes
}

// setup is what differs between benches: late means that the driver has not registered, deaf that no watch event
// arrives.
type setup struct {
	config csitest.Config
	Options
	late, deaf bool
}

func newBench(t *testing.T, change func(*setup), objects ...runtime.Object) *bench {
	t.Helper()
	s := setup{config: csitest.Full(), Options: Options{Drivers: csi.NewSet()}}
	s.config.Name = driverName
	if change != nil {
		change(&s)
	}
	b := &bench{t: t, client: kubetest.NewAPI(t, objects...), driver: csitest.Start(t, s.config), drivers: s.Drivers}
	b.dialed = b.driver.Dial()
	if !s.late {
		b.drivers.Put(b.dialed)
	}
	if s.deaf {
		b.client.Silence()
	}
	p := b.client.Begin(func(env controller.Env) *controller.Controller {
		b.c = New(env, s.Options)
		b.step = b.woken.Instead(b.c)
		return b.c
	})
	p.Work()
	return b
}

// wakes waits until exactly the wanted keys are queued.
func (b *bench) wakes(want ...string) { b.t.Helper(); b.woken.Await(b.t, want...) }

// idle waits until everything queued so far has been recorded, and forgets it: an unknown driver is queued last as a
// marker.
func (b *bench) idle() {
	b.t.Helper()
	last := "driver/last-" + strconv.Itoa(len(b.client.Actions()))
	b.c.Add(controller.Key{Kind: kindDriver, Name: strings.TrimPrefix(last, "driver/")})
	b.woken.AwaitLast(b.t, last)
}

func (b *bench) reconcile(k controller.Key) (time.Duration, error) {
	b.t.Helper()
	r, err := b.step(b.t.Context(), k)
	return r.After, err
}

// works reconciles a key and requires success.
func (b *bench) works(k controller.Key) time.Duration {
	b.t.Helper()
	after, err := b.reconcile(k)
	if err != nil {
		b.t.Fatal(err)
	}
	return after
}

func (b *bench) errs(k controller.Key, words string) {
	b.t.Helper()
	if _, err := b.reconcile(k); err == nil || !strings.Contains(err.Error(), words) {
		b.t.Fatalf("%v: %v, want %q", k, err, words)
	}
}

func theDriver() controller.Key { return controller.Key{Kind: kindDriver, Name: driverName} }

// item is the key of a class in a zone.
func item(class, zone string) controller.Key { return itemKey(driverName, nameIn(class, zone)) }

func nameIn(class, zone string) string {
	return capacity.Item{Class: late(class), Segment: topology.Segment{"zone": zone}}.Name()
}

// answers sets the driver's available capacity and its maximum volume size.
func (b *bench) answers(available, largest int64) {
	b.driver.OnCall("GetCapacity", func(int, any) csitest.Action {
		r := &csipb.GetCapacityResponse{AvailableCapacity: available}
		if largest != 0 {
			r.MaximumVolumeSize = wrapperspb.Int64(largest)
		}
		return csitest.Action{Answer: r}
	})
}

// asks is the whole request for a class in a zone.
func asks(class, zone string) *csipb.GetCapacityRequest {
	return &csipb.GetCapacityRequest{
		Parameters: late(class).Parameters, AccessibleTopology: &csipb.Topology{Segments: map[string]string{"zone": zone}},
		VolumeCapabilities: []*csipb.VolumeCapability{{
			AccessType: &csipb.VolumeCapability_Mount{Mount: &csipb.VolumeCapability_MountVolume{}},
			AccessMode: &csipb.VolumeCapability_AccessMode{},
		}},
	}
}

func (b *bench) called(want ...proto.Message) {
	b.t.Helper()
	b.driver.Called(want...)
}

// objectsAre compares all objects, in the order of their names.
func (b *bench) objectsAre(want ...*storagev1.CSIStorageCapacity) {
	b.t.Helper()
	all, err := b.client.StorageV1().CSIStorageCapacities("").List(b.t.Context(), metav1.ListOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	var got []*storagev1.CSIStorageCapacity
	for i := range all.Items {
		got = append(got, &all.Items[i])
	}
	order := func(a, b *storagev1.CSIStorageCapacity) bool { return cluster.Key(a) < cluster.Key(b) }
	if diff := cmp.Diff(want, got, kubetest.Whole(), cmpopts.SortSlices(order),
		cmp.Comparer(func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 })); diff != "" {
		b.t.Errorf("objects (-want +got):\n%s", diff)
	}
}

// told waits until the only event about a class is this one.
func (b *bench) told(class, next, words string) {
	b.t.Helper()
	kubetest.Eventually(b.t, func() string {
		all, err := b.client.CoreV1().Events("").List(context.Background(), metav1.ListOptions{})
		if err != nil || len(all.Items) != 1 {
			return fmt.Sprintf("one event, not %d, %v", len(all.Items), err)
		}
		e := all.Items[0]
		if e.Type != "Warning" || e.Reason != "CapacityUnknown" || e.InvolvedObject.Name != class ||
			e.Annotations[volume.AnnNext] != next || !strings.Contains(e.Message, words) {
			return fmt.Sprintf("event %s %s, not %s %s %s %s", next, words, e.Reason, e.InvolvedObject.Name,
				e.Annotations[volume.AnnNext], e.Message)
		}
		return ""
	})
}

// late is a class whose claims wait for a node.
func late(name string) *storagev1.StorageClass {
	mode := storagev1.VolumeBindingWaitForFirstConsumer
	return &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: driverName, VolumeBindingMode: &mode,
		Parameters: map[string]string{"pool": name, "csi.storage.k8s.io/fstype": "xfs"},
	}
}

func node(name, zone string) (*corev1.Node, *storagev1.CSINode) {
	n := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Spec.Drivers = []storagev1.CSINodeDriver{{Name: driverName, NodeID: name, TopologyKeys: []string{"zone"}}}
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": zone}}}, n
}

// places are nodes in zones a and b.
func places(more ...runtime.Object) []runtime.Object {
	nodeA, csiA := node("n-a", "a")
	nodeB, csiB := node("n-b", "b")
	return append(more, nodeA, csiA, nodeB, csiB)
}

// object is the capacity object of a class in a zone.
func object(class, zone, free, largest string) *storagev1.CSIStorageCapacity {
	o := &storagev1.CSIStorageCapacity{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: volume.NamespaceSystem, Name: nameIn(class, zone),
			Labels: map[string]string{volume.LabelDriver: driverName, volume.LabelManagedBy: volume.ManagedByProvisioner},
		},
		StorageClassName: class, NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{"zone": zone}},
	}
	if free != "" {
		q := resource.MustParse(free)
		o.Capacity = &q
	}
	if largest != "" {
		q := resource.MustParse(largest)
		o.MaximumVolumeSize = &q
	}
	return o
}
