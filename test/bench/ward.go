package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/test/internal/plugin"
)

// ward1 is the node's name.
const ward1 = "n1"

// ward is an arena with one node, whose driver answers immediately. The benchmark attaches the volumes.
type ward struct {
	*arena
	root   string
	free   bool
	plugin *plugin.Driver
	// sights has the times at which volumes were seen to be published and to be unstaged.
	sights  *sights
	hanging atomic.Pointer[hanging]
	// calls is how often the driver was asked to change something.
	calls atomic.Int64
	// volumes is their number, and told are those that the node may mount.
	volumes int
	told    []string
	stop    func() error
}

// hanging is a volume that the driver does not stage before a time.
type hanging struct {
	volume string
	until  time.Time
	asked  atomic.Bool
}

func newWard(ctx context.Context, free bool) (*ward, context.Context, error) {
	a, ctx, err := newArena(ctx, 0)
	w := &ward{arena: a, free: free, sights: &sights{news: make(chan struct{}, 1)}, stop: func() error { return nil }}
	if err != nil {
		return w, ctx, err
	}
	w.sights.clear()
	if w.root, err = newRoot(); err != nil {
		return w, ctx, err
	}
	if free {
		if err := w.describeDriver(ctx); err != nil {
			return w, ctx, err
		}
	}
	w.plugin, err = plugin.Serve(plugin.Options{
		Name: driverName, NodeID: "id-" + ward1, Root: w.root, Dir: filepath.Join(filepath.Dir(w.root), "driver"),
		Before: w.before, After: w.after,
	})
	return w, ctx, err
}

// before holds the call for one volume.
func (w *ward) before(ctx context.Context, method string, r proto.Message) error {
	h := w.hanging.Load()
	if h == nil || method != "NodeStageVolume" || idOf(r) != h.volume {
		return nil
	}
	h.asked.Store(true)
	select {
	case <-time.After(time.Until(h.until)):
	case <-ctx.Done():
	}
	return ctx.Err()
}

func (w *ward) after(method string, r proto.Message) {
	switch method {
	case "NodePublishVolume":
		w.sights.see(&w.sights.told, idOf(r))
	case "NodeUnstageVolume":
		w.sights.see(&w.sights.gone, idOf(r))
	case "NodeStageVolume", "NodeUnpublishVolume":
	default:
		return
	}
	w.calls.Add(1)
}

func idOf(r proto.Message) string {
	if m, ok := r.(interface{ GetVolumeId() string }); ok {
		return m.GetVolumeId()
	}
	return ""
}

// end stops all programs and unmounts everything.
func (w *ward) end() error {
	err := w.stop()
	if w.plugin != nil {
		err = errors.Join(err, w.plugin.Close())
	}
	if w.root != "" {
		points, also := mount.Below(w.root)
		err = errors.Join(err, also)
		for _, p := range slices.Backward(points) {
			err = errors.Join(err, mount.Detach(p.Path))
		}
		err = errors.Join(err, os.RemoveAll(filepath.Dir(w.root)))
	}
	if w.arena != nil {
		w.close()
	}
	return err
}

// registered waits until the node has registered the driver.
func (w *ward) registered(ctx context.Context) error {
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		n, err := w.client.StorageV1().CSINodes().Get(ctx, ward1, metav1.GetOptions{})
		if err == nil && len(n.Spec.Drivers) == 1 {
			return nil
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return fmt.Errorf("the driver is not registered: %w", context.Cause(ctx))
		}
	}
}

// nextVolumes creates volumes and their claims.
func (w *ward) nextVolumes(ctx context.Context, n int) ([]string, error) {
	names := make([]string, n)
	var all errgroup.Group
	all.SetLimit(users)
	for i := range names {
		names[i] = fmt.Sprint("c", w.volumes+i)
		all.Go(func() error { return w.wire(ctx, names[i]) })
	}
	w.volumes += n
	return names, all.Wait()
}

// attached creates attachments where they are needed, and writes them to the node's status.
func (w *ward) attached(ctx context.Context, names ...string) error {
	if w.free {
		return nil
	}
	var all errgroup.Group
	all.SetLimit(users)
	for _, v := range names {
		all.Go(func() error { return w.attachment(ctx, v) })
	}
	if err := all.Wait(); err != nil {
		return err
	}
	w.told = append(w.told, names...)
	may := []corev1.AttachedVolume{}
	for _, v := range w.told {
		may = append(may, corev1.AttachedVolume{Name: corev1.UniqueVolumeName(volume.UniqueName(driverName, v))})
	}
	return w.nodeStatus(ctx, ward1, map[string]any{"volumesAttached": may})
}

func (w *ward) attachment(ctx context.Context, name string) error {
	a := &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: attach.NameOf(driverName, name, ward1)},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: driverName, NodeName: ward1, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &name},
		},
	}
	a, err := w.client.StorageV1().VolumeAttachments().Create(ctx, a, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	_, err = w.client.StorageV1().VolumeAttachments().Patch(ctx, a.Name, types.MergePatchType,
		[]byte(`{"status":{"attached":true}}`), metav1.PatchOptions{}, "status")
	return err
}

// podFor creates a Pod on the node that uses a claim of the same name. A kubelet mounts only volumes that a
// container mounts.
func (w *ward) podFor(ctx context.Context, name string) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		NodeName: ward1, AutomountServiceAccountToken: ptr.To(false), TerminationGracePeriodSeconds: ptr.To[int64](1),
		Containers: []corev1.Container{
			{Name: "c", Image: "none", VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}},
		},
		Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
		}}},
	}}
	_, err := w.client.CoreV1().Pods(space).Create(ctx, pod, metav1.CreateOptions{})
	return err
}

// oneByOne creates Pods on an idle node, whose volumes are attached, and returns the times from the
// creation to the driver's answer.
func (w *ward) oneByOne(ctx context.Context, n int) ([]time.Duration, error) {
	names, err := w.nextVolumes(ctx, n)
	if err != nil {
		return nil, err
	}
	if err := w.attached(ctx, names...); err != nil {
		return nil, err
	}
	var times []time.Duration
	for _, name := range names {
		began := time.Now()
		if err := w.podFor(ctx, name); err != nil {
			return nil, err
		}
		var took time.Duration
		if err := w.sights.wait(ctx, func() bool { took = w.sights.told[name].Sub(began); return took > 0 }); err != nil {
			return nil, err
		}
		times = append(times, took)
		if err := w.client.CoreV1().Pods(space).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			return nil, err
		}
		if err := w.sights.wait(ctx, func() bool { return !w.sights.gone[name].IsZero() }); err != nil {
			return nil, err
		}
	}
	// They may be detached: they are no longer in use.
	w.told = slices.DeleteFunc(w.told, func(v string) bool { return slices.Contains(names, v) })
	return times, nil
}

// allAtOnce creates Pods at the same time, and returns the time until all are mounted.
func (w *ward) allAtOnce(ctx context.Context, n int) (time.Duration, error) {
	names, err := w.nextVolumes(ctx, n)
	if err != nil {
		return 0, err
	}
	if err := w.attached(ctx, names...); err != nil {
		return 0, err
	}
	w.sights.clear()
	began := time.Now()
	var all errgroup.Group
	all.SetLimit(users)
	for _, name := range names {
		all.Go(func() error { return w.podFor(ctx, name) })
	}
	if err := all.Wait(); err != nil {
		return 0, err
	}
	err = w.sights.wait(ctx, func() bool { return len(w.sights.told) == n })
	return time.Since(began), err
}
