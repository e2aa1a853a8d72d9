package migrate

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"

	"volplane.dev/volplane/internal/decide/migrate"
	"volplane.dev/volplane/internal/queue"
)

// watch returns a channel that receives whenever an object that the decision depends on may have
// changed, and at least once, until ctx ends.
func (m *Migration) watch(ctx context.Context, f migrate.Facts) <-chan struct{} {
	changed := make(chan struct{}, 1)
	core, storage := m.Client.CoreV1(), m.Client.StorageV1()
	known := f.Volume
	if f.Journal != nil {
		known = f.Journal.Volume
	}
	one := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", f.Name).String()}
	sources := []func() (watch.Interface, error){
		func() (watch.Interface, error) { return core.PersistentVolumes().Watch(ctx, one) },
		func() (watch.Interface, error) { return core.Nodes().Watch(ctx, metav1.ListOptions{}) },
		func() (watch.Interface, error) { return storage.VolumeAttachments().Watch(ctx, metav1.ListOptions{}) },
	}
	if known != nil && known.Spec.ClaimRef != nil {
		ref := known.Spec.ClaimRef
		claim := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", ref.Name).String()}
		sources = append(sources,
			func() (watch.Interface, error) { return core.PersistentVolumeClaims(ref.Namespace).Watch(ctx, claim) },
			func() (watch.Interface, error) { return core.Pods(ref.Namespace).Watch(ctx, metav1.ListOptions{}) })
	}
	for _, open := range sources {
		go follow(ctx, open, changed)
	}
	return changed
}

// follow forwards the events of a watch, and restarts the watch when it ends; each restart counts
// as a change.
func follow(ctx context.Context, open func() (watch.Interface, error), changed chan<- struct{}) {
	for n := 0; ctx.Err() == nil; n++ {
		w, err := open()
		if err == nil {
			for range w.ResultChan() {
				n = 0
				select {
				case changed <- struct{}{}:
				default:
				}
			}
			w.Stop()
		}
		select {
		case <-ctx.Done():
		case <-time.After(queue.Backoff{Min: 100 * time.Millisecond, Max: 10 * time.Second}.Pause(n)):
		}
		select {
		case changed <- struct{}{}:
		default:
		}
	}
}
