package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/testkit"
	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/standalone/standalonetest"
	"volplane.dev/volplane/test/internal/servers"
)

// plane is a control plane whose driver the test controls. It has no node agents: the test writes what
// nodes would write.
type plane struct {
	t       *testing.T
	ctx     context.Context
	client  kubernetes.Interface
	drivers *csi.Set
	driver  *csitest.Driver
	conn    *csi.Driver
	// writes are the controllers' requests that change something.
	writes *writes
	// stop ends the controllers, start runs new ones with what tune changes.
	stop, start func()
	tune        func(*app.ControlPlaneOptions)
	// dir is the API server's data directory.
	dir string
}

// newPlane runs a control plane with the nodes n1 and n2. The test runs in parallel with others, because it
// waits most of the time.
func newPlane(t *testing.T, change ...func(*csitest.Config)) *plane {
	t.Helper()
	t.Parallel()
	return newPlaneAlone(t, change...)
}

// newPlaneAlone runs a control plane while no other test of the package runs. It is for tests that count
// writes, because a busy machine causes more of them.
func newPlaneAlone(t *testing.T, change ...func(*csitest.Config)) *plane {
	t.Helper()
	config := csitest.Full()
	config.NodeID, config.OtherNodes, config.Segments = "id-n1", []string{"id-n2"}, nil
	config.Plugin.AccessibilityConstraints = false
	for _, f := range change {
		f(&config)
	}
	server := servers.Borrow(t)
	p := &plane{
		t: t, ctx: t.Context(), client: standalonetest.Client(t, server, ""), drivers: csi.NewSet(),
		driver: csitest.Start(t, config), writes: &writes{}, dir: filepath.Dir(server.AdminKubeconfig()),
	}
	var err error
	// A driver call never times out: tests hold calls, and the machine may be busy.
	p.conn, err = csi.Dial(p.ctx, p.driver.Socket, csi.WithControllerTimeout(patience))
	p.must(err)
	t.Cleanup(func() { _ = p.conn.Close() })
	p.drivers.Put(p.conn)
	_, err = p.client.StorageV1().CSIDrivers().Create(p.ctx,
		&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: p.conn.Name}}, metav1.CreateOptions{})
	p.must(err)
	for _, n := range []string{"n1", "n2"} {
		p.createNode(n)
	}
	p.start = func() {
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		o := app.ControlPlaneOptions{
			ConfigFor: func(role string) (*rest.Config, error) {
				c := server.ClientConfig(app.User(role))
				c.Wrap(fieldsOf(p.t, p.client).of(role))
				c.Wrap(p.writes.of(role))
				return c, nil
			}, Drivers: p.drivers, Log: slog.New(slog.DiscardHandler),
		}
		if p.tune != nil {
			p.tune(&o)
		}
		go func() { ended <- app.ControlPlane(ctx, o, func() {}) }()
		p.stop = func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			p.stop = func() {}
		}
	}
	p.start()
	t.Cleanup(func() {
		p.stop()
		for _, o := range p.driver.Overlaps() {
			t.Error(o)
		}
	})
	return p
}

func (p *plane) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *plane) eventually(f func() string) {
	p.t.Helper()
	testkit.Eventually(p.t, patience, f)
}

// createNode creates a ready node that has registered the driver.
func (p *plane) createNode(name string) {
	p.t.Helper()
	_, err := p.client.CoreV1().Nodes().Create(p.ctx,
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}}},
		metav1.CreateOptions{})
	p.must(err)
	p.patchNodeStatus(name, map[string]any{
		"conditions": []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
	})
	_, err = p.client.StorageV1().CSINodes().Create(p.ctx, &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: p.conn.Name, NodeID: "id-" + name}}},
	}, metav1.CreateOptions{})
	p.must(err)
}

func (p *plane) patchNodeStatus(name string, fields map[string]any) {
	p.t.Helper()
	body, err := json.Marshal(map[string]any{"status": fields})
	p.must(err)
	_, err = p.client.CoreV1().Nodes().Patch(p.ctx, name, types.MergePatchType, body, metav1.PatchOptions{}, "status")
	p.must(err)
}

// reportInUse has a node report exactly these volumes as in use.
func (p *plane) reportInUse(node string, handles ...string) {
	p.t.Helper()
	names := []string{}
	for _, h := range handles {
		names = append(names, volume.UniqueName(p.conn.Name, h))
	}
	p.patchNodeStatus(node, map[string]any{"volumesInUse": names})
}

// waitForAttached waits until a node's status has exactly these volumes as attached.
func (p *plane) waitForAttached(node string, handles ...string) {
	p.t.Helper()
	want := []string{}
	for _, h := range handles {
		want = append(want, volume.UniqueName(p.conn.Name, h))
	}
	slices.Sort(want)
	p.eventually(func() string {
		n, err := p.client.CoreV1().Nodes().Get(p.ctx, node, metav1.GetOptions{})
		p.must(err)
		got := []string{}
		for _, v := range n.Status.VolumesAttached {
			got = append(got, string(v.Name))
		}
		if !slices.Equal(got, want) {
			return fmt.Sprintf("node %s may mount %v, not %v", node, got, want)
		}
		return ""
	})
}

// createBoundVolume creates a volume at the driver, its object, and a claim, waits until both are bound,
// and returns the volume's handle.
func (p *plane) createBoundVolume(name string, change ...func(*corev1.PersistentVolume)) (handle string) {
	p.t.Helper()
	capability := csi.Capability(csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, false, "", nil)
	made, err := p.conn.ControllerClient().CreateVolume(p.ctx, &csipb.CreateVolumeRequest{
		Name: name, VolumeCapabilities: []*csipb.VolumeCapability{capability},
		CapacityRange: &csipb.CapacityRange{RequiredBytes: 1 << 30},
	})
	p.must(err)
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name}, Spec: corev1.PersistentVolumeSpec{
		Capacity: size, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		ClaimRef:                      &corev1.ObjectReference{Namespace: "default", Name: name},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
			Driver: p.conn.Name, VolumeHandle: made.GetVolume().GetVolumeId(),
		}},
	}}
	for _, f := range change {
		f(v)
	}
	_, err = p.client.CoreV1().PersistentVolumes().Create(p.ctx, v, metav1.CreateOptions{})
	p.must(err)
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: v.Spec.AccessModes, VolumeName: v.Name, StorageClassName: ptr.To(v.Spec.StorageClassName),
		Resources: corev1.VolumeResourceRequirements{Requests: size},
	}}
	_, err = p.client.CoreV1().PersistentVolumeClaims("default").Create(p.ctx, c, metav1.CreateOptions{})
	p.must(err)
	p.waitForBound(name)
	return made.GetVolume().GetVolumeId()
}

func (p *plane) getClaim(name string) *corev1.PersistentVolumeClaim {
	p.t.Helper()
	c, err := p.client.CoreV1().PersistentVolumeClaims("default").Get(p.ctx, name, metav1.GetOptions{})
	p.must(err)
	return c
}

func (p *plane) waitForBound(claim string) {
	p.t.Helper()
	p.eventually(func() string {
		if c := p.getClaim(claim); c.Status.Phase != corev1.ClaimBound {
			return fmt.Sprintf("claim %s is %s", claim, c.Status.Phase)
		}
		return ""
	})
}

// createPod creates a Pod that uses the claims. The node may be empty.
func (p *plane) createPod(name, node string, claims ...string) {
	p.t.Helper()
	p.must(p.tryPod(name, node, claims...))
}

func (p *plane) tryPod(name, node string, claims ...string) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}
	pod.Spec.NodeName = node
	pod.Spec.Containers = []corev1.Container{{Name: "c", Image: "none"}}
	for _, c := range claims {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: c, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c},
		}})
	}
	_, err := p.client.CoreV1().Pods("default").Create(p.ctx, pod, metav1.CreateOptions{})
	return err
}

// deletePod deletes a Pod immediately, as a node agent does at the end.
func (p *plane) deletePod(name string) {
	p.t.Helper()
	p.must(p.client.CoreV1().Pods("default").Delete(p.ctx, name,
		metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
}

func (p *plane) attachments() []storagev1.VolumeAttachment {
	p.t.Helper()
	all, err := p.client.StorageV1().VolumeAttachments().List(p.ctx, metav1.ListOptions{})
	p.must(err)
	return all.Items
}

// waitForDetached waits until there is no attachment, neither in the API nor at the driver.
func (p *plane) waitForDetached() {
	p.t.Helper()
	p.eventually(func() string {
		for _, a := range p.attachments() {
			return fmt.Sprintf("attachment %s is there: %+v", a.Name, a.Status)
		}
		for _, v := range p.driver.Volumes() {
			if len(v.Nodes) > 0 {
				return fmt.Sprintf("volume %s is on %v", v.Name, v.Nodes)
			}
		}
		return ""
	})
}

// waitForEvent waits for an event about an object that has the reason and all words.
func (p *plane) waitForEvent(kind, name string, reason volume.Reason, words ...string) {
	p.t.Helper()
	var seen []string
	p.eventually(func() string {
		all, err := p.client.CoreV1().Events("").List(p.ctx, metav1.ListOptions{})
		p.must(err)
		seen = seen[:0]
		for _, e := range all.Items {
			if e.InvolvedObject.Kind != kind || e.InvolvedObject.Name != name {
				continue
			}
			seen = append(seen, e.Reason+": "+e.Message)
			has := func(w string) bool { return strings.Contains(e.Message, w) }
			if e.Reason == string(reason) && !slices.ContainsFunc(words, func(w string) bool { return !has(w) }) {
				return ""
			}
		}
		return fmt.Sprintf("no event %s %v about %s %s in %q", reason, words, kind, name, seen)
	})
}

// calls returns the number of calls of a method.
func (p *plane) calls(method string) int {
	n := 0
	for _, m := range p.driver.Methods() {
		if m == method {
			n++
		}
	}
	return n
}

func gone(err error) bool { return apierrors.IsNotFound(err) }
