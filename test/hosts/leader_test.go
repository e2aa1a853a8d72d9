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

	"volplane.dev/volplane/test/internal/array"
	"volplane.dev/volplane/test/internal/plane"
)

const (
	// leaseDuration is the duration of the controllers' leader election lease.
	leaseDuration = 8 * time.Second
	// renewDeadline is the time within which a leader must renew the lease, also on a busy machine.
	renewDeadline = 6 * time.Second
)

// newNetworkWithLeaders runs the controllers of the array's driver on hosts of their own, the leaders, the first of
// which leads. The other hosts have a node agent.
func newNetworkWithLeaders(t *testing.T, nodes, leaders []string) *network {
	t.Helper()
	w := startNetwork(t, append(nodes, leaders...)...)
	for i, name := range append(nodes, leaders...) {
		w.addHost(name)
		if i < len(nodes) {
			w.startAgent(name)
			w.waitForRegistration(name)
			continue
		}
		w.startControllers(name)
		if i == len(nodes) {
			w.waitForLeader("")
		}
	}
	return w
}

// startControllers runs the controllers of the array's driver on a host.
func (w *network) startControllers(name string) {
	w.t.Helper()
	config, err := clientcmd.LoadFromFile(w.plane.Kubeconfig())
	w.must(err)
	for _, c := range config.Clusters {
		c.Server = "https://" + address(name, 1) + ":" + w.port
	}
	file := filepath.Join(w.dir, name+".kubeconfig")
	w.must(clientcmd.WriteToFile(*config, file))
	w.array.Serve(w.t, name, w.root(name))
	w.hosts[name].agent, err = plane.RunIn(name, filepath.Join(w.dir, name+".log"), "volplane", "controller",
		"--controllers=provisioner,attacher",
		"--csi-address="+array.Socket(w.root(name)), "--kubeconfig="+file,
		"--leader-election-lease-duration="+leaseDuration.String(),
		"--leader-election-renew-deadline="+renewDeadline.String(), "--leader-election-retry-period=500ms")
	w.must(err)
}

// waitForLeader waits until the leader has changed, and returns it.
func (w *network) waitForLeader(before string) (now string) {
	w.t.Helper()
	w.eventually("the leader changes", func() (string, error) {
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
	return "external-attacher-leader-" + strings.ReplaceAll(array.Driver, ".", "-")
}

// disruption is a fault of the leader.
type disruption struct {
	name string
	// start causes the fault, end repairs it.
	start, end func(w *network, leader string)
	// method is the call that is in flight when the fault starts, or empty.
	method string
	// afterWork means that the driver has done the work of this call.
	afterWork bool
}

func disruptions() []disruption {
	restart := func(w *network, leader string) { w.must(w.hosts[leader].agent.Restart()) }
	signal := func(s syscall.Signal) func(*network, string) {
		return func(w *network, leader string) { w.must(syscall.Kill(w.hosts[leader].agent.PID(), s)) }
	}
	all := []disruption{
		{name: "it is suspended for a while", start: signal(syscall.SIGSTOP), end: signal(syscall.SIGCONT)},
	}
	for _, d := range []disruption{
		{name: "it is disconnected", start: (*network).disconnect, end: (*network).reconnect},
		{name: "it is killed", start: func(w *network, leader string) { w.hosts[leader].agent.Kill() }, end: restart},
		{name: "it is asked to end", start: func(w *network, leader string) { w.hosts[leader].agent.Stop() }, end: restart},
	} {
		for _, d.method = range []string{"publish", "unpublish"} {
			for _, d.afterWork = range []bool{false, true} {
				all = append(all, d)
			}
		}
	}
	return all
}

// TestLeadersChange moves a volume from host to host while the leading attacher fails in the middle of a
// call. The other attacher takes over, and makes its first call when no call of the first one is in flight
// any more.
func TestLeadersChange(t *testing.T) {
	t.Parallel()
	all := disruptions()
	for _, part := range []struct {
		name           string
		nodes, leaders []string
		of             []disruption
	}{
		{"it goes on", []string{"vpd", "vpe"}, []string{"vpf", "vpg"}, all[:5]},
		{"it ends", []string{"vpl", "vpm"}, []string{"vpn", "vpo"}, all[5:]},
	} {
		t.Run(part.name, func(t *testing.T) {
			t.Parallel()
			changeLeaders(t, part.nodes, part.leaders, part.of)
		})
	}
}

func changeLeaders(t *testing.T, nodes, leaders []string, all []disruption) {
	t.Helper()
	leader, next := leaders[0], leaders[1]
	w := newNetworkWithLeaders(t, nodes, leaders)
	w.startWriters(nodes...)
	volume := w.createClaim("data")
	w.createPod("p0", "data", nodes[0])
	w.waitForMount("p0")
	w.waitForWrite(volume, nodes[0])
	identity := w.waitForLeader("")
	for i, d := range all {
		t.Logf("%s, in the middle of %q, done: %v", d.name, d.method, d.afterWork)
		to, pod := nodes[(i+1)%2], fmt.Sprint("p", i+1)
		if d.method == "" {
			d.start(w, leader)
		}
		held := w.array.HoldNext(d.method, d.afterWork)
		w.createPod(pod, "data", to)
		w.deletePod(fmt.Sprint("p", i), false)
		if d.method != "" {
			w.waitForCall(d.method, held)
			d.start(w, leader)
		}
		w.waitForMount(pod)
		w.waitForWrite(volume, to)
		w.waitForHolders(volume, to)
		identity = w.waitForLeader(identity)
		d.end(w, leader)
		w.waitForWrite(volume, to)
		w.waitForHolders(volume, to)
		leader, next = next, leader
	}
	last := fmt.Sprint("p", len(all))
	w.deletePod(last, false)
	w.waitForDeletion(last)
	for _, name := range nodes {
		w.waitForUnmount(name)
	}
	w.checkEnd(volume)
}

// waitForCall waits until the array holds a call.
func (w *network) waitForCall(method string, held <-chan struct{}) {
	w.t.Helper()
	w.eventually(method+" is in flight", func() (string, error) {
		select {
		case <-held:
			return "", nil
		default:
			return "not yet", nil
		}
	})
}

// TestLeaderHasAnotherClock: a leader whose clock is an hour behind, or ahead, leads as long as it renews
// its lease, and no longer.
func TestLeaderHasAnotherClock(t *testing.T) {
	t.Parallel()
	// The networks wait at the same time.
	type clock struct {
		*network
		off                       time.Duration
		pod, node, leader, volume string
		before                    int
	}
	clocks := []*clock{
		{off: -time.Hour, pod: "behind", node: "vph", leader: "vpi"},
		{off: time.Hour, pod: "ahead", node: "vpp", leader: "vpq"},
	}
	for _, c := range clocks {
		c.network = newNetworkWithLeaders(t, []string{c.node}, []string{c.leader})
		c.volume = c.createClaim("data")
	}
	for _, c := range clocks {
		c.hosts[c.leader].agent.Kill()
		c.renewControllerLease(c.off)
		c.must(c.hosts[c.leader].agent.Restart())
		c.createPod(c.pod, "data", c.node)
		c.before = c.array.CallCount()
	}
	ticker := time.NewTicker(500 * time.Millisecond)
	for range 3 * leaseDuration / (500 * time.Millisecond) {
		<-ticker.C
		for _, c := range clocks {
			c.renewControllerLease(c.off)
		}
	}
	ticker.Stop()
	for _, c := range clocks {
		if n := c.array.CallCount() - c.before; n > 0 {
			t.Errorf("%d calls while another leader, whose clock is off by %v, renews the lease", n, c.off)
		}
	}
	for _, c := range clocks {
		c.waitForMount(c.pod)
		c.waitForHolders(c.volume, c.node)
		c.deletePod(c.pod, false)
		c.waitForDeletion(c.pod)
		c.checkEnd(c.volume)
	}
}

// renewControllerLease renews the lease as another leader with this clock offset.
func (w *network) renewControllerLease(off time.Duration) {
	w.t.Helper()
	leases := w.client.CoordinationV1().Leases("default")
	w.eventually("the other leader renews the lease", func() (string, error) {
		l, err := leases.Get(w.ctx, leaseName(), metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		l.Spec.HolderIdentity, l.Spec.RenewTime = ptr.To("other"), ptr.To(metav1.NewMicroTime(time.Now().Add(off)))
		l.Spec.LeaseDurationSeconds = ptr.To(int32(leaseDuration / time.Second))
		_, err = leases.Update(w.ctx, l, metav1.UpdateOptions{})
		return "", err
	})
}
