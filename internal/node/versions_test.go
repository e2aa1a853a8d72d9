package node

import (
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
)

// versions gives each state of an object a version, as an API server does. Without
// them nobody could tell that what a watch brings late is older than his own write.
// It does not know who has written each field, as the tracker of fake.NewClientset does: that takes a third of the time
// of all tests.
type versions struct {
	clienttesting.ObjectTracker

	mu    sync.Mutex
	last  int64
	feeds []*feed
}

// newVersions keeps objects that have no version yet.
func newVersions(objects ...runtime.Object) (*versions, error) {
	v := &versions{ObjectTracker: clienttesting.NewObjectTracker(scheme.Scheme, scheme.Codecs.UniversalDecoder())}
	for _, o := range objects {
		if err := v.Add(o); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// write makes a write, before which the object gets the next version, and tells those who watch.
func (v *versions) write(o runtime.Object, do func() error) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	a, err := meta.Accessor(o)
	if err != nil {
		return err
	}
	v.last++
	a.SetResourceVersion(strconv.FormatInt(v.last, 10))
	return v.told(do())
}

// told hands over what the write has caused, and returns its error.
func (v *versions) told(err error) error {
	for _, f := range v.feeds {
		f.drain()
	}
	return err
}

func (v *versions) Create(
	r schema.GroupVersionResource, o runtime.Object, namespace string, opts ...metav1.CreateOptions,
) error {
	o = o.DeepCopyObject() // which is the caller's
	return v.write(o, func() error { return v.ObjectTracker.Create(r, o, namespace, opts...) })
}

func (v *versions) Update(
	r schema.GroupVersionResource, o runtime.Object, namespace string, opts ...metav1.UpdateOptions,
) error {
	o = o.DeepCopyObject() // which is the caller's
	return v.write(o, func() error { return v.ObjectTracker.Update(r, o, namespace, opts...) })
}

// Patch is given what the caller of the API gets as its answer.
func (v *versions) Patch(
	r schema.GroupVersionResource, o runtime.Object, namespace string, opts ...metav1.PatchOptions,
) error {
	return v.write(o, func() error { return v.ObjectTracker.Patch(r, o, namespace, opts...) })
}

func (v *versions) Delete(r schema.GroupVersionResource, namespace, name string, opts ...metav1.DeleteOptions) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.told(v.ObjectTracker.Delete(r, namespace, name, opts...))
}

// Watch passes on copies, because caches trim what they receive, and what the tests read must not change with it.
func (v *versions) Watch(
	r schema.GroupVersionResource, namespace string, opts ...metav1.ListOptions,
) (watch.Interface, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	from, err := v.ObjectTracker.Watch(r, namespace, opts...)
	if err != nil {
		return nil, err
	}
	f := &feed{from: from, more: make(chan struct{}, 1)}
	v.feeds = append(v.feeds, f)
	out := make(chan watch.Event)
	to := watch.NewProxyWatcher(out)
	go f.pass(out, to.StopChan())
	return to, nil
}

// feed holds any number of events: a watch of the tracker panics if a hundred are not received in time.
type feed struct {
	from watch.Interface
	more chan struct{}

	mu      sync.Mutex
	waiting []watch.Event
}

// drain takes the events that are there.
func (f *feed) drain() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		select {
		case e, open := <-f.from.ResultChan():
			if !open {
				return
			}
			e.Object = e.Object.DeepCopyObject()
			f.waiting = append(f.waiting, e)
			continue
		default:
		}
		select {
		case f.more <- struct{}{}:
		default:
		}
		return
	}
}

// pass passes events on until it is stopped.
func (f *feed) pass(out chan<- watch.Event, stop <-chan struct{}) {
	defer f.from.Stop()
	for {
		var next watch.Event
		var ready chan<- watch.Event
		f.mu.Lock()
		if len(f.waiting) > 0 {
			next, ready = f.waiting[0], out
		}
		f.mu.Unlock()
		select {
		case <-f.more:
		case ready <- next:
			f.mu.Lock()
			f.waiting = f.waiting[1:]
			f.mu.Unlock()
		case <-stop:
			return
		}
	}
}
