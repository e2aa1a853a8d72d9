package differential

import (
	"context"
	"fmt"
	"regexp"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

const (
	// annDisturbed is changed by a user who edits the objects that controllers work on. It
	// is not compared.
	annDisturbed = "example.com/disturbed"
	// disturbances is how often each object is edited at most, and edits how often after each write of another client.
	disturbances, edits = 40, 4
)

// disturber edits claims and volumes of some sequences whenever another client has written them, which causes conflicts
// for the controllers.
type disturber struct {
	client kubernetes.Interface
	space  *regexp.Regexp

	mu     sync.Mutex
	spaces map[string]bool
	// objects are those seen, by UID.
	objects map[types.UID]*disturbed
}

type disturbed struct {
	space string
	// count is how often it was edited, last the version of the last edit.
	count int
	last  string
}

func newDisturber(client kubernetes.Interface) *disturber {
	return &disturber{
		client: client, space: newMemory().space, spaces: map[string]bool{}, objects: map[types.UID]*disturbed{},
	}
}

// Disturb has the objects of a sequence edited from now on.
func Disturb() Op {
	return Op{
		Text: "edit everything that is written from now on",
		Do: func(_ context.Context, s Side, space string) error {
			s.disturber.mu.Lock()
			defer s.disturber.mu.Unlock()
			s.disturber.spaces[space] = true
			return nil
		},
	}
}

// start follows all claims and volumes until the test ends.
func (d *disturber) start(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	t.Cleanup(func() { cancel(); all.Wait() })
	core := d.client.CoreV1()
	all.Go(func() { d.follow(ctx, core.PersistentVolumeClaims("").Watch) })
	all.Go(func() { d.follow(ctx, core.PersistentVolumes().Watch) })
}

func (d *disturber) follow(
	ctx context.Context, open func(context.Context, metav1.ListOptions) (watch.Interface, error),
) {
	for ctx.Err() == nil {
		events, err := open(ctx, metav1.ListOptions{})
		if err != nil {
			continue
		}
		for e := range events.ResultChan() {
			d.see(ctx, e.Object)
		}
	}
}

// see edits an object a few times if another client has written it.
func (d *disturber) see(ctx context.Context, object runtime.Object) {
	o, ok := object.(metav1.Object)
	if !ok || !d.chosen(o) {
		return
	}
	for range edits {
		version, err := d.edit(ctx, object)
		if err != nil {
			// It is gone, or the test ends.
			return
		}
		d.mu.Lock()
		one := d.objects[o.GetUID()]
		one.count, one.last = one.count+1, version
		d.mu.Unlock()
	}
}

// chosen says whether a version of an object is chosen for an edit.
func (d *disturber) chosen(o metav1.Object) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	one := d.objects[o.GetUID()]
	if one == nil {
		one = &disturbed{space: d.spaceOf(o)}
		d.objects[o.GetUID()] = one
	}
	return d.spaces[one.space] && one.count < disturbances && older(one.last, o.GetResourceVersion())
}

// older says whether a version, a number, is smaller than another one.
func older(a, b string) bool { return len(a) < len(b) || len(a) == len(b) && a < b }

func (d *disturber) spaceOf(o metav1.Object) string {
	v, ok := o.(*corev1.PersistentVolume)
	switch {
	case !ok:
		return o.GetNamespace()
	case v.Spec.ClaimRef != nil:
		return v.Spec.ClaimRef.Namespace
	}
	return d.space.FindString(v.Name)
}

// edit changes the annotation and returns the version that has it.
func (d *disturber) edit(ctx context.Context, object runtime.Object) (version string, err error) {
	d.mu.Lock()
	count := d.objects[object.(metav1.Object).GetUID()].count
	d.mu.Unlock()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"%d"}}}`, annDisturbed, count)
	switch o := object.(type) {
	case *corev1.PersistentVolumeClaim:
		got, err := d.client.CoreV1().PersistentVolumeClaims(o.Namespace).Patch(ctx, o.Name, types.MergePatchType, patch,
			metav1.PatchOptions{})
		return got.GetResourceVersion(), err
	case *corev1.PersistentVolume:
		got, err := d.client.CoreV1().PersistentVolumes().Patch(ctx, o.Name, types.MergePatchType, patch,
			metav1.PatchOptions{})
		return got.GetResourceVersion(), err
	}
	return "", fmt.Errorf("what is %T?", object)
}
