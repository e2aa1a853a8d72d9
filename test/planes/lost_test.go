package planes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/test/internal/array"
	"volplane.dev/volplane/test/internal/plane"
)

// TestGivenUp: the host of a control plane never comes back, of the first one, the leader, and one that waits. Any
// other control plane names what is lost and gives it up, while another one restarts: volumes that other hosts reach
// are mounted there, volumes that belong to no node have a control plane again, and what was lost can be deleted. If
// the host does come back, it is refused, and has no volume that another one has. It works again, with what is left of
// its volumes, when it is invited again.
func TestGivenUp(t *testing.T) {
	t.Parallel()
	g := &givingUp{names: []string{"n1", "n2", "n3"}}
	g.controlPlanes = newControlPlanes(t, g.names...)
	g.array = array.New(g.dirOf("array"))
	g.serve(g.array, g.names...)
	g.immediate("n1")
	g.play("first", "n1", false)
	leader, err := g.leader("n3")
	if err != nil {
		t.Fatal(err)
	}
	g.play("leader", leader, false)
	g.play("waits", g.waiting(), true)
	g.eventually("only what was deleted in between is left", func() error { return g.onlyLeft(g.names[0], g.left) })
	for _, text := range g.array.Violations() {
		t.Error(text)
	}
}

// givingUp are control planes whose hosts are given up, one after the other.
type givingUp struct {
	*controlPlanes
	array *array.Array
	// names are those of the control planes, in the order of their Nodes.
	names []string
	// left are remains of volumes that were deleted while their host was away.
	left []string
}

// waiting returns a control plane that neither leads nor is the first one.
func (g *givingUp) waiting() (name string) {
	g.t.Helper()
	g.eventually("one leads", func() error {
		leader, err := g.leader(g.names[0])
		for _, n := range g.names[1:] {
			if n != leader {
				name = n
			}
		}
		return err
	})
	return name
}

// play has the host of a control plane lost, given up, refused when it comes back, and invited again. It is killed, or
// suspended: then it does not know that it is lost.
func (g *givingUp) play(role, lost string, suspended bool) {
	g.t.Helper()
	g.t.Logf("%s is lost: %s", role, lost)
	rest := slices.DeleteFunc(slices.Clone(g.names), func(n string) bool { return n == lost })
	by, other := rest[0], rest[1]
	kept, gone, shared, next := role+"-kept", role+"-gone", role+"-shared", role+"-next"
	path := g.use(lost, plane.Claim(kept, "8Mi"), lost)
	g.mustWrite(filepath.Join(path, "file"), kept)
	g.mount(lost, gone, lost)
	g.use(lost, arrayClaim(shared), lost)
	handle := g.bound(by, gone).Spec.CSI.VolumeHandle
	if suspended {
		_ = syscall.Kill(g.planes[lost].PID(), syscall.SIGSTOP)
	} else {
		g.planes[lost].Kill()
	}
	force := []string{"--force"} // otherwise it has to be silent for 40 seconds
	if role == "first" {
		g.namesWhatIsLost(by, lost, kept)
		force = nil
	}
	g.giveUp(by, other, lost, force, kept, gone)
	g.use(by, arrayClaim(shared), by)
	g.create(by, immediateClaim(next))
	g.bound(by, next)
	g.delete(by, gone)
	g.left = append(g.left, "pool volumes/"+handle)
	g.comesBack(by, lost, suspended)
	if at := g.array.Holders(g.bound(by, shared).Spec.CSI.VolumeHandle); !slices.Equal(at, []string{by}) {
		g.t.Errorf("%s is published to %v", shared, at)
	}
	g.invite(by, lost)
	g.start(lost)
	path = g.use(by, plane.Claim(kept, "8Mi"), lost)
	if text, err := os.ReadFile(filepath.Join(path, "file")); err != nil || string(text) != kept {
		g.t.Errorf("the file in %s has %q, %v", kept, text, err)
	}
	for _, name := range []string{kept, shared, next} {
		g.delete(lost, name)
	}
	g.names = append(rest, lost)
}

func (g *givingUp) mustWrite(path, text string) {
	g.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		g.t.Fatal(err)
	}
}

// volplane runs a command at a control plane.
func (g *givingUp) volplane(by string, args ...string) (string, error) {
	args = append([]string{"--kubeconfig", g.planes[by].Kubeconfig()}, args...)
	out, err := exec.CommandContext(g.t.Context(), plane.Bin("volplane"), args...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("volplane %q: %w: %s", args, err, out)
	}
	return string(out), err
}

// namesWhatIsLost waits until the others notice that a host is away: each then explains what its volume waits for, and
// which command gives the host up.
func (g *givingUp) namesWhatIsLost(by, lost, claim string) {
	g.t.Helper()
	want := "volplane delete node " + lost + " --lost"
	g.eventually("the command that gives up "+lost, func() error {
		for name := range g.planes {
			if name == lost {
				continue
			}
			out, err := g.volplane(name, "why", "pvc/"+claim, "--fix")
			if !strings.Contains(out, want) {
				return errors.Join(err, fmt.Errorf("%s says %s", name, out))
			}
		}
		return nil
	})
	if _, err := g.volplane(by, "delete", "node", by, "--lost", "--force", "--yes"); err == nil ||
		!strings.Contains(err.Error(), "not lost") {
		g.t.Errorf("a control plane gives itself up: %v", err)
	}
}

// giveUp gives up a lost host at one control plane while the other one restarts.
func (g *givingUp) giveUp(by, other, lost string, flags []string, claims ...string) {
	g.t.Helper()
	var restart sync.WaitGroup
	restart.Go(g.planes[other].Stop)
	begin := time.Now()
	out, err := g.volplane(by, append([]string{"delete", "node", lost, "--lost", "--yes"}, flags...)...)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Logf("given up in %v", time.Since(begin).Round(time.Millisecond))
	for _, claim := range claims {
		if !strings.Contains(out, "default/"+claim) {
			g.t.Errorf("%s is not named as lost: %s", claim, out)
		}
	}
	restart.Wait()
	g.start(other)
}

// comesBack wants a host that was given up to be refused.
func (g *givingUp) comesBack(by, lost string, suspended bool) {
	g.t.Helper()
	if suspended {
		_ = syscall.Kill(g.planes[lost].PID(), syscall.SIGCONT)
		select {
		case <-g.planes[lost].Ended():
		case <-time.After(patience):
			g.t.Fatalf("%s, which was suspended, does not end", lost)
		}
	}
	ctx, cancel := context.WithTimeout(g.t.Context(), patience)
	defer cancel()
	if p, err := plane.Start(ctx, g.dirOf(lost), g.flags(lost)...); err == nil {
		p.Stop()
		g.t.Errorf("%s is not refused", lost)
	}
	log, err := os.ReadFile(g.dirOf(lost) + ".log")
	if err != nil || !strings.Contains(string(log), "volplane invite --control-plane "+lost) {
		g.t.Errorf("%s does not say why it is refused: %v", lost, err)
	}
	_, err = g.clients[by].CoreV1().Nodes().Get(g.t.Context(), lost, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		g.t.Errorf("there is a Node of %s, %v", lost, err)
	}
}
