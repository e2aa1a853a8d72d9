package attachdetach_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/controller/attachdetach"
	"volplane.dev/volplane/internal/kube/kubetest"
)

// life is that of a volume on a node: a Pod is created and deleted. step performs each step.
func life(w *world, step func(func())) {
	w.Helper()
	step(func() { w.Users.Put(pod("p", "n1", "a")); w.pass(soon) })
	w.are(attachment("a", "n1"))
	w.knows("n1")
	step(w.attacher)
	w.are(attachment("a", "n1", attached))
	w.knows("n1", "a")
	step(func() { w.uses("n1", "a") })
	w.are(attachment("a", "n1", attached))
	w.knows("n1", "a")
	step(func() { gone(w, w.pods(), "p") })
	w.knows("n1")
	w.are(attachment("a", "n1", attached))
	step(func() { w.uses("n1") })
	if all := w.all(); len(all) != 1 || all[0].DeletionTimestamp == nil {
		w.Errorf("attachments: %v; want the one, on its way out", all)
	}
	step(w.attacher)
	w.are()
	w.knows("n1")
}

// TestLife: each write is made once, whichever process restarts in between, and nothing is detached before the node
// reports that it no longer uses the volume.
func TestLife(t *testing.T) {
	for name, restarts := range map[string]bool{"one process": false, "restarts after each step": true} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, attachdetach.Options{}, func(w *world) {
				life(w, func(do func()) {
					if do(); restarts {
						w.Restart()
					}
				})
				w.writes("create volumeattachments a>n1", tells("n1", "a"), tells("n1"), "delete volumeattachments a>n1 uid")
				w.heard(`Pod p Normal: SuccessfulAttachVolume "volume a is attached to node n1", next node n1 (1)`)
			}, alone()...)
		})
	}
}

// fate is what becomes of one write.
type fate struct {
	// done says that it is done all the same, and killed that the process ends.
	done, killed bool
}

// meets gives the controller's write with a number, counted from 1, its fate. The result says whether the process has
// ended since the last call.
func (w *world) meets(number int, f fate) (killed func() bool) {
	n, dead := 0, false
	w.OnStart = func() { dead = false }
	w.Restart()
	w.Users.Lock()
	defer w.Users.Unlock()
	w.Users.Fate = func(int, string) (bool, error) {
		if n++; n != number && !dead {
			return true, nil
		}
		dead = f.killed
		return n == number && f.done, apierrors.NewInternalError(errors.New("nobody knows"))
	}
	return func() bool { return dead }
}

// TestInterrupted: each write is refused once, or done without an answer, or the process ends before or after it. The
// result is the same.
func TestInterrupted(t *testing.T) {
	for name, f := range map[string]fate{
		"refused": {}, "unanswered": {done: true}, "killed before": {killed: true},
		"killed after": {done: true, killed: true},
	} {
		for number := range 4 {
			t.Run(fmt.Sprintf("%s %d", name, number+1), func(t *testing.T) {
				inWorld(t, attachdetach.Options{}, func(w *world) {
					killed := w.meets(number+1, f)
					life(w, func(do func()) {
						if do(); killed() {
							w.Restart()
						}
					})
				}, alone()...)
			})
		}
	}
}

// TestUseThatIsNotSeenYet: a node reports a volume in use while volumesAttached is about to lose it: the response to
// that patch shows the use, and nothing is detached.
func TestUseThatIsNotSeenYet(t *testing.T) {
	inWorld(t, attachdetach.Options{}, func(w *world) {
		w.Users.Put(pod("p", "n1", "a"))
		w.pass(soon)
		w.attacher()
		w.Own.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			kubetest.Quietly(w.Users, w.Nodes(), "n1", using("a"))
			return false, nil, nil
		})
		gone(w, w.pods(), "p")
		w.knows("n1")
		w.are(attachment("a", "n1", attached))
		w.writes("create volumeattachments a>n1", tells("n1", "a"), tells("n1"))
	}, alone()...)
}

// TestAttacherIsQuicker: the attacher adds its finalizer to an attachment while it is about to be deleted: the deletion
// then waits for the attacher (kubernetes/kubernetes#77988).
func TestAttacherIsQuicker(t *testing.T) {
	inWorld(t, attachdetach.Options{}, func(w *world) {
		w.Users.Put(pod("p", "n1", "a"))
		w.pass(soon)
		first := true
		w.Own.PrependReactor("delete", "volumeattachments", func(clienttesting.Action) (bool, runtime.Object, error) {
			if first {
				first = false
				kubetest.Quietly(w.Users, w.Attachments(), attachment("a", "n1").Name, attached)
			}
			return false, nil, nil
		})
		gone(w, w.pods(), "p")
		if all := w.all(); len(all) != 1 || all[0].DeletionTimestamp == nil || len(all[0].Finalizers) != 1 {
			w.Errorf("attachments: %v; want the one, on its way out and kept by the attacher", all)
		}
		w.writes("create volumeattachments a>n1", "delete volumeattachments a>n1 uid version",
			"delete volumeattachments a>n1 uid")
	}, alone()...)
}

// TestTakenAway: an attachment that a Pod still uses is created again after a user deletes it.
func TestTakenAway(t *testing.T) {
	inWorld(t, attachdetach.Options{}, func(w *world) {
		w.Users.Put(pod("p", "n1", "a"))
		w.pass(soon)
		w.attacher()
		change(w, w.Nodes(), "n1", knowing())
		w.knows("n1", "a")
		change(w, w.Nodes(), "n1", knowing("a", "b"))
		w.knows("n1", "a")
		gone(w, w.Attachments(), attachment("a", "n1").Name)
		w.knows("n1")
		w.attacher()
		w.are(attachment("a", "n1"))
		w.attacher()
		w.are(attachment("a", "n1", attached))
		w.knows("n1", "a")
	}, alone()...)
}

// TestNotOurs: attachments that others created under other names are taken into account, but never changed.
func TestNotOurs(t *testing.T) {
	hand, inline, orphan := attachment("a", "n1", attached), attachment("b", "n1", attached), attachment("x", "n1")
	hand.Name, inline.Name, orphan.Name = "by-hand", "inline", "orphan"
	inline.Spec.Source = storagev1.VolumeAttachmentSource{InlineVolumeSpec: &volumeOf("b").Spec}
	inWorld(t, attachdetach.Options{}, func(w *world) {
		change(w, w.Nodes(), "n1", using("a"))
		w.are(hand, inline, orphan)
		w.Users.Put(pod("p", "n1", "a"))
		w.pass(soon)
		w.knows("n1", "a")
		gone(w, w.pods(), "p")
		w.uses("n1")
		w.are(hand, inline, orphan)
		w.writes(tells("n1", "a"), tells("n1"))
	}, slices.Concat(bound("a"), objects(node("n1"), hand, inline, orphan))...)
}

// TestGoneBeforeTheAnswer: an attachment that a user deletes before its creator receives the response is created again.
func TestGoneBeforeTheAnswer(t *testing.T) {
	inWorld(t, attachdetach.Options{}, func(w *world) {
		n := 0
		w.Own.PrependReactor("create", "volumeattachments", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if n++; n == 3 {
				return false, nil, nil
			}
			o, err := w.Users.Invokes(a, nil)
			if err == nil {
				err = w.Users.StorageV1().VolumeAttachments().Delete(w.Context(), attachment("a", "n1").Name,
					metav1.DeleteOptions{})
			}
			return true, o, err
		})
		w.Users.Put(pod("p", "n1", "a"))
		w.pass(soon)
		w.are(attachment("a", "n1"))
		w.writes(slices.Repeat([]string{"create volumeattachments a>n1"}, 3)...)
	}, alone()...)
}

// TestFewPatches: while volumes are on their way to a node, one patch of volumesAttached adds many of them instead of
// one each; the last of them is added immediately.
func TestFewPatches(t *testing.T) {
	names := []string{"a", "b", "c", "d", "e", "f"}
	o := objects(node("n1"), pod("p", "n1", names...))
	for _, v := range names {
		o = append(o, bound(v)...)
	}
	inWorld(t, attachdetach.Options{}, func(w *world) {
		for i, v := range names {
			kubetest.Quietly(w.Users, w.Attachments(), attachment(v, "n1").Name, attached)
			if i < 5 {
				w.pass(rest / 10)
			}
		}
		w.pass(soon)
		w.knows("n1", names...)
		w.patches(tells("n1", "a"), tells("n1", names...))
	}, o...)
}

// TestLimit: a node gets as many volumes as its driver allows, and the next one after a detach or a higher limit.
func TestLimit(t *testing.T) {
	limited := csiNode("n1")
	limited.Spec.Drivers[1].Allocatable = &storagev1.VolumeNodeResources{Count: ptr.To[int32](1)}
	for name, ends := range map[string]func(*world){
		"the limit is higher": func(w *world) {
			change(w, w.Users.StorageV1().CSINodes(), "n1",
				func(n *storagev1.CSINode) { n.Spec.Drivers[1].Allocatable.Count = ptr.To[int32](2) })
			w.are(attachment("a", "n1", attached), attachment("b", "n1"))
		},
		"there is none": func(w *world) {
			gone(w, w.Users.StorageV1().CSINodes(), "n1")
			w.are(attachment("a", "n1", attached), attachment("b", "n1"))
		},
		"one is gone": func(w *world) { gone(w, w.pods(), "p"); w.attacher(); w.are(attachment("b", "n1")) },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, attachdetach.Options{}, func(w *world) {
				w.attacher()
				w.Users.Put(pod("q", "n1", "b"))
				w.pass(soon)
				w.are(attachment("a", "n1", attached))
				w.heard(`Pod p Normal: SuccessfulAttachVolume "volume a is attached to node n1", next node n1 (1)`,
					`Pod q Warning: FailedAttachVolume "volume b cannot be attached: node n1 has reached its limit of volumes of driver d.example (1)", next user (1)`)
				ends(w)
			}, slices.Concat(bound("a"), bound("b"), objects(limited, node("n1"), pod("p", "n1", "a")))...)
		})
	}
}

// alone are a volume, its claim, and a node.
func alone() []runtime.Object { return append(bound("a"), node("n1")) }
