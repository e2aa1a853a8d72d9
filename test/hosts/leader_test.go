package hosts

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/test/internal/plane"
)

const (
	// term is the lease's duration of the controllers here.
	term = 8 * time.Second
	// renewal is how long a leader may be kept waiting by a busy machine.
	renewal = 6 * time.Second
)

// newLedWorld has the array reached by controllers on hosts of their own, of
// which one leads, and by the other hosts.
func newLedWorld(t *testing.T, nodes, leaders []string) *world {
	t.Helper()
	w := begin(t, append(nodes, leaders...)...)
	for i, name := range append(nodes, leaders...) {
		w.connect(i, name)
		if i < len(nodes) {
			w.join(i, name)
			w.registered(name)
			continue
		}
		w.controllers(i, name)
		if i == len(nodes) {
			w.leads("")
		}
	}
	return w
}

// controllers runs those beside the array on a host.
func (w *world) controllers(i int, name string) {
	w.t.Helper()
	config, err := clientcmd.LoadFromFile(w.plane.Kubeconfig())
	w.must(err)
	for _, c := range config.Clusters {
		c.Server = "https://" + address(i, 1) + ":" + w.port
	}
	file := filepath.Join(w.dir, name+".kubeconfig")
	w.must(clientcmd.WriteToFile(*config, file))
	w.array.serve(w.t, name, w.root(name))
	w.hosts[name].agent, err = plane.RunIn(name, filepath.Join(w.dir, name+".log"), "volplane", "controller",
		"--controllers=provisioner,attacher",
		"--csi-address="+socketOf(w.root(name)), "--kubeconfig="+file, "--leader-election-lease-duration="+term.String(),
		"--leader-election-renew-deadline="+renewal.String(), "--leader-election-retry-period=500ms")
	w.must(err)
}

// leads waits until somebody else than before is the leader, and says who.
func (w *world) leads(before string) (now string) {
	w.t.Helper()
	w.until("somebody else leads", func() (string, error) {
		l, err := w.client.CoordinationV1().Leases("default").Get(w.ctx, leaseName(), metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if now = ptr.Deref(l.Spec.HolderIdentity, ""); now == "" || now == before {
			return now + " leads", nil
		}
		return "", nil
	})
	return now
}

func leaseName() string {
	return "external-attacher-leader-" + strings.ReplaceAll(driverName, ".", "-")
}

// upset is what happens to a leader, and how it ends.
type upset struct {
	name       string
	begin, end func(w *world, leader string)
	// method, if any, is the call that is under way then, with its work done or
	// not.
	method string
	after  bool
}

func upsets() []upset {
	again := func(w *world, leader string) { w.must(w.hosts[leader].agent.Again()) }
	signal := func(s syscall.Signal) func(*world, string) {
		return func(w *world, leader string) { w.must(syscall.Kill(w.hosts[leader].agent.PID(), s)) }
	}
	all := []upset{{name: "it is stopped for a while", begin: signal(syscall.SIGSTOP), end: signal(syscall.SIGCONT)}}
	for _, u := range []upset{
		{name: "it is cut off", begin: (*world).cut, end: (*world).plug},
		{name: "it is killed", begin: func(w *world, leader string) { w.hosts[leader].agent.Kill() }, end: again},
		{name: "it is asked to end", begin: func(w *world, leader string) { w.hosts[leader].agent.Stop() }, end: again},
	} {
		for _, u.method = range []string{"publish", "unpublish"} {
			for _, u.after = range []bool{false, true} {
				all = append(all, u)
			}
		}
	}
	return all
}

// TestLeadersChange moves a volume from host to host while the leader of the
// attachers is lost in the middle of a call: the other one goes on, and begins
// when no call of the first is under way any more.
func TestLeadersChange(t *testing.T) {
	nodes, leader, next := []string{"vpd", "vpe"}, "vpf", "vpg"
	w := newLedWorld(t, nodes, []string{leader, next})
	w.writers(nodes...)
	volume := w.claim("data")
	w.pod("p0", "data", nodes[0])
	w.mounted("p0")
	w.writes(volume, nodes[0])
	who := w.leads("")
	for i, u := range upsets() {
		t.Logf("%s, in the middle of %q, done: %v", u.name, u.method, u.after)
		to, pod := nodes[(i+1)%2], fmt.Sprint("p", i+1)
		if u.method == "" {
			u.begin(w, leader)
		}
		began := w.array.hold(u.method, u.after)
		w.pod(pod, "data", to)
		w.remove(fmt.Sprint("p", i), false)
		if u.method != "" {
			w.happens(u.method, began)
			u.begin(w, leader)
		}
		w.mounted(pod)
		w.writes(volume, to)
		w.has(volume, to)
		who = w.leads(who)
		u.end(w, leader)
		w.writes(volume, to)
		w.has(volume, to)
		leader, next = next, leader
	}
	last := fmt.Sprint("p", len(upsets()))
	w.remove(last, false)
	w.gone(last)
	for _, name := range nodes {
		w.unmounted(name)
	}
	w.nothingWrong(volume)
}

func (w *world) happens(what string, began <-chan struct{}) {
	w.t.Helper()
	w.until(what+" is under way", func() (string, error) {
		select {
		case <-began:
			return "", nil
		default:
			return "not yet", nil
		}
	})
}

// TestLeaderHasAnotherClock: a leader whose clock is an hour behind, or ahead,
// leads as long as it gives signs, and no longer.
func TestLeaderHasAnotherClock(t *testing.T) {
	w := newLedWorld(t, []string{"vph"}, []string{"vpi"})
	volume := w.claim("data")
	for _, off := range []time.Duration{-time.Hour, time.Hour} {
		w.hosts["vpi"].agent.Kill()
		w.sign(off)
		w.must(w.hosts["vpi"].agent.Again())
		pod := "ahead"
		if off < 0 {
			pod = "behind"
		}
		w.pod(pod, "data", "vph")
		before := w.array.calls()
		every := time.NewTicker(500 * time.Millisecond)
		for range 3 * term / (500 * time.Millisecond) {
			<-every.C
			w.sign(off)
		}
		every.Stop()
		if n := w.array.calls() - before; n > 0 {
			t.Errorf("%d calls while another one leads, whose clock is off by %v", n, off)
		}
		w.mounted(pod)
		w.has(volume, "vph")
		w.remove(pod, false)
		w.gone(pod)
		w.has(volume)
	}
	w.nothingWrong(volume)
}

// sign is the sign of a leader with another clock.
func (w *world) sign(off time.Duration) {
	w.t.Helper()
	leases := w.client.CoordinationV1().Leases("default")
	w.until("the other leader gives a sign", func() (string, error) {
		l, err := leases.Get(w.ctx, leaseName(), metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		l.Spec.HolderIdentity, l.Spec.RenewTime = ptr.To("other"), ptr.To(metav1.NewMicroTime(time.Now().Add(off)))
		l.Spec.LeaseDurationSeconds = ptr.To(int32(term / time.Second))
		_, err = leases.Update(w.ctx, l, metav1.UpdateOptions{})
		return "", err
	})
}
