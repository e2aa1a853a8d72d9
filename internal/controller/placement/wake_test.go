package placement

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/kube/kubetest"
	"volplane.dev/volplane/internal/volume"
)

// without leaves out an object that a world would have.
func without(all []runtime.Object, one runtime.Object) []runtime.Object {
	return slices.DeleteFunc(slices.Clone(all), func(o runtime.Object) bool { return same(o, one) })
}

// TestWakes: whatever a Pod lacks, it has its place, or its claim a node, when that
// comes.
func TestWakes(t *testing.T) {
	has := []runtime.Object{pod(), claim(bound), pv(boundTo("c"))}
	making := []runtime.Object{pod(), claim()}
	zone := pod(bare, func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"zone": "n1"} })
	unlabelled := node("n1", func(n *corev1.Node) { n.Labels = nil })
	gone := node("n1", func(n *corev1.Node) { n.DeletionTimestamp = &metav1.Time{Time: time.Unix(1e9, 0)} })
	for _, c := range []struct {
		name         string
		before, last []runtime.Object
	}{
		{"a node", without(with(has...), node("n1")), []runtime.Object{node("n1")}},
		{"a node that is ready", with(append(has, node("n1", unready))...), []runtime.Object{node("n1")}},
		{"a node that takes Pods", with(append(has, node("n1", cordoned))...), []runtime.Object{node("n1")}},
		{"a node without its taint", with(append(has, node("n1", tainted))...), []runtime.Object{node("n1")}},
		{"a node's label", with(zone, unlabelled), []runtime.Object{node("n1")}},
		{"a node that stays", with(zone, gone), []runtime.Object{node("n1")}},
		{"a driver on the node", without(with(has...), csiNode("n1")), []runtime.Object{csiNode("n1")}},
		{"a higher limit", with(append(has, limitedTo(0, "n1"))...), []runtime.Object{limitedTo(1, "n1")}},
		{"the claim", with(has[0], has[2]), []runtime.Object{has[1]}},
		{"the claim's volume", with(has[0], has[2], claim()), []runtime.Object{has[1]}},
		{"the Pod", with(has[1:]...), has[:1]},
		{"the Pod without a gate", with(pod(gated), has[1], has[2]), has[:1]},
		{"the class", without(with(making...), class("late", "")), []runtime.Object{class("late", driver)}},
		{"a free volume", with(pod(), claim(of("byhand"))), []runtime.Object{pv()}},
		{"a volume that is freed", with(pod(), claim(of("byhand")), pv(reserved("x", ""))), []runtime.Object{pv()}},
		{"room", with(append(making, counting(), room("1Mi"))...), []runtime.Object{room("1Gi")}},
		{"room that is told", with(append(making, counting())...), []runtime.Object{room("1Gi")}},
		{"a driver that does not count", with(append(making, counting())...), []runtime.Object{
			&storagev1.CSIDriver{ObjectMeta: counting().ObjectMeta},
		}},
		{
			"the end of who held its claim", with(pod(), claim(bound, forOnePod), has[2], pod(called("q", "c"), on("n1"))),
			[]runtime.Object{pod(called("q", "c"), on("n1"), is(corev1.PodSucceeded))},
		},
	} {
		bubble(t, c.name, func(t *testing.T) {
			a := kubetest.NewAPI(t, c.before...)
			_, stop := a.Run(New)
			defer stop()
			if hasPlace(t, a) {
				t.Error("placed without it")
			}
			a.Put(c.last...)
			<-time.After(time.Minute)
			if !hasPlace(t, a) {
				t.Error("not placed")
			}
		})
	}
}

// hasPlace says that the Pod is bound, or that its claim has a node or a volume.
func hasPlace(t *testing.T, a *kubetest.API) bool {
	t.Helper()
	if p, err := a.CoreV1().Pods("ns").Get(t.Context(), "p", metav1.GetOptions{}); err == nil && p.Spec.NodeName == "n1" {
		return true
	}
	if c, err := a.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "c", metav1.GetOptions{}); err == nil &&
		c.Annotations[volume.AnnSelectedNode] == "n1" {
		return true
	}
	v, err := a.CoreV1().PersistentVolumes().Get(t.Context(), "pv", metav1.GetOptions{})
	return err == nil && v.Spec.ClaimRef != nil && v.Spec.ClaimRef.UID == "c"
}

// TestGoing: what goes makes room for a Pod that waits.
func TestGoing(t *testing.T) {
	va := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "va"}, Spec: storagev1.VolumeAttachmentSpec{
		Attacher: driver, NodeName: "n1", Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To("x")},
	}}
	holder := pod(called("q", "c"), on("n1"))
	for name, c := range map[string]struct {
		objects []runtime.Object
		goes    runtime.Object
	}{
		"an attachment": {
			[]runtime.Object{pod(), claim(bound), pv(boundTo("c")), va, node("n1"), limitedTo(1, "n1")}, va,
		},
		"who held its claim":             {with(pod(), claim(bound, forOnePod), pv(boundTo("c")), holder), holder},
		"a node that it was promised to": {with(pod(), claim(selected("n2")), node("n2", cordoned)), node("n2")},
	} {
		bubble(t, name, func(t *testing.T) {
			a := kubetest.NewAPI(t, c.objects...)
			_, stop := a.Run(New)
			defer stop()
			if hasPlace(t, a) {
				t.Error("placed without it")
			}
			a.Drop(c.goes)
			synctest.Wait()
			if !hasPlace(t, a) {
				t.Error("not placed")
			}
		})
	}
}

// silent has caches know what there is at the start, and nothing more.
func silent(a *kubetest.API) {
	a.PrependWatchReactor("*", func(clienttesting.Action) (bool, watch.Interface, error) {
		return true, watch.NewFake(), nil
	})
}

// behind is a world whose caches were told of what has no Pods in it; look has a Pod
// looked at.
func behind(t *testing.T, objects ...runtime.Object) (a *kubetest.API, look func(pod string) error, stop func()) {
	t.Helper()
	a = kubetest.NewAPI(t, objects...)
	silent(a)
	c, stop := a.Run(New)
	return a, func(pod string) error {
		_, err := c.Reconcile(t.Context(), controller.Key{Kind: kindPod, Namespace: "ns", Name: pod})
		return err
	}, stop
}

// TestOnTheWay: a Pod whose place is not seen yet counts, at its node, at its
// driver's limit, and as the one that has its claim; and it gets no second place.
func TestOnTheWay(t *testing.T) {
	bubble(t, "spread", func(t *testing.T) {
		a, look, stop := behind(t, pod(bare), pod(called("q", ""), bare), node("n1"), node("n2"))
		defer stop()
		nodes := map[string]bool{}
		for _, name := range []string{"p", "q"} {
			p, err := a.CoreV1().Pods("ns").Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			nodes[p.Spec.NodeName] = true
		}
		if len(nodes) != 2 || nodes[""] {
			t.Errorf("they are on %v", nodes)
		}
		a.Forget()
		if err := look("p"); err != nil {
			t.Error(err)
		}
		a.Wrote()
	})
	for name, objects := range map[string][]runtime.Object{
		"the limit": {
			pod(), pod(called("q", "x")), claim(bound), claim(named("x"), bound), pv(boundTo("c")), pv(boundTo("x")),
			node("n1"), limitedTo(1, "n1"),
		},
		"one Pod": with(pod(), pod(called("q", "c")), claim(bound, forOnePod), pv(boundTo("c"))),
	} {
		bubble(t, name, func(t *testing.T) {
			a, _, stop := behind(t, objects...)
			defer stop()
			all, err := a.CoreV1().Pods("ns").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			there := 0
			for i := range all.Items {
				if all.Items[i].Spec.NodeName != "" {
					there++
				}
			}
			if there != 1 {
				t.Errorf("%d Pods are there", there)
			}
		})
	}
}

// TestOneVolume goes to one claim, although neither watch has told of the choice.
func TestOneVolume(t *testing.T) {
	bubble(t, "silent", func(t *testing.T) {
		a, _, stop := behind(t, with(pod(), pod(called("q", "x")), claim(of("byhand")),
			claim(of("byhand"), named("x")), pv())...)
		defer stop()
		n := 0
		for _, action := range a.Actions() {
			if action.GetVerb() == "update" && action.GetResource().Resource == "persistentvolumes" {
				n++
			}
		}
		if n != 1 {
			t.Errorf("the volume was written %d times", n)
		}
	})
}

// TestNotBound: a Pod that cannot be bound is tried again; one that is gone, or is
// another one by now, is not bound, and nothing is said of it.
func TestNotBound(t *testing.T) {
	bubble(t, "refused", func(t *testing.T) {
		a := kubetest.NewAPI(t, with(pod(bare))...)
		a.Fate = func(n int, _ string) (bool, error) {
			if n == 1 {
				return false, errors.New("not now")
			}
			return true, nil
		}
		_, stop := a.Run(New)
		defer stop()
		a.Wrote(bindPod)
		a.Told()
		<-time.After(time.Minute)
		a.Has(pod(bare, on("n1")))
		a.Wrote(bindPod)
		a.Told(toldOfPlace)
	})
	bubble(t, "gone", func(t *testing.T) {
		a := kubetest.NewAPI(t, with(pod(bare))...)
		a.Fate = func(int, string) (bool, error) {
			return false, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "p")
		}
		_, stop := a.Run(New)
		defer stop()
		<-time.After(time.Minute)
		a.Wrote(bindPod)
		a.Told()
	})
	bubble(t, "another one", func(t *testing.T) {
		anew := pod(bare, func(p *corev1.Pod) { p.UID = "anew" })
		a := kubetest.NewAPI(t, with(pod(bare))...)
		silent(a)
		a.Fate = func(n int, _ string) (bool, error) {
			if n == 1 {
				a.Put(anew)
			}
			return true, nil
		}
		_, stop := a.Run(New)
		defer stop()
		<-time.After(time.Minute)
		a.Has(anew)
		a.Told()
	})
}

// TestPlaceIsGivenBack: a Pod that could not be bound takes no room.
func TestPlaceIsGivenBack(t *testing.T) {
	bubble(t, "refused", func(t *testing.T) {
		a := kubetest.NewAPI(t, with(pod(), claim(bound, forOnePod), pv(boundTo("c")), pod(called("q", "c"), gated))...)
		a.Fate = func(_ int, write string) (bool, error) {
			if write == bindPod {
				return false, errors.New("not now")
			}
			return true, nil
		}
		_, stop := a.Run(New)
		defer stop()
		q := pod(called("q", "c"))
		a.Put(q)
		<-time.After(time.Hour)
		a.Has(pod(called("q", "c"), on("n1")))
	})
}

// TestNotTold: a reason that cannot be written is tried again and not told before;
// of a Pod that is gone nothing is said.
func TestNotTold(t *testing.T) {
	says := `Warning ns/p ClaimMissing: persistentvolumeclaim "c" not found (user)`
	for name, c := range map[string]struct {
		err          error
		writes, told []string
	}{"refused": {errors.New("not now"), []string{tellPod, tellPod}, []string{says}}, "gone": {
		apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "p"), []string{tellPod}, nil,
	}} {
		bubble(t, name, func(t *testing.T) {
			a := kubetest.NewAPI(t, with(pod())...)
			a.Fate = func(n int, _ string) (bool, error) {
				if n == 1 {
					return false, c.err
				}
				return true, nil
			}
			_, stop := a.Run(New)
			defer stop()
			a.Told()
			<-time.After(time.Minute)
			a.Wrote(c.writes...)
			a.Told(c.told...)
		})
	}
}

// TestNotSelected: a claim that cannot be told its node is tried again.
func TestNotSelected(t *testing.T) {
	bubble(t, "refused", func(t *testing.T) {
		a := kubetest.NewAPI(t, with(pod(), claim())...)
		a.Fate = func(n int, _ string) (bool, error) {
			if n == 1 {
				return false, errors.New("not now")
			}
			return true, nil
		}
		_, stop := a.Run(New)
		defer stop()
		a.Has(claim())
		<-time.After(time.Minute)
		a.Has(claim(selected("n1")), pod())
		a.Wrote(selectNode, selectNode)
	})
}

// TestNotReserved: a volume that could not be kept for a claim is offered to others
// after a pause.
func TestNotReserved(t *testing.T) {
	bubble(t, "refused", func(t *testing.T) {
		choosy := func(c *corev1.PersistentVolumeClaim) {
			c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"no": "such"}}
		}
		q, x := pod(called("q", "x")), []func(*corev1.PersistentVolumeClaim){of("byhand"), named("x")}
		a := kubetest.NewAPI(t, with(q, claim(append(x, choosy)...), pv(), claim(of("byhand")))...)
		var claims *kube.Cache[*corev1.PersistentVolumeClaim]
		_, stop := a.Run(func(env controller.Env) *controller.Controller {
			claims = env.Caches.Claims()
			return New(env)
		})
		defer stop()
		a.Forget()
		failed := false
		a.Lock()
		a.Fate = func(_ int, write string) (bool, error) {
			if failed || write != reservePV {
				return true, nil
			}
			failed = true
			// Now the other claim would take it, and this one no more.
			newer := func(c *corev1.PersistentVolumeClaim) { c.ResourceVersion = "1000" }
			claims.Wrote(claim(append(x, newer)...))
			claims.Wrote(claim(of("byhand"), choosy, newer))
			return false, errors.New("not now")
		}
		a.Unlock()
		a.Put(pod())
		<-time.After(offerPause - time.Millisecond)
		a.Has(pv())
		<-time.After(2 * time.Millisecond)
		a.Has(pv(reserved("x", "1000")))
	})
}
