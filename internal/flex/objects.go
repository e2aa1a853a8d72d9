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
	"volplane.dev/volplane/internal/volume"
)

// Writes is what a host of FlexVolume drivers writes, as its node or as a service
// account.
func Writes() []kube.Access {
	return []kube.Access{
		kube.Write("", "nodes", "patch").Only(kube.Annotation(volume.AnnDriverNotes), kube.Annotation(volume.AnnDriverDir)),
		kube.Write("storage.k8s.io", "csidrivers", "create", "delete"),
	}
}

// tellPause is the pause before what could not be written is written again: at
// the start the Node is not there yet.
const tellPause = time.Second

// objects tells the API server of a host's FlexVolume drivers.
type objects struct {
	client kubernetes.Interface
	node   string
	// dir is where the drivers are.
	dir  string
	log  *slog.Logger
	wake chan struct{}

	mu sync.Mutex
	// objects are the CSIDrivers that have to be made, nil when that is somebody
	// else's.
	objects map[string]bridge.Served
	// drivers are what is wrong with each driver, refused why its CSIDriver is not
	// as it has to be, told what the Node says.
	drivers, refused map[string]string
	told             string
}

func newObjects(o BridgeOptions) *objects {
	f := &objects{
		client: o.Client, node: o.Node, dir: o.PluginDir, log: o.Log, wake: make(chan struct{}, 1),
		drivers: map[string]string{}, refused: map[string]string{},
	}
	if o.Objects {
		f.objects = map[string]bridge.Served{}
	}
	f.poke()
	return f
}

func (f *objects) poke() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// want is told of each driver that is served.
func (f *objects) want(s bridge.Served) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.objects != nil {
		f.objects[s.Name] = s
	}
	f.poke()
}

// hear is told where each driver stands.
func (f *objects) hear(s host.State) {
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
	f.poke()
}

// run writes what is not written yet, again until that has gone well.
func (f *objects) run(ctx context.Context) error {
	tick := time.NewTicker(tellPause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.wake:
		case <-tick.C:
		}
		f.make(ctx)
		if err := f.tell(ctx); err != nil && ctx.Err() == nil {
			f.log.Debug("node cannot be told of FlexVolume drivers, will be tried again", "node", f.node, "err", err)
		}
	}
}

// make has the API server have the objects that are wanted.
func (f *objects) make(ctx context.Context) {
	f.mu.Lock()
	all := f.objects
	if all != nil {
		f.objects = map[string]bridge.Served{}
	}
	f.mu.Unlock()
	for _, s := range all {
		err := f.ensure(ctx, bridge.Object(s))
		if ctx.Err() != nil {
			return
		}
		f.refuse(s, err)
	}
}

// refuse keeps why an object could not be made, which is told once, and what
// could not be made, unless something newer is wanted.
func (f *objects) refuse(s bridge.Served, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		delete(f.refused, s.Name)
		return
	}
	if f.refused[s.Name] != err.Error() {
		f.log.Error("CSIDriver of a FlexVolume driver cannot be made, will be tried again", "driver", s.Name, "err", err)
		f.refused[s.Name] = err.Error()
	}
	if _, newer := f.objects[s.Name]; !newer {
		f.objects[s.Name] = s
	}
}

// tell writes the drivers to the Node, if that says something else.
func (f *objects) tell(ctx context.Context) error {
	f.mu.Lock()
	drivers := maps.Clone(f.drivers)
	for name, why := range f.refused {
		if wrong, known := drivers[name]; known && wrong == "" {
			drivers[name] = why
		}
	}
	f.mu.Unlock()
	text, err := json.Marshal(drivers)
	if err != nil || string(text) == f.told {
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
	f.told = string(text)
	return nil
}

// ensure makes the object of a driver, and makes it anew when it is one of ours
// that says something else of attaching, which cannot be changed. What else an
// administrator changed stays.
func (f *objects) ensure(ctx context.Context, want *storagev1.CSIDriver) error {
	drivers := f.client.StorageV1().CSIDrivers()
	has, err := drivers.Get(ctx, want.Name, metav1.GetOptions{})
	switch {
	case err == nil && has.Spec.AttachRequired != nil && *has.Spec.AttachRequired == *want.Spec.AttachRequired:
		return nil
	case err == nil && has.Labels[volume.LabelMadeBy] != volume.Program:
		return fmt.Errorf("CSIDriver %s, which was not made by volplane, does not say attachRequired: %t, as the driver "+
			"needs: delete it, and it is made anew",
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
		return nil // the bridge of another node was here meanwhile
	}
	return err
}
