package flex

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/flex/bridge"
	"volplane.dev/volplane/internal/flex/host"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/process/lifecycle"
	"volplane.dev/volplane/internal/volume"
)

// Writes is what a host of FlexVolume drivers writes, as its node or as a service account.
func Writes() []kube.Access {
	return []kube.Access{
		kube.Write("", "nodes", "patch").Only(kube.Annotation(volume.AnnDriverNotes), kube.Annotation(volume.AnnDriverDir)),
		kube.Write("storage.k8s.io", "csidrivers", "create", "delete"),
	}
}

// retryInterval is the time after which a failed write is retried: at the start the Node may not exist yet.
const retryInterval = time.Second

// objects writes the state of a host's FlexVolume drivers to the API server.
type objects struct {
	client kubernetes.Interface
	node   string
	// dir is the plugin directory.
	dir  string
	log  *slog.Logger
	wake chan struct{}

	mu sync.Mutex
	// objects holds the CSIDrivers that must be created, by name; nil if another component creates them.
	objects map[string]bridge.Served
	// drivers holds what is wrong with each driver, or "", by CSI name.
	drivers map[string]string
	// objectErrors holds why the CSIDriver of a driver could not be created or changed.
	objectErrors map[string]string
	// written is the value of the Node's annotation.
	written string
}

func newObjects(o BridgeOptions) *objects {
	f := &objects{
		client: o.Client, node: o.Node, dir: o.PluginDir, log: o.Log, wake: make(chan struct{}, 1),
		drivers: map[string]string{}, objectErrors: map[string]string{},
	}
	if o.Objects {
		f.objects = map[string]bridge.Served{}
	}
	lifecycle.Wake(f.wake)
	return f
}

// addServed adds a driver that is served.
func (f *objects) addServed(s bridge.Served) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.objects != nil {
		f.objects[s.Name] = s
	}
	lifecycle.Wake(f.wake)
}

// setState takes the state of a driver.
func (f *objects) setState(s host.State) {
	n, err := decide.ParseName(s.Name)
	if err != nil {
		return
	}
	name, err := n.CSI()
	if err != nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch s.State {
	case decide.Ready:
		f.drivers[name] = ""
	case decide.Probing:
		if _, known := f.drivers[name]; !known {
			f.drivers[name] = s.Message
		}
	case decide.Removed:
		if delete(f.drivers, name); s.InUse > 0 {
			f.drivers[name] = s.Message
		}
	default:
		f.drivers[name] = s.Message
	}
	lifecycle.Wake(f.wake)
}

// run writes what has changed and retries until it succeeds.
func (f *objects) run(ctx context.Context) error {
	var again <-chan time.Time // nil when nothing has failed
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.wake:
		case <-again:
		}
		again = nil
		done, err := f.createObjects(ctx), f.annotateNode(ctx)
		if err != nil && ctx.Err() == nil {
			f.log.Debug("the FlexVolume drivers cannot be written to the node, will be retried", "node", f.node, "err", err)
		}
		if !done || err != nil {
			again = time.After(retryInterval)
		}
	}
}

// createObjects creates the CSIDriver objects that are missing or wrong, and says whether all of them are right now.
func (f *objects) createObjects(ctx context.Context) (done bool) {
	f.mu.Lock()
	all := f.objects
	if all != nil {
		f.objects = map[string]bridge.Served{}
	}
	f.mu.Unlock()
	done = true
	for _, s := range all {
		err := f.ensure(ctx, bridge.Object(s))
		if ctx.Err() != nil {
			return done
		}
		f.recordError(s, err)
		done = done && err == nil
	}
	return done
}

// recordError stores why an object could not be created, and logs it once. The creation is retried,
// unless the driver has changed in the meantime.
func (f *objects) recordError(s bridge.Served, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		delete(f.objectErrors, s.Name)
		return
	}
	if f.objectErrors[s.Name] != err.Error() {
		f.log.Error("the CSIDriver of a FlexVolume driver cannot be created, will be retried", "driver", s.Name, "err", err)
		f.objectErrors[s.Name] = err.Error()
	}
	if _, newer := f.objects[s.Name]; !newer {
		f.objects[s.Name] = s
	}
}

// annotateNode writes the state of the drivers to the Node, if it has changed.
func (f *objects) annotateNode(ctx context.Context) error {
	f.mu.Lock()
	drivers := maps.Clone(f.drivers)
	for name, why := range f.objectErrors {
		if wrong, known := drivers[name]; known && wrong == "" {
			drivers[name] = why
		}
	}
	f.mu.Unlock()
	text, err := json.Marshal(drivers)
	if err != nil || string(text) == f.written {
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{
		volume.AnnDriverNotes: string(text), volume.AnnDriverDir: f.dir,
	}}})
	if err != nil {
		return err
	}
	if _, err := f.client.CoreV1().Nodes().Patch(ctx, f.node, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("annotate node %s: %w", f.node, err)
	}
	f.written = string(text)
	return nil
}

// ensure creates the CSIDriver of a driver. If volplane created it with another attachRequired,
// which is immutable, the object is replaced. Other changes of an administrator are kept.
func (f *objects) ensure(ctx context.Context, want *storagev1.CSIDriver) error {
	drivers := f.client.StorageV1().CSIDrivers()
	has, err := drivers.Get(ctx, want.Name, metav1.GetOptions{})
	switch {
	case err == nil && has.Spec.AttachRequired != nil && *has.Spec.AttachRequired == *want.Spec.AttachRequired:
		return nil
	case err == nil && has.Labels[volume.LabelMadeBy] != volume.Program:
		return fmt.Errorf("CSIDriver %s, which was not created by volplane, does not have attachRequired: %t, as the driver "+
			"needs: delete it, and it is created again",
			want.Name, *want.Spec.AttachRequired)
	case err == nil:
		if err := drivers.Delete(ctx, want.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	case !apierrors.IsNotFound(err):
		return err
	}
	_, err = drivers.Create(ctx, want, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil // the bridge of another node has created it in the meantime
	}
	return err
}
