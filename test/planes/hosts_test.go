package planes

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"volplane.dev/volplane/standalone/standalonetest"
	"volplane.dev/volplane/test/internal/plane"
)

const (
	// hostsNetwork begins the addresses of hosts, which a bridge connects; bridgeEnd ends that of the tests.
	hostsNetwork, bridgeEnd = "10.215.7.", "254"
	// bridge is the name of the bridge, and begins the names of the hosts' cables and network namespaces.
	bridge = "lives"
	// nowhere is the link-layer address of no host.
	nowhere = "02:00:00:00:00:01"
)

// newHosts starts hosts, each with a network namespace, a member of the etcd and a control plane. Disturbances of the
// network between them do not affect the connections to the test.
func newHosts(t *testing.T, names ...string) *controlPlanes {
	t.Helper()
	remove := func() { // also leftovers of an interrupted run
		for _, name := range names {
			_ = exec.Command("ip", "netns", "del", bridge+name).Run()
			_ = exec.Command("ip", "link", "del", bridge+name).Run()
		}
		_ = exec.Command("ip", "link", "del", bridge).Run()
	}
	remove()
	t.Cleanup(remove)
	ip(t, "link", "add", bridge, "type", "bridge")
	ip(t, "address", "add", hostsNetwork+bridgeEnd+"/24", "dev", bridge)
	ip(t, "link", "set", bridge, "up")
	var places []standalonetest.Place
	for _, name := range names {
		ip(t, "netns", "add", bridge+name)
		ip(t, "link", "add", bridge+name, "type", "veth", "peer", "name", "eth0", "netns", bridge+name)
		ip(t, "link", "set", bridge+name, "master", bridge, "up")
		ip(t, "-n", bridge+name, "address", "add", addressOf(name)+"/24", "dev", "eth0")
		ip(t, "-n", bridge+name, "link", "set", "eth0", "up")
		ip(t, "-n", bridge+name, "link", "set", "lo", "up")
		places = append(places, standalonetest.Place{Host: addressOf(name), Under: plane.In(bridge + name)})
	}
	w := newEtcd(t, standalonetest.StartMembersAt(t, places...))
	w.network, w.port = hostsNetwork, "6771"
	for _, name := range names {
		w.under[name] = plane.In(bridge + name)
	}
	w.startAll(names)
	return w
}

func addressOf(name string) string { return hostsNetwork + name[1:] }

func ip(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// cut drops everything that a host sends to another one, without any error, as on a broken path: its frames go to an
// address that no host has. The other direction still works.
func (w *controlPlanes) cut(from, to string) {
	w.t.Helper()
	ip(w.t, "-n", bridge+from, "neigh", "replace", addressOf(to), "lladdr", nowhere, "dev", "eth0", "nud", "permanent")
}

func (w *controlPlanes) mend(from, to string) {
	w.t.Helper()
	ip(w.t, "-n", bridge+from, "neigh", "del", addressOf(to), "dev", "eth0")
}

// disturbance is a temporary event of a host, or of the network between hosts.
type disturbance struct {
	what        string
	least, most time.Duration
	begin, end  func()
}

// disturb draws a disturbance, and waits until it is over.
func (w *controlPlanes) disturb(random *rand.Rand, names []string) {
	w.t.Helper()
	names = slices.Clone(names)
	random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	a, b, c := names[0], names[1], names[2]
	all := slices.Concat(w.ofPlane(random, a), w.ofMember(a), w.ofNetwork(a, b, c))
	if random.IntN(len(all)+1) == 0 { // rarely, because then nothing can be done anywhere
		all = []disturbance{w.noQuorum(a, b)}
	}
	d := all[random.IntN(len(all))]
	lasts := d.least + time.Duration(random.Int64N(int64(d.most-d.least)))
	w.t.Logf("%s for %v", d.what, lasts.Round(time.Millisecond))
	d.begin()
	w.pause(lasts)
	d.end()
}

// pause is the time that passes in a disturbance.
func (w *controlPlanes) pause(d time.Duration) {
	select {
	case <-w.t.Context().Done():
	case <-time.After(d):
	}
}

// ofPlane returns the possible events of the control plane of a host.
func (w *controlPlanes) ofPlane(random *rand.Rand, a string) []disturbance {
	p, start := w.planes[a], func() { w.start(a) }
	signal := func(s syscall.Signal) func() { return func() { _ = syscall.Kill(p.PID(), s) } }
	return []disturbance{
		{"the control plane of " + a + " is killed, and away", 0, 8 * time.Second, p.Kill, start},
		{"the control plane of " + a + " is ended, and away", 0, 8 * time.Second, p.Stop, start},
		// This is longer than its leases last: when it resumes, it does not know yet that others hold them.
		{
			"the control plane of " + a + " is suspended", 16 * time.Second, 20 * time.Second,
			signal(syscall.SIGSTOP), signal(syscall.SIGCONT),
		},
		{"the control plane of " + a + " dies, and its next ones have other clocks", 0, 2 * time.Second, p.Kill, func() {
			ahead := fmt.Sprint(random.IntN(1e6)) // of the clocks of this host
			w.under[a] = append(plane.In(bridge+a), "unshare", "--time", "--monotonic", ahead, "--boottime", ahead)
			w.start(a)
		}},
	}
}

// ofMember returns the possible events of the etcd member on a host.
func (w *controlPlanes) ofMember(a string) []disturbance {
	m := w.member(a)
	slow, quick := context.WithCancel(context.Background())
	var pulses sync.WaitGroup
	return []disturbance{
		{"the etcd of " + a + " is killed, and away", 0, 8 * time.Second, m.Kill, m.Start},
		{"the etcd of " + a + " is suspended", 2 * time.Second, 12 * time.Second, m.Freeze, m.Thaw},
		// To the others, it looks like a member with a slow disk: it responds, but late.
		{
			"the disk of the etcd of " + a + " is slow", 5 * time.Second, 10 * time.Second,
			func() { pulses.Go(func() { pulse(slow, m) }) }, func() { quick(); pulses.Wait() },
		},
	}
}

// pulse lets a member run for a quarter of the time.
func pulse(ctx context.Context, m *standalonetest.Member) {
	for ctx.Err() == nil {
		m.Freeze()
		<-time.After(150 * time.Millisecond)
		m.Thaw()
		<-time.After(50 * time.Millisecond)
	}
}

func (w *controlPlanes) member(name string) *standalonetest.Member {
	return w.members.Member(int(name[1] - '1'))
}

// ofNetwork returns what may happen to the network between hosts.
func (w *controlPlanes) ofNetwork(a, b, c string) []disturbance {
	lost := func(what string, ways ...[2]string) disturbance {
		return disturbance{what, 3 * time.Second, 20 * time.Second, func() {
			for _, way := range ways {
				w.cut(way[0], way[1])
			}
		}, func() {
			for _, way := range ways {
				w.mend(way[0], way[1])
			}
		}}
	}
	ab, ba, ac, ca := [2]string{a, b}, [2]string{b, a}, [2]string{a, c}, [2]string{c, a}
	return []disturbance{
		lost("what "+a+" sends to "+b+" is lost", ab),
		lost(a+" and "+b+" do not hear each other", ab, ba),
		lost("what "+a+" sends is lost", ab, ac),
		lost("what is sent to "+a+" is lost", ba, ca),
		lost(a+" is cut off", ab, ba, ac, ca),
	}
}

// noQuorum suspends two members.
func (w *controlPlanes) noQuorum(a, b string) disturbance {
	both := func(do func(*standalonetest.Member)) func() {
		return func() { do(w.member(a)); do(w.member(b)) }
	}
	return disturbance{
		"the etcd has no quorum", 3 * time.Second, 15 * time.Second,
		both((*standalonetest.Member).Freeze), both((*standalonetest.Member).Thaw),
	}
}
