package nodelife_test

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/kube/kubetest"
)

const (
	silent   = "the agent of node n1 has sent no heartbeat for 40s; what is mounted there stays, nothing new is"
	isMarked = `Node n1 Warning: NodeNotReady "` + silent + `", next node n1 (1)`
	isGone   = `Warning: NodeGone "node n1 has been gone for 40s, its pods are deleted" (1)`
)

// marked is a node as it is to be when its agent has been silent.
func marked(at time.Time) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Status.Conditions[len(n.Status.Conditions)-1] = corev1.NodeCondition{
			Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown", Message: silent,
			LastTransitionTime: metav1.NewTime(at),
		}
	}
}

// TestHeartbeats: as long as they come nothing is written; when they end the node is
// marked, once, with all else as it was; a restart gives the whole grace again.
func TestHeartbeats(t *testing.T) {
	inWorld(t, func(w *world) {
		for range 10 {
			w.beats("n1")
			kubetest.Pass(grace - 2*soon)
		}
		w.is(node("n1"))
		w.beats("n1")
		last := time.Now().Add(-soon)
		kubetest.Pass(grace - 2*soon)
		w.Restart()
		restarted := time.Now().Add(-soon)
		kubetest.Pass(grace - 2*soon)
		if w.is(node("n1")); restarted.Sub(last) < grace-2*soon {
			w.Errorf("it restarted %s after the last heartbeat", restarted.Sub(last))
		}
		kubetest.Pass(2 * soon)
		w.is(node("n1", marked(restarted.Add(grace).Local())))
		kubetest.Pass(time.Hour)
		w.heard(isMarked)
		kubetest.Change(w.Users, w.Nodes(), "n1", ready(corev1.ConditionTrue))
		w.beats("n1")
		kubetest.Pass(grace - 2*soon)
		if got := kubetest.Writes(w.Own); len(got) != 1 {
			w.Errorf("writes: %q", got)
		}
		kubetest.Pass(2 * soon)
		if got := kubetest.Writes(w.Own); len(got) != 2 {
			w.Errorf("writes: %q", got)
		}
	}, node("n1"), lease("n1"), node("never"), lease("nobody"))
}

// TestNodeMadeAnew: a node that is made again has the whole grace, whatever was known
// of one of its name; and one whose Lease comes late has it from then on.
func TestNodeMadeAnew(t *testing.T) {
	inWorld(t, func(w *world) {
		kubetest.Pass(grace - 5*soon)
		kubetest.Remove(w.Users, w.Nodes(), "n1")
		w.Users.Put(node("n1"))
		kubetest.Pass(grace - 3*soon)
		w.is(node("n1"))
		kubetest.Pass(5 * soon)
		w.heard(isMarked)
		w.Users.Put(lease("n2"))
		kubetest.Pass(grace - soon)
		if got := kubetest.Writes(w.Own); len(got) != 1 {
			w.Errorf("writes: %q", got)
		}
		kubetest.Pass(2 * soon)
		if got := kubetest.Writes(w.Own); len(got) != 2 {
			w.Errorf("writes: %q", got)
		}
	}, node("n1"), lease("n1"), node("n2"))
}

// TestMarkIsRepeated: until it is written, or the node is gone.
func TestMarkIsRepeated(t *testing.T) {
	for name, c := range map[string]struct {
		err   error
		heard []string
	}{
		"no answer": {errors.New("connection reset"), []string{isMarked}},
		"gone":      {apierrors.NewNotFound(corev1.Resource("nodes"), "n1"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				n := 0
				w.Own.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
					n++
					return n == 1, nil, c.err
				})
				kubetest.Pass(grace + 5*soon)
				if w.heard(c.heard...); n != 1+len(c.heard) {
					w.Errorf("%d tries", n)
				}
			}, node("n1"), lease("n1"))
		})
	}
}

// TestPodsOfAMissingNode go after the grace, without asking anybody, and those of
// others stay; whichever comes last, the end of the Node, the Pod or its node.
func TestPodsOfAMissingNode(t *testing.T) {
	for name, c := range map[string]struct {
		before []runtime.Object
		last   func(*world)
	}{
		"the end of the Node": {
			[]runtime.Object{node("n1"), pod("ns", "p", "n1")}, func(w *world) { kubetest.Remove(w.Users, w.Nodes(), "n1") },
		},
		"the Pod": {nil, func(w *world) { w.Users.Put(pod("ns", "p", "n1")); kubetest.Pass(soon) }},
		"a new Pod": {[]runtime.Object{pod("ns", "p", "")}, func(w *world) {
			kubetest.Change(w.Users, w.Pods("ns"), "p", func(p *corev1.Pod) { p.Spec.NodeName = "n1" })
		}},
		"we": {[]runtime.Object{pod("ns", "p", "n1")}, func(w *world) { w.Restart() }},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				c.last(w)
				kubetest.Pass(grace - 3*soon)
				w.left("ns/here", "ns/p", "ns/waits")
				// What changes on the Pod begins nothing anew.
				kubetest.Change(w.Users, w.Pods("ns"), "p", func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} })
				kubetest.Pass(3 * soon)
				w.left("ns/here", "ns/waits")
				w.heard("Pod p " + isGone)
				if got := kubetest.Writes(w.Own); !slices.Equal(got, []string{"delete pods p uid grace 0"}) {
					w.Errorf("writes: %q", got)
				}
			}, append(c.before, node("n2"), pod("ns", "here", "n2"), pod("ns", "waits", ""))...)
		})
	}
}

// TestNodeComesBack: its Pods stay when its Node is there again in time, whether the
// cache has heard of it or only the API server, and a later end begins a new grace.
func TestNodeComesBack(t *testing.T) {
	inWorld(t, func(w *world) {
		kubetest.Remove(w.Users, w.Nodes(), "n1")
		kubetest.Pass(grace - 3*soon)
		w.Users.Put(node("n1"))
		kubetest.Pass(time.Hour)
		w.left("ns/p")
		kubetest.Remove(w.Users, w.Nodes(), "n1")
		kubetest.Pass(grace - 3*soon)
		w.left("ns/p")
		// Of this one the cache does not hear.
		var back atomic.Bool
		back.Store(true)
		w.Own.PrependReactor("get", "nodes",
			func(clienttesting.Action) (bool, runtime.Object, error) { return back.Load(), node("n1"), nil })
		kubetest.Pass(2 * grace)
		w.left("ns/p")
		back.Store(false)
		kubetest.Pass(grace + soon)
		w.left()
	}, node("n1"), pod("ns", "p", "n1"))
}

// TestDeletionsAreRepeated: all Pods of a node go, however often a request fails, and
// one that is replaced meanwhile is another.
func TestDeletionsAreRepeated(t *testing.T) {
	inWorld(t, func(w *world) {
		fails := map[string]int{"get": 1, "delete": 2}
		w.Own.PrependReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if fails[a.GetVerb()]--; fails[a.GetVerb()] < 0 {
				return false, nil, nil
			}
			return true, nil, errors.New("connection reset")
		})
		kubetest.Remove(w.Users, w.Nodes(), "n1")
		kubetest.Pass(grace + 10*time.Minute)
		w.left()
	}, node("n1"), pod("ns", "p", "n1"), pod("other", "q", "n1"), pod("other", "r", "n1"))
}

// TestOffIsHeard: what has to leave a node that is off goes at once, whichever comes
// last, the taint, the silence, the Pod, its node or its end; nothing of another node
// goes, and nothing of one that is only silent, or alive.
func TestOffIsHeard(t *testing.T) {
	is := func(f ...func(*corev1.Node)) []runtime.Object {
		return []runtime.Object{node("n1", f...), pod("ns", "p", "n1")}
	}
	unknown := ready(corev1.ConditionUnknown)
	for name, c := range map[string]struct {
		before []runtime.Object
		last   func(*world)
	}{
		"the taint":   {is(unknown), func(w *world) { kubetest.Change(w.Users, w.Nodes(), "n1", off) }},
		"the silence": {is(off), func(w *world) { kubetest.Change(w.Users, w.Nodes(), "n1", unknown) }},
		"the node":    {is()[1:], func(w *world) { w.Users.Put(node("n1", off, unknown)); kubetest.Pass(soon) }},
		"the Pod":     {is(off, unknown)[:1], func(w *world) { w.Users.Put(pod("ns", "p", "n1")); kubetest.Pass(soon) }},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				if c.before[0].(metav1.Object).GetName() == "n1" && len(c.before) > 1 {
					w.left("ns/alive", "ns/p", "ns/silent")
				}
				c.last(w)
				w.left("ns/alive", "ns/silent")
				if got := kubetest.Writes(w.Own); !slices.Equal(got, []string{"delete pods p uid grace 0"}) {
					w.Errorf("writes: %q", got)
				}
			}, append(c.before, node("n2", off), pod("ns", "alive", "n2"), node("n3", unknown), pod("ns", "silent", "n3"))...)
		})
	}
}

// TestOffAndBack: the API server is asked last whether the agent is back, or the node
// gone, and asked again when it does not answer.
func TestOffAndBack(t *testing.T) {
	for name, c := range map[string]struct {
		answer *corev1.Node
		err    error
		left   []string
	}{
		"it is back": {node("n1", off), nil, []string{"ns/p"}},
		"it is gone": {nil, apierrors.NewNotFound(corev1.Resource("nodes"), "n1"), []string{"ns/p"}},
		"no answer":  {nil, errors.New("connection reset"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				n := 0
				w.Own.PrependReactor("get", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
					n++
					return n == 1, c.answer, c.err
				})
				kubetest.Change(w.Users, w.Nodes(), "n1", off)
				kubetest.Pass(soon)
				w.left(c.left...)
			}, node("n1", ready(corev1.ConditionUnknown)), pod("ns", "p", "n1"))
		})
	}
}
