package placement

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/kube/kubetest"
)

// TestWatchIsBehind: what was written counts although the watch has not told it:
// looking again writes nothing twice, and chooses nothing else.
func TestWatchIsBehind(t *testing.T) {
	larger := pv(func(v *corev1.PersistentVolume) { v.Name, v.UID, v.Spec.Capacity = "pv2", "pv2", storage("3Gi") })
	for name, c := range map[string]struct {
		objects []runtime.Object
		writes  []string
	}{
		"a volume that is kept":      {with(pod(), claim(of("byhand")), pv(), larger), []string{reservePV, tellPod}},
		"a node that is selected":    {with(pod(), claim()), []string{selectNode}},
		"a reason that is told":      {with(pod()), []string{tellPod}},
		"a claim that is under way":  {with(pod(), claim(selected("n1"))), nil},
		"a Pod that chose its place": {with(pod(on("n1")), claim()), []string{selectNode}},
	} {
		bubble(t, name, func(t *testing.T) {
			a, look, stop := behind(t, c.objects...)
			defer stop()
			if err := look("p"); err != nil {
				t.Error(err)
			}
			a.Did(c.writes...)
		})
	}
}

// TestRoomOnTheWay: a Pod that waits for its claim at a node counts there as one, as
// long as it is to come, and where it is, not twice.
func TestRoomOnTheWay(t *testing.T) {
	under := func(c *corev1.PersistentVolumeClaim) { selected("n1")(c); c.Spec.VolumeName = "pv-c" }
	lost := func(c *corev1.PersistentVolumeClaim) { under(c); c.Status.Phase = corev1.ClaimLost }
	there := pod(called("r", ""), bare, on("n2"))
	for _, c := range []struct {
		name, want    string
		before, steps []runtime.Object
		goes          runtime.Object
	}{
		{"it comes", "n2", []runtime.Object{pod(), claim()}, nil, nil},
		{"its claim is being bound", "n2", []runtime.Object{pod(), claim()}, []runtime.Object{claim(under)}, nil},
		{"its claim is lost", "n1", []runtime.Object{pod(), claim()}, []runtime.Object{claim(lost)}, nil},
		{"it has ended", "n1", []runtime.Object{pod(), claim()}, []runtime.Object{pod(is(corev1.PodFailed))}, nil},
		{"it is gone", "n1", []runtime.Object{pod(), claim()}, nil, pod()},
		{"it is there", "n1", []runtime.Object{pod(bare), there}, nil, nil},
		{"it chose its place", "n1", []runtime.Object{pod(on("n1")), claim(), there}, nil, nil},
	} {
		bubble(t, c.name, func(t *testing.T) {
			a := kubetest.NewAPI(t, with(append(c.before, node("n2"), csiNode("n2"))...)...)
			_, stop := a.Run(New)
			defer stop()
			a.Put(c.steps...)
			if c.goes != nil {
				a.Drop(c.goes)
			}
			synctest.Wait()
			a.Put(pod(called("q", ""), bare))
			<-time.After(time.Minute)
			a.Has(pod(called("q", ""), bare, on(c.want)))
		})
	}
}

// TestCountedOnce: a Pod that has just been given its node is on its way there and
// there, and takes the room of one.
func TestCountedOnce(t *testing.T) {
	client := fake.NewClientset()
	caches := kube.NewCaches(client)
	p := &placer{pods: caches.WritePods(client), csiNodes: caches.CSINodes()}
	there := pod(bare, on("n1"))
	there.ResourceVersion = "1"
	p.pods.Wrote(there)
	if got := p.node(node("n1"), []*corev1.Pod{pod(bare), pod(called("q", ""), bare)}); got.Pods != 2 {
		t.Errorf("there are %d Pods on the node, want p and q", got.Pods)
	}
}

// TestOwnHolder: a Pod whose place was chosen does not keep itself from its claim.
func TestOwnHolder(t *testing.T) {
	bubble(t, "for one Pod", func(t *testing.T) {
		a := kubetest.NewAPI(t, with(pod(), claim(forOnePod))...)
		_, stop := a.Run(New)
		defer stop()
		a.Has(claim(forOnePod, selected("n1")), pod())
		a.Put(pv(boundTo("c")))
		synctest.Wait()
		a.Put(claim(forOnePod, selected("n1"), bound))
		<-time.After(time.Minute)
		a.Has(pod(on("n1"), refused(notBound)))
	})
}

// TestReservedAgain: a volume that could not be kept for the claim, or was and is not
// any more, is kept for it then; one that is gone is not written.
func TestReservedAgain(t *testing.T) {
	bubble(t, "it failed", func(t *testing.T) {
		a := kubetest.NewAPI(t, with(pod(), claim(of("byhand")), pv())...)
		a.Fate = func(n int, _ string) (bool, error) {
			if n == 1 {
				return false, errors.New("not now")
			}
			return true, nil
		}
		_, stop := a.Run(New)
		defer stop()
		<-time.After(time.Minute)
		a.Has(pv(reserved("c", "1")))
	})
	bubble(t, "it always fails", func(t *testing.T) {
		a := kubetest.NewAPI(t, with(pod(), claim(of("byhand")), pv())...)
		tries := 0
		a.Fate = func(int, string) (bool, error) {
			tries++
			return false, errors.New("not now")
		}
		_, stop := a.Run(New)
		defer stop()
		<-time.After(time.Minute)
		synctest.Wait()
		if tries < 10 || tries > 100 {
			t.Errorf("%d tries in a minute", tries)
		}
	})
	bubble(t, "it is free again", func(t *testing.T) {
		a := kubetest.NewAPI(t, with(pod(), claim(of("byhand")), pv())...)
		_, stop := a.Run(New)
		defer stop()
		a.Has(pv(reserved("c", "1")))
		a.Put(pv())
		<-time.After(time.Minute)
		a.Has(pv(reserved("c", "1")))
	})
	bubble(t, "it is gone", func(t *testing.T) {
		a := kubetest.NewAPI(t, with(pv())...)
		_, stop := a.Run(New)
		defer stop()
		a.Drop(pv())
		synctest.Wait()
		a.Put(claim(of("byhand")))
		synctest.Wait()
		a.Put(pod())
		<-time.After(time.Minute)
		a.Wrote(tellPod)
	})
}

// TestClaimGoes: who waits for a claim is told when there is none any more.
func TestClaimGoes(t *testing.T) {
	bubble(t, "gone", func(t *testing.T) {
		a := kubetest.NewAPI(t, with(pod(), claim(of("soon")))...)
		_, stop := a.Run(New)
		defer stop()
		a.Forget()
		<-time.After(time.Second)
		a.Drop(claim())
		synctest.Wait()
		a.Wrote(tellPod)
		a.Told(`Warning ns/p ClaimMissing: persistentvolumeclaim "c" not found (user)`)
	})
}

// TestSameWords: only what the Pod's own condition says has been said.
func TestSameWords(t *testing.T) {
	const says = `persistentvolumeclaim "c" not found`
	for name, old := range map[string]corev1.PodCondition{
		"another condition": {Type: "example.org/other", Status: corev1.ConditionFalse, Message: says},
		"it had its place":  {Type: corev1.PodScheduled, Status: corev1.ConditionTrue, Message: says},
	} {
		before := pod(func(p *corev1.Pod) { p.Status.Conditions = []corev1.PodCondition{old} })
		scene{name, with(before), nil, nil, []string{tellPod}, []string{"Warning ns/p ClaimMissing: " + says +
			" (user)"}}.play(t)
	}
}
