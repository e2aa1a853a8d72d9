package attachdetach_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/controller/attachdetach"
)

// pair are a volume for one node at a time, its claim, and two nodes.
func pair() []runtime.Object { return append(bound("a"), node("n1"), node("n2")) }

// gets says whether an attachment to a node exists or has been requested.
func (w *world) gets(v, node string) bool {
	return slices.ContainsFunc(w.all(), func(a storagev1.VolumeAttachment) bool {
		return a.Name == attachment(v, node).Name
	})
}

// TestMove: a Pod is replaced by one on another node, which waits until the volume is detached from the first one, and
// its events say which Pod it waits for.
func TestMove(t *testing.T) {
	for name, restarts := range map[string]bool{"one process": false, "restarts after each step": true} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, attachdetach.Options{}, func(w *world) {
				step := func(do func()) {
					if do(); restarts {
						w.Restart()
					}
				}
				w.Users.Put(pod("p", "n1", "a"))
				w.pass(soon)
				step(w.attacher)
				step(func() { w.uses("n1", "a") })
				w.Users.Put(pod("q", "n2", "a"))
				w.pass(soon)
				for _, do := range []func(){
					func() { w.uses("n2", "a") }, func() { gone(w, w.pods(), "p") }, func() { w.uses("n1") }, func() {},
				} {
					step(do)
					if w.gets("a", "n2") {
						w.Fatalf("n2 gets it before it is detached from n1")
					}
				}
				step(w.attacher)
				w.are(attachment("a", "n2"))
				step(w.attacher)
				w.are(attachment("a", "n2", attached))
				w.knows("n1")
				w.knows("n2", "a")
				w.writes("create volumeattachments a>n1", tells("n1", "a"), tells("n1"), "delete volumeattachments a>n1 uid",
					"create volumeattachments a>n2", tells("n2", "a"))
				if !restarts {
					const multi = `Pod q Warning: FailedAttachVolume "Multi-Attach error for volume \"a\": it can be on one node at a time and is still attached to node n1`
					w.heard(`Pod p Normal: SuccessfulAttachVolume "volume a is attached to node n1", next node n1 (1)`,
						multi+`, used there by pod p", next pod p (1)`,
						multi+`", next node n1 (1)`,
						`Pod q Normal: SuccessfulAttachVolume "volume a is attached to node n2", next node n2 (1)`)
				}
			}, pair()...)
		})
	}
}

// TestComesBackWithIt: a node that was considered dead, and whose volume was detached by force, comes back with the
// volume still mounted: no other node gets the volume before that mount ends, however it ends.
func TestComesBackWithIt(t *testing.T) {
	for name, ends := range map[string]func(*world){
		"it unmounts":          func(w *world) { w.uses("n1") },
		"it dies again":        func(w *world) { change(w, w.Nodes(), "n1", down) },
		"people call it off":   func(w *world) { change(w, w.Nodes(), "n1", outOfService) },
		"its object is gone":   func(w *world) { gone(w, w.Nodes(), "n1") },
		"it waits for another": func(w *world) { w.uses("n1", "b") },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, attachdetach.Options{}, func(w *world) {
				w.attacher()
				w.uses("n1", "a")
				gone(w, w.pods(), "p")
				change(w, w.Nodes(), "n1", down)
				w.Users.Put(pod("q", "n2", "a"))
				w.pass(patience)
				change(w, w.Nodes(), "n1", up)
				w.attacher()
				w.are()
				change(w, w.Nodes(), "n1", knowing("b"))
				w.are()
				ends(w)
				w.are(attachment("a", "n2"))
			}, append(pair(), pod("p", "n1", "a"))...)
		})
	}
}

// TestUsedElsewhereAfterAStart: volumes that were attached to a node before this process began are remembered as well.
func TestUsedElsewhereAfterAStart(t *testing.T) {
	inWorld(t, attachdetach.Options{}, func(w *world) {
		w.Users.Put(bound("a")...)
		w.Users.Put(csiNode("n1"))
		w.pass(soon)
		change(w, w.Attachments(), attachment("a", "n1").Name, func(a *storagev1.VolumeAttachment) { a.Finalizers = nil })
		gone(w, w.Attachments(), attachment("a", "n1").Name)
		w.Users.Put(pod("q", "n2", "a"))
		w.pass(soon)
		w.are()
		w.uses("n1")
		w.are(attachment("a", "n2"))
	}, node("n1", using("a")), node("n2"), attachment("a", "n1", attached))
}

// TestOneOfTwo: of two nodes that want a volume at the same moment, one gets it, and the other gets it when the first
// no longer wants it, even if it was never attached.
func TestOneOfTwo(t *testing.T) {
	inWorld(t, attachdetach.Options{}, func(w *world) {
		w.Users.Put(pod("p", "n1", "a"), pod("q", "n2", "a"))
		w.pass(soon)
		first, second, loser := "p", "n2", attachment("a", "n2")
		if !w.gets("a", "n1") {
			first, second, loser = "q", "n1", attachment("a", "n1")
		}
		if all := w.all(); len(all) != 1 {
			w.Fatalf("attachments: %v; want one", all)
		}
		gone(w, w.pods(), first)
		w.pass(soon)
		w.are(loser)
		w.attacher()
		w.knows(second, "a")
	}, pair()...)
}

// TestShared: a volume for many nodes, or without access modes, is attached to all of them without waiting.
func TestShared(t *testing.T) {
	for name, modes := range map[string][]corev1.PersistentVolumeAccessMode{
		"many": {corev1.ReadWriteOnce, corev1.ReadWriteMany}, "readers": {corev1.ReadOnlyMany}, "says nothing": nil,
	} {
		t.Run(name, func(t *testing.T) {
			o := append(pair(), pod("p", "n1", "a"), pod("q", "n2", "a"))
			o[0].(*corev1.PersistentVolume).Spec.AccessModes = modes
			inWorld(t, attachdetach.Options{}, func(w *world) {
				w.attacher()
				w.are(attachment("a", "n1", attached), attachment("a", "n2", attached))
				w.knows("n1", "a")
				w.knows("n2", "a")
			}, o...)
		})
	}
}

// TestTwoNamesOfOneVolume: two PersistentVolumes refer to one volume at the driver: it is on one node at a time, and
// after the detach the other object attaches it to the other node.
func TestTwoNamesOfOneVolume(t *testing.T) {
	other := bound("b")
	other[0].(*corev1.PersistentVolume).Spec.CSI.VolumeHandle = "h-a"
	want := attachment("a", "n2")
	*want.Spec.Source.PersistentVolumeName = "b"
	for name, goes := range map[string]func(*world){
		"its object stays": func(*world) {},
		"its object is gone": func(w *world) {
			change(w, w.Attachments(), attachment("a", "n1").Name, recorded)
			gone(w, w.Volumes(), "a")
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, attachdetach.Options{}, func(w *world) {
				w.attacher()
				w.Users.Put(pod("q", "n2", "b"))
				w.pass(soon)
				w.are(attachment("a", "n1", attached))
				gone(w, w.pods(), "p")
				goes(w)
				w.attacher()
				w.are(want)
			}, append(append(pair(), other...), pod("p", "n1", "a"))...)
		})
	}
}

// TestRefused: when the API server refuses the attachment, the node gives up its claim on the volume once no Pod wants
// it; when the outcome of the creation is unknown, the node keeps it until the outcome is known.
func TestRefused(t *testing.T) {
	resource := storagev1.Resource("volumeattachments")
	for name, c := range map[string]struct {
		err  error
		lets bool
	}{
		"forbidden": {apierrors.NewForbidden(resource, "x", nil), true},
		"invalid": {
			apierrors.NewInvalid(storagev1.SchemeGroupVersion.WithKind("VolumeAttachment").GroupKind(), "x", nil), true,
		},
		"bad":       {apierrors.NewBadRequest("no"), true},
		"unknown":   {apierrors.NewNotFound(resource, "x"), true},
		"no answer": {errors.New("connection reset"), false},
		"timeout":   {apierrors.NewTimeoutError("late", 1), false},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, attachdetach.Options{}, func(w *world) {
				failing, tries := true, []time.Time{}
				w.Own.PrependReactor("create", "volumeattachments", func(a clienttesting.Action) (bool, runtime.Object, error) {
					if strings.HasSuffix(readable(nameOf(a)), "n2") || !failing {
						return false, nil, nil
					}
					tries = append(tries, time.Now())
					return true, nil, c.err
				})
				w.Users.Put(pod("p", "n1", "a"))
				w.pass(soon)
				w.Users.Put(pod("q", "n2", "a"))
				w.pass(time.Minute)
				if w.are(); len(tries) < 5 {
					w.Errorf("tried at %v", tries)
				}
				gone(w, w.pods(), "p")
				if c.lets {
					w.are(attachment("a", "n2"))
					return
				}
				w.are()
				failing = false
				w.pass(10 * time.Minute)
				w.are(attachment("a", "n2"))
				w.writes(append(slices.Repeat([]string{"create volumeattachments a>n1"}, len(tries)+1),
					"delete volumeattachments a>n1 uid version", "create volumeattachments a>n2")...)
			}, pair()...)
		})
	}
}

func nameOf(a clienttesting.Action) string {
	return a.(clienttesting.CreateAction).GetObject().(*storagev1.VolumeAttachment).Name
}
