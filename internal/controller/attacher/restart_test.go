package attacher

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"volplane.dev/volplane/internal/csi/csitest"
)

var errKilled = errors.New("the process has ended")

// life is a world whose attacher is killed before or after one of its steps, which
// are writes and calls of the driver.
type life struct {
	*world
	// at is the step, done whether it is done; n counts them, and dead says that
	// the attacher reaches nobody.
	at   int
	done bool
	n    int
	dead bool
	// has says what the driver has attached, and steps what was done.
	has   bool
	steps []string
}

func newLife(t *testing.T, at int, done bool) *life {
	l := &life{world: newWorld(t, Options{}, pv(), va(), csiNode(), secret()), at: at, done: done}
	l.client.Fate = func(_ int, write string) (bool, error) {
		return l.step(write[:strings.LastIndex(write, " ")], func() {})
	}
	l.driver.OnCall("ControllerPublishVolume", func(_ int, r any) csitest.Action {
		if diff := cmp.Diff(publishRequest().String(), r.(*csipb.ControllerPublishVolumeRequest).String()); diff != "" {
			t.Errorf("asked to attach (-want +got):\n%s", diff)
		}
		return l.call("attach", &csipb.ControllerPublishVolumeResponse{PublishContext: map[string]string{"device": "/dev/x"}},
			func() { l.has = true })
	})
	l.driver.OnCall("ControllerUnpublishVolume", func(_ int, r any) csitest.Action {
		if diff := cmp.Diff(unpublishRequest().String(), r.(*csipb.ControllerUnpublishVolumeRequest).String()); diff != "" {
			t.Errorf("asked to detach (-want +got):\n%s", diff)
		}
		return l.call("detach", &csipb.ControllerUnpublishVolumeResponse{}, func() { l.has = false })
	})
	return l
}

// step says whether something is done, and what is answered, which may be the last. do
// is what it does to the driver.
func (l *life) step(what string, do func()) (done bool, err error) {
	l.kept()
	if l.dead {
		return false, errKilled
	}
	if l.n++; l.n == l.at {
		l.dead, err = true, errKilled
	}
	if done = err == nil || l.done; done {
		l.steps = append(l.steps, what)
		do()
	}
	return done, err
}

func (l *life) call(what string, answer any, do func()) csitest.Action {
	if _, err := l.step(what, do); err != nil {
		return csitest.Action{Err: status.Error(codes.Unavailable, err.Error())}
	}
	return csitest.Action{Answer: answer}
}

// kept is true at any time: what the driver has attached can be detached, for the
// attachment says how, and neither it nor the volume can go.
func (l *life) kept() {
	if !l.has {
		return
	}
	a, err := l.client.Tracker().Get(attachments(), "", "va")
	if err != nil {
		l.t.Fatal(err)
	}
	v, err := l.client.Tracker().Get(volumes(), "", "pv")
	if err != nil {
		l.t.Fatal(err)
	}
	got := a.(*storagev1.VolumeAttachment)
	if !slices.Contains(got.Finalizers, ours) || !cmp.Equal(got.Annotations, va(recorded).Annotations) ||
		!slices.Contains(v.(*corev1.PersistentVolume).Finalizers, ours) {
		l.t.Errorf("attached, and not kept: %+v of %+v", got, v)
	}
}

// rests has the attacher look at a key until it goes well, and begins another one
// when it was killed.
func (l *life) rests(kind, name string) {
	l.t.Helper()
	for range 3 {
		_, err := l.reconcile(kind, name)
		if l.dead {
			l.dead = false
			l.start(Options{})
			continue
		}
		if err != nil {
			l.t.Fatal(err)
		}
	}
}

// deleted has somebody delete an object that finalizers keep, which the next
// attacher knows.
func (w *world) deleted(r schema.GroupVersionResource, name string) {
	w.t.Helper()
	o, err := w.client.Tracker().Get(r, "", name)
	if err != nil {
		w.t.Fatal(err)
	}
	o.(metav1.Object).SetDeletionTimestamp(va(going).DeletionTimestamp)
	if err := w.client.Tracker().Update(r, o, ""); err != nil {
		w.t.Fatal(err)
	}
	w.start(Options{})
}

func attachments() schema.GroupVersionResource {
	return storagev1.SchemeGroupVersion.WithResource("volumeattachments")
}

func volumes() schema.GroupVersionResource {
	return corev1.SchemeGroupVersion.WithResource("persistentvolumes")
}

// TestKilledBetweenAnyTwoSteps: whenever an attacher is killed, what it leaves can
// be detached, and the next one ends where this one would have ended.
func TestKilledBetweenAnyTwoSteps(t *testing.T) {
	want := []string{
		"update persistentvolumes", "update volumeattachments", "attach", "patch volumeattachments/status", "detach",
		"update volumeattachments", "update persistentvolumes",
	}
	calls := []int{3, 5}
	for at := range len(want) + 1 {
		for _, done := range []bool{false, true} {
			t.Run(fmt.Sprint(at, done), func(t *testing.T) {
				l := newLife(t, at, done)
				l.rests(kindAttachment, "va")
				l.attachment(va(recorded, attached))
				l.volume(pv(kept))
				if !l.has {
					t.Error("it is not attached")
				}
				l.deleted(attachments(), "va")
				l.rests(kindAttachment, "va")
				l.attachment(va(recorded, attached, going, func(a *storagev1.VolumeAttachment) {
					a.Finalizers = []string{foreign}
				}))
				if l.has {
					t.Error("it is attached")
				}
				if err := l.client.Tracker().Delete(attachments(), "", "va"); err != nil {
					t.Fatal(err)
				}
				l.deleted(volumes(), "pv")
				l.rests(kindVolume, "pv")
				l.volume(pv(dying))
				steps := slices.Clone(want)
				// Only a call of which nothing was written down is made again.
				if done && slices.Contains(calls, at) {
					steps = slices.Insert(steps, at, want[at-1])
				} else if !done && slices.Contains(calls, at-1) {
					steps = slices.Insert(steps, at-1, want[at-2])
				}
				if diff := cmp.Diff(steps, l.steps); diff != "" {
					t.Errorf("steps (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// TestOldLeader: one that does not know yet that another one leads undoes nothing of
// what that one did.
func TestOldLeader(t *testing.T) {
	w := newWorld(t, Options{}, pv(), va(), csiNode(), secret())
	old := w.c
	w.start(Options{})
	w.works(kindAttachment, "va")
	w.c = old
	w.fails(kindAttachment, "va", "update volume pv")
	w.called(publishRequest())
	w.attachment(va(recorded, attached))
	w.volume(pv(kept))

	w.deleted(attachments(), "va")
	old = w.c
	w.start(Options{})
	w.works(kindAttachment, "va")
	w.c = old
	w.fails(kindAttachment, "va", "update attachment va")
	w.called(publishRequest(), unpublishRequest(), unpublishRequest())
	w.attachment(va(recorded, attached, going, func(a *storagev1.VolumeAttachment) { a.Finalizers = []string{foreign} }))
}
