package crash

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/standalone/apiserver"
	"volplane.dev/volplane/standalone/standalonetest"
	"volplane.dev/volplane/test/internal/servers"
)

const (
	space = metav1.NamespaceDefault
	class = "fast"
)

// compareOften is the interval at which the attached volumes of a driver are listed, so short that this
// happens between any two steps.
const compareOften = 20 * time.Millisecond

// survivors is everything that outlives the control plane: the API server, the driver, and two nodes. The
// scenario writes what their agents would write.
type survivors struct {
	server *apiserver.Server
	client kubernetes.Interface
	driver *csitest.Driver
	// faults are what must never be, whatever comes later.
	faults chan string
	// cutShort counts the lives that were stopped in good order and left intents.
	cutShort int
}

func newSurvivors(t *testing.T) *survivors {
	t.Helper()
	config := csitest.Full()
	config.NodeID, config.OtherNodes, config.Segments = "id-n1", []string{"id-n2"}, nil
	config.Plugin.AccessibilityConstraints, config.Controller.Snapshot = false, true
	config.Plugin.GroupController, config.Group.Snapshot = true, true
	w := &survivors{
		server: servers.Borrow(t), driver: csitest.Start(t, config), faults: make(chan string, 100),
	}
	w.client = standalonetest.Client(t, w.server, "")
	if err := w.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.driver.OnCall("ControllerPublishVolume", w.oneNode)
	return w
}

// prepare creates the objects that every scenario needs.
func (w *survivors) prepare(ctx context.Context) error {
	_, err := w.client.StorageV1().CSIDrivers().Create(ctx,
		&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: w.driver.Name()}}, metav1.CreateOptions{})
	for _, name := range []string{"n1", "n2"} {
		meta := metav1.ObjectMeta{Name: name}
		_, e := w.client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: meta}, metav1.CreateOptions{})
		err = errors.Join(err, e, w.says(ctx, name,
			map[string]any{"conditions": []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}))
		_, e = w.client.StorageV1().CSINodes().Create(ctx, &storagev1.CSINode{ObjectMeta: meta, Spec: storagev1.CSINodeSpec{
			Drivers: []storagev1.CSINodeDriver{{Name: w.driver.Name(), NodeID: "id-" + name}},
		}}, metav1.CreateOptions{})
		err = errors.Join(err, e)
	}
	return err
}

// says writes the status of a node as its agent would.
func (w *survivors) says(ctx context.Context, node string, status map[string]any) error {
	body, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}
	_, err = w.client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, body, metav1.PatchOptions{}, "status")
	return err
}

// oneNode records a fault when a volume for one node is attached to a second one.
func (w *survivors) oneNode(_ int, req any) csitest.Action {
	r := req.(*csipb.ControllerPublishVolumeRequest)
	if r.GetVolumeCapability().GetAccessMode().GetMode() == csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER {
		return csitest.Action{}
	}
	for _, v := range w.driver.Volumes() {
		if v.ID == r.GetVolumeId() && len(v.Nodes) > 0 && !slices.Contains(v.Nodes, r.GetNodeId()) {
			w.faults <- fmt.Sprintf("volume %s is on %v and is to be attached to %s", v.Name, v.Nodes, r.GetNodeId())
		}
	}
	return csitest.Action{}
}

// run runs the control plane for one life, until the returned function is called.
func (w *survivors) run(f *fuse) (stop func() error, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	d, err := csi.Dial(ctx, w.driver.Socket, csi.WithFault(f.driver))
	if err != nil {
		cancel()
		return nil, err
	}
	drivers := csi.NewSet()
	drivers.Put(d)
	ended := make(chan error, 1)
	go func() {
		o := app.ControlPlaneOptions{
			Drivers: drivers, Log: slog.New(slog.DiscardHandler),
			ConfigFor: func(role string) (*rest.Config, error) {
				c := w.server.ClientConfig(app.User(role))
				c.Wrap(f.api)
				return c, nil
			},
		}
		o.ReconcileSync = compareOften
		ended <- app.ControlPlane(ctx, o, func() {})
	}()
	return func() error {
		cancel()
		err := <-ended
		return errors.Join(d.Close(), ignore(err, errDead, context.Canceled))
	}, nil
}

func ignore(err error, what ...error) error {
	for _, w := range what {
		if errors.Is(err, w) {
			return nil
		}
	}
	return err
}

// wrong describes what differs from the state at rest: the driver has exactly the volumes of the volume
// objects, plus some orphans, and they are attached where an attachment says so.
func (w *survivors) wrong(ctx context.Context, orphans int) (string, error) {
	volumes, err := w.client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	attachments, err := w.client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	objects, nodes := map[string]string{}, map[string][]string{}
	for _, v := range volumes.Items {
		if other, twice := objects[v.Spec.CSI.VolumeHandle]; twice {
			return fmt.Sprintf("volumes %s and %s are the same", v.Name, other), nil
		}
		objects[v.Spec.CSI.VolumeHandle] = v.Name
	}
	for _, a := range attachments.Items {
		nodes[*a.Spec.Source.PersistentVolumeName] = append(nodes[*a.Spec.Source.PersistentVolumeName], "id-"+a.Spec.NodeName)
	}
	for _, v := range w.driver.Volumes() {
		name := objects[v.ID]
		if name == "" && orphans > 0 {
			orphans--
			continue
		}
		if name == "" {
			return fmt.Sprintf("volume %s of the driver has no object: leaked", v.Name), nil
		}
		if slices.Sort(nodes[name]); !slices.Equal(nodes[name], v.Nodes) {
			return fmt.Sprintf("volume %s is attached to %v, its attachments are for %v", name, v.Nodes, nodes[name]), nil
		}
		delete(objects, v.ID)
	}
	for handle, name := range objects {
		return fmt.Sprintf("volume %s (%s) is not at the driver: lost", name, handle), nil
	}
	return "", nil
}
