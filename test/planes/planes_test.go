package planes

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/explain/survey"
	"volplane.dev/volplane/internal/testkit/seeds"
	"volplane.dev/volplane/test/internal/plane"
)

// TestLivesWhilePlanesDie: control planes are killed and stopped, one after the other, while claims are made, mounted
// and deleted on the nodes of the others by any API server. Volumes of a node whose control plane is down wait, and
// come up when it is back. At the end nothing is left behind anywhere.
func TestLivesWhilePlanesDie(t *testing.T) {
	t.Parallel()
	names := []string{"n1", "n2", "n3"}
	w := newControlPlanes(t, names...)
	w.immediate("n1")
	for _, name := range names {
		w.mount(name, "stays-"+name, name)
	}
	random := rand.New(rand.NewPCG(seeds.First(t), 0))
	for round := range 4 {
		leader, err := w.leader(names[round%len(names)])
		victim := leader
		if err != nil || round%2 == 1 {
			victim = names[random.IntN(len(names))]
		}
		others := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == victim })
		by, node := others[round%2], others[random.IntN(2)]
		kill := random.IntN(2) == 0
		t.Logf("round %d: %s ends (killed: %v), %s leads (%v); a life on %s by %s", round, victim, kill, leader, err, node,
			by)
		// A claim is in the middle of its creation when the control plane ends.
		w.create(by, immediateClaim(fmt.Sprint("middle-", round)))
		if kill {
			w.planes[victim].Kill()
		} else {
			w.planes[victim].Stop()
		}
		begin := time.Now()
		w.mount(by, fmt.Sprint("life-", round), node)
		t.Logf("round %d: mounted after %v", round, time.Since(begin).Round(time.Millisecond))
		w.delete(by, fmt.Sprint("life-", round))
		w.start(victim)
		if v := w.bound(by, fmt.Sprint("middle-", round)); v.Spec.NodeAffinity == nil {
			t.Errorf("volume %s is accessible everywhere", v.Name)
		}
		w.delete(by, fmt.Sprint("middle-", round))
	}
	for _, name := range names {
		w.mount(name, "stays-"+name, name) // it never went
		w.delete(name, "stays-"+name)
	}
	w.nothingLeft("n2")
}

// TestHandOver: when the leader is stopped another control plane leads, without waiting for a lease to expire, and each
// of them shows the whole cluster.
func TestHandOver(t *testing.T) {
	t.Parallel()
	w := newControlPlanes(t, "n1", "n2")
	if _, err := w.planes["n1"].Invite("n2"); err == nil {
		t.Error("the name of a control plane's node is given to another host")
	}
	for range 2 {
		leader := ""
		w.eventually("one leads", func() (err error) {
			leader, err = w.leader("n2")
			return err
		})
		other := map[string]string{"n1": "n2", "n2": "n1"}[leader]
		for name, client := range w.clients {
			raw, err := client.Discovery().RESTClient().Get().AbsPath(survey.Path).DoRaw(t.Context())
			if err != nil || !strings.Contains(string(raw), "{") {
				t.Errorf("%s does not know the cluster: %s %v", name, raw, err)
			}
		}
		begin := time.Now()
		w.planes[leader].Stop()
		stopped := time.Since(begin)
		w.mount(other, "after-"+leader, other)
		t.Logf("%s stopped in %v; a claim is mounted %v after the signal", leader, stopped.Round(time.Millisecond),
			time.Since(begin).Round(time.Millisecond))
		w.delete(other, "after-"+leader)
		w.start(leader)
	}
	w.nothingLeft("n1")
}

// TestQuorumLost: the store has no quorum for longer than the leases of the control planes last. Mounts stay, and when
// the quorum is back everything continues on its own.
func TestQuorumLost(t *testing.T) {
	t.Parallel()
	w := newControlPlanes(t, "n1", "n2")
	for _, name := range []string{"n1", "n2"} {
		w.mount(name, "stays-"+name, name)
	}
	for i := range 2 {
		w.members.Member(i).Freeze()
	}
	for name, p := range w.planes {
		w.eventually(name+" stops its controllers", func() error {
			log, err := os.ReadFile(p.Dir + ".log")
			if err == nil && !strings.Contains(string(log), "lease is lost") {
				err = errors.New("it has not lost its lease")
			}
			return err
		})
		if mounts, err := p.Mounts(); err != nil || len(mounts) == 0 {
			t.Errorf("%s has the mounts %v, %v", name, mounts, err)
		}
	}
	for i := range 2 {
		w.members.Member(i).Thaw()
	}
	for _, name := range []string{"n1", "n2"} {
		w.mount(name, "after-"+name, name)
		w.delete(name, "after-"+name)
		w.delete(name, "stays-"+name)
	}
	w.nothingLeft("n1")
}

// TestSlowMember: each member of the etcd in turn responds late, as with a slow disk, also the one that leads. Every
// write of that time succeeds.
func TestSlowMember(t *testing.T) {
	t.Parallel()
	w := newControlPlanes(t, "n1")
	for i := range 3 {
		slow, quick := context.WithCancel(t.Context())
		var pulses sync.WaitGroup
		pulses.Go(func() { pulse(slow, w.members.Member(i)) })
		var longest time.Duration
		for n := range 50 {
			begin := time.Now()
			_, err := w.clients["n1"].CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("slow-", i, "-", n)},
			}, metav1.CreateOptions{})
			if err != nil {
				t.Errorf("member %d is slow: %v", i, err)
			}
			longest = max(longest, time.Since(begin))
		}
		quick()
		pulses.Wait()
		t.Logf("member %d is slow: the longest write takes %v", i, longest.Round(time.Millisecond))
	}
}

// TestSecondOfOneName: two control planes with one name, as of a host and its clone, never work at the same time.
func TestSecondOfOneName(t *testing.T) {
	t.Parallel()
	w := newControlPlanes(t, "n1")
	w.copyKeys("n1", "clone")
	log, err := os.Create(w.dirOf("clone.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	args := append([]string{"up", "--data-dir", w.dirOf("clone")}, w.flags("n1")...)
	c := exec.Command(plane.Bin("volplaned"), args...)
	c.Stdout, c.Stderr = log, log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = c.Process.Signal(os.Interrupt)
		_ = c.Wait()
	}()
	says := func(what string) func() error {
		return func() error {
			text, err := os.ReadFile(log.Name())
			if err == nil && !strings.Contains(string(text), what) {
				err = fmt.Errorf("it says %s", text)
			}
			return err
		}
	}
	w.eventually("the second one waits for the lease", says("volplane-control-plane-n1"))
	if says(" is up ")() == nil {
		t.Error("two control planes work with one name")
	}
	w.planes["n1"].Stop()
	w.eventually("the second one works", says(" is up "))
}

// TestAgentsFindAnother: the agent of a joined host connects to another control plane when the one that invited it
// dies, and after a restart, too. So do the commands of both hosts.
func TestAgentsFindAnother(t *testing.T) {
	t.Parallel()
	const network = "10.214.7."
	addAddresses(t, network+"1", network+"2")
	w := newControlPlanesAt(t, network, "n1", "n2")
	invitation, err := w.planes["n1"].Invite("joined")
	if err != nil {
		t.Fatal(err)
	}
	data := w.dirOf("joined")
	agent, err := plane.Run(data+".log", "volplane", "node", "--join", invitation, "--data-dir", data)
	if err != nil {
		t.Fatal(err)
	}
	defer agent.Stop()
	w.mount("n1", "before", "joined")
	for _, dir := range []string{data, w.dirOf("n1")} {
		w.eventually("the host knows both", func() error {
			text, err := os.ReadFile(filepath.Join(dir, "node", "identity", "control-planes.json"))
			if err == nil && (!strings.Contains(string(text), network+"1") || !strings.Contains(string(text), network+"2")) {
				err = fmt.Errorf("it knows %s", text)
			}
			return err
		})
	}
	w.commandsFind(network+"2", func() { w.planes["n1"].Kill() })
	begin := time.Now()
	w.mount("n2", "after", "joined")
	t.Logf("mounted %v after the death of n1", time.Since(begin).Round(time.Millisecond))
	agent.Stop()
	if err := agent.Restart(); err != nil {
		t.Fatal(err)
	}
	w.mount("n2", "again", "joined")
	for _, name := range []string{"before", "after", "again"} {
		w.delete("n2", name)
	}
	w.nothingLeft("n2")
}

// addAddresses gives the host more addresses during a test.
func addAddresses(t *testing.T, all ...string) {
	t.Helper()
	for _, address := range all {
		at := []string{address + "/32", "dev", "lo"}
		_ = exec.Command("ip", append([]string{"address", "del"}, at...)...).Run() // of an interrupted run
		if out, err := exec.Command("ip", append([]string{"address", "add"}, at...)...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		t.Cleanup(func() { _ = exec.Command("ip", append([]string{"address", "del"}, at...)...).Run() })
	}
}

// commandsFind runs commands of the host of n1 and of a joined one while n1 ends. Each is answered, and in the end each
// reports that another control plane has answered.
func (w *controlPlanes) commandsFind(another string, end func()) {
	w.t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		end()
	}()
	of := [][]string{
		{"--data-dir", w.dirOf("n1")}, {"--kubeconfig", w.planes["n1"].Kubeconfig(), "--data-dir", w.dirOf("joined")},
	}
	for i := range 40 {
		args := append(of[i%2], "get", "nodes")
		out, err := exec.CommandContext(w.t.Context(), plane.Bin("volplane"), args...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "joined") || i > 30 && !strings.Contains(string(out), another) {
			w.t.Errorf("volplane %v: %v: %s", args, err, out)
		}
	}
	<-ended
}
