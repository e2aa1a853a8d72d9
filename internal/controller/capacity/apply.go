package capacity

import (
	"context"
	"errors"
	"fmt"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/capacity"
)

var errRefused = errors.New("the answer of GetCapacity is not usable")

func (t *tracker) reconcileDriver(ctx context.Context, name string) error {
	f := t.gather(name)
	plan := capacity.Driver(f)
	for _, name := range t.remember(f.Driver, plan.Items) {
		t.Add(itemKey(f.Driver, name))
	}
	for _, r := range plan.Delete {
		t.Env.Log.Info("capacity object is obsolete", "driver", f.Driver, "object", cluster.Key(r.Object), "reason",
			r.Because.Message)
		if err := t.objects.Delete(ctx, r.Object, metav1.DeleteOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// reconcileItem calls the driver for one item. An item that is obsolete, or whose driver is not
// reached, is not requeued: when the driver registers again, all its items are queued.
func (t *tracker) reconcileItem(ctx context.Context, key controller.Key) (controller.Result, error) {
	if !t.begin(key) {
		return controller.Result{}, nil
	}
	defer func() {
		if next, ok := t.end(key.Namespace); ok {
			t.Add(next)
		}
	}()
	item, wanted := t.item(key.Namespace, key.Name)
	d, reached := t.Drivers.Get(key.Namespace)
	if !wanted || !reached {
		return controller.Result{}, nil
	}
	answer, err := ask(csi.About(ctx, csi.Subject{Object: item.String()}), d, item)
	if err != nil {
		t.Events.Warn(item.Class, capacity.Failed(item, csi.Describe(err)))
		return controller.Result{}, fmt.Errorf("ask for capacity of %s: %w", item, err)
	}
	now := capacity.Find(item, t.objects.By(cluster.CapacitiesByClass, item.Class.Name))
	if err := t.write(ctx, item, now, answer); err != nil {
		return controller.Result{}, err
	}
	return controller.Result{After: t.Poll}, nil
}

// ask calls GetCapacity with the same arguments as upstream's external-provisioner: the parameters
// of the class, and a capability without an access mode, which means any.
func ask(ctx context.Context, d *csi.Driver, i capacity.Item) (capacity.Answer, error) {
	r := &csipb.GetCapacityRequest{
		Parameters: i.Class.Parameters,
		VolumeCapabilities: []*csipb.VolumeCapability{
			csi.Capability(csipb.VolumeCapability_AccessMode_UNKNOWN, false, "", nil),
		},
	}
	if len(i.Segment) > 0 {
		r.AccessibleTopology = &csipb.Topology{Segments: i.Segment}
	}
	got, err := d.ControllerClient().GetCapacity(ctx, r)
	if err != nil {
		return capacity.Answer{}, err
	}
	a := capacity.Answer{Available: got.GetAvailableCapacity()}
	if largest := got.GetMaximumVolumeSize(); largest != nil {
		a.Largest = &largest.Value
	}
	return a, nil
}

// write writes an answer if it differs from the item's object. After a crash the cache may lack the
// object: then Ensure returns it, and it is compared with the answer.
func (t *tracker) write(
	ctx context.Context, item capacity.Item, now *storagev1.CSIStorageCapacity, a capacity.Answer,
) error {
	plan := capacity.Object(item, now, a)
	if plan.Refused {
		t.Events.Warn(item.Class, plan.Because)
		return fmt.Errorf("%w: %s", errRefused, plan.Because.Message)
	}
	if plan.Write == nil {
		return nil
	}
	if now != nil {
		_, err := t.objects.Update(ctx, plan.Write)
		return err
	}
	existing, created, err := t.objects.Ensure(ctx, plan.Write)
	if err != nil || created {
		return err
	}
	return t.write(ctx, item, existing, a)
}
