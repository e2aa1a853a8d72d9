package provisioner

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/volume"
)

const driverName = "d.example"

// driver is a CSI driver that keeps its volumes in memory.
type driver struct {
	csipb.UnimplementedIdentityServer
	csipb.UnimplementedControllerServer
	csipb.UnimplementedNodeServer

	// name is the driver's; none is driverName.
	name string
	// answer, when set, is asked before CreateVolume does anything.
	answer func(ctx context.Context, r *csipb.CreateVolumeRequest) (*csipb.CreateVolumeResponse, error)
	// zonal says that not every node reaches every volume.
	zonal bool

	// late says that it registers when the test has it do so.
	late bool

	mu      sync.Mutex
	created []time.Time
	volumes map[string]int64
	deleted []string
}

func (d *driver) GetPluginInfo(context.Context, *csipb.GetPluginInfoRequest) (*csipb.GetPluginInfoResponse, error) {
	return &csipb.GetPluginInfoResponse{Name: cmp.Or(d.name, driverName), VendorVersion: "1"}, nil
}

func (d *driver) Probe(context.Context, *csipb.ProbeRequest) (*csipb.ProbeResponse, error) {
	return &csipb.ProbeResponse{}, nil
}

func (d *driver) GetPluginCapabilities(
	context.Context, *csipb.GetPluginCapabilitiesRequest,
) (*csipb.GetPluginCapabilitiesResponse, error) {
	services := []csipb.PluginCapability_Service_Type{csipb.PluginCapability_Service_CONTROLLER_SERVICE}
	if d.zonal {
		services = append(services, csipb.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS)
	}
	r := &csipb.GetPluginCapabilitiesResponse{}
	for _, s := range services {
		r.Capabilities = append(r.Capabilities, &csipb.PluginCapability{
			Type: &csipb.PluginCapability_Service_{Service: &csipb.PluginCapability_Service{Type: s}},
		})
	}
	return r, nil
}

func (d *driver) ControllerGetCapabilities(
	context.Context, *csipb.ControllerGetCapabilitiesRequest,
) (*csipb.ControllerGetCapabilitiesResponse, error) {
	r := &csipb.ControllerGetCapabilitiesResponse{}
	for _, c := range []csipb.ControllerServiceCapability_RPC_Type{
		csipb.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, csipb.ControllerServiceCapability_RPC_CLONE_VOLUME,
	} {
		r.Capabilities = append(r.Capabilities, &csipb.ControllerServiceCapability{
			Type: &csipb.ControllerServiceCapability_Rpc{Rpc: &csipb.ControllerServiceCapability_RPC{Type: c}},
		})
	}
	return r, nil
}

func (d *driver) CreateVolume(ctx context.Context, r *csipb.CreateVolumeRequest) (*csipb.CreateVolumeResponse, error) {
	d.mu.Lock()
	d.created = append(d.created, time.Now())
	answer := d.answer
	d.mu.Unlock()
	if answer != nil {
		if got, err := answer(ctx, r); got != nil || err != nil {
			return got, err
		}
	}
	return d.make(r), nil
}

// make keeps a volume and returns the answer that tells of it.
func (d *driver) make(r *csipb.CreateVolumeRequest) *csipb.CreateVolumeResponse {
	d.mu.Lock()
	defer d.mu.Unlock()
	id := "id-" + r.GetName()
	if _, ok := d.volumes[id]; !ok {
		d.volumes[id] = r.GetCapacityRange().GetRequiredBytes()
	}
	return &csipb.CreateVolumeResponse{
		Volume: &csipb.Volume{VolumeId: id, CapacityBytes: d.volumes[id], ContentSource: r.GetVolumeContentSource()},
	}
}

func (d *driver) DeleteVolume(_ context.Context, r *csipb.DeleteVolumeRequest) (*csipb.DeleteVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.volumes, r.GetVolumeId())
	d.deleted = append(d.deleted, r.GetVolumeId())
	return &csipb.DeleteVolumeResponse{}, nil
}

// answers has CreateVolume ask f from now on.
func (d *driver) answers(
	f func(ctx context.Context, r *csipb.CreateVolumeRequest) (*csipb.CreateVolumeResponse, error),
) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answer = f
}

// calls returns when CreateVolume was called.
func (d *driver) calls() []time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.created)
}

// has returns the ids of the volumes that exist at the driver.
func (d *driver) has() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var ids []string
	for id := range d.volumes {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return strings.Join(ids, " ")
}

// world is a provisioner with a driver and an API that keeps objects only.
type world struct {
	t       *testing.T
	client  *kubetest.API
	driver  *driver
	drivers *csi.Set
	// register has the driver appear.
	register func()
}

// newWorld starts a provisioner over the objects. begin, when set, prepares
// the driver first.
func newWorld(t *testing.T, begin func(*driver), objects ...runtime.Object) *world {
	t.Helper()
	d := &driver{volumes: map[string]int64{}}
	if begin != nil {
		begin(d)
	}
	w := &world{t: t, driver: d, drivers: csi.NewSet(), client: kubetest.NewAPI(t, append(objects, class())...)}
	served := serve(t.Context(), t, d)
	w.register = func() { w.drivers.Put(served) }
	if !d.late {
		w.register()
	}
	w.client.Begin(func(env controller.Env) *controller.Controller {
		return New(env, Options{
			Drivers: w.drivers, Requests: controller.NewRequests(), Intents: Intents(), Lateness: 50 * time.Millisecond,
		})
	}).Work()
	return w
}

func serve(ctx context.Context, t *testing.T, d *driver) *csi.Driver {
	t.Helper()
	dir, err := os.MkdirTemp("", "csi-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "csi.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	csipb.RegisterIdentityServer(s, d)
	csipb.RegisterControllerServer(s, d)
	csipb.RegisterNodeServer(s, d)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	conn, err := csi.Dial(ctx, socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func class() *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Provisioner: driverName}
}

func claim(name string) *corev1.PersistentVolumeClaim {
	fast := "fast"
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("u-" + name)},
	}
	c.Annotations = map[string]string{volume.AnnStorageProvisioner: driverName}
	c.Spec.StorageClassName = &fast
	c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	return c
}

func (w *world) claim(name string) *corev1.PersistentVolumeClaim {
	w.t.Helper()
	c, err := w.client.CoreV1().PersistentVolumeClaims("ns").Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// settled waits until there are no intents.
func (w *world) settled() {
	w.t.Helper()
	kubetest.Eventually(w.t, func() string {
		all, err := w.client.CoreV1().ConfigMaps("").List(context.Background(), metav1.ListOptions{})
		if err != nil || len(all.Items) > 0 {
			return fmt.Sprintf("intents are left: %v, %v", all.Items, err)
		}
		return ""
	})
}

// saved waits until a volume object exists, and returns it.
func (w *world) saved(name string) *corev1.PersistentVolume {
	w.t.Helper()
	var got *corev1.PersistentVolume
	kubetest.Eventually(w.t, func() string {
		var err error
		if got, err = w.client.CoreV1().PersistentVolumes().Get(context.Background(), name, metav1.GetOptions{}); err != nil {
			return err.Error()
		}
		return ""
	})
	return got
}

// tells waits for an event about a claim with the reason and the words.
func (w *world) tells(name string, reason volume.Reason, words string) {
	w.t.Helper()
	kubetest.Eventually(w.t, func() string {
		all, err := w.client.CoreV1().Events("ns").List(context.Background(), metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		for _, e := range all.Items {
			if e.InvolvedObject.Name == name && e.Reason == string(reason) && strings.Contains(e.Message, words) {
				return ""
			}
		}
		return fmt.Sprintf("event %s %q about claim %s in %v", reason, words, name, all.Items)
	})
}

func (w *world) noVolumes() {
	w.t.Helper()
	all, err := w.client.CoreV1().PersistentVolumes().List(context.Background(), metav1.ListOptions{})
	if err != nil || len(all.Items) > 0 {
		w.t.Errorf("%d volume objects, %v; want none", len(all.Items), err)
	}
}

// deletions returns the ids that DeleteVolume was called with.
func (d *driver) deletions() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.deleted)
}
