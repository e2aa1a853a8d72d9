package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"volplane.dev/volplane/internal/process/socket"
)

// TestOneDriverPerNode: a second driver for a node, or at a socket where one answers,
// exits immediately with the reason. The first one continues.
func TestOneDriverPerNode(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	first := run(t, dir, "node").serving("node")
	for _, c := range []struct{ node, env, says string }{
		{"node", "X=1", "another driver serves this node with this pool; stop it first"},
		{"", "X=1", "no id for this node"},
	} {
		second := run(t, dir, c.node, c.env)
		if err := second.cmd.Wait(); err == nil || !strings.Contains(second.said.String(), c.says) {
			t.Errorf("a second driver for %q: %v, %s", c.node, err, second.said)
		}
	}
	err := Serve(t.Context(), Options{
		NodeID: "other", PoolDir: filepath.Join(dir, "pool"), Endpoint: filepath.Join(dir, "node.sock"),
	})
	if err == nil || !strings.Contains(err.Error(), "another one answers at "+dir+"/node.sock; stop it first") {
		t.Errorf("a second driver at the socket: %v", err)
	}
	d := first.create("v", mib, "block", nil)
	first.ok(first.delete(d.id))
	// One that was killed does not block the next.
	first.end(unix.SIGKILL)
	run(t, dir, "node").serving("node").empty()
}

// TestNodeIsGivenBackLate: the lock of a driver that was killed is released with the last
// program that it was just about to start.
func TestNodeIsGivenBackLate(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(newDir(t), "pool")
	killed, err := openPool(dir, "node")
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(servedLimit/20, killed.close)
	next, err := openPool(dir, "node")
	if err != nil {
		t.Fatal(err)
	}
	next.close()
}

// TestLongNode: a node may have any name that Kubernetes allows.
func TestLongNode(t *testing.T) {
	t.Parallel()
	p, err := openPool(filepath.Join(newDir(t), "pool"), strings.Repeat("n", 253))
	if err != nil {
		t.Fatal(err)
	}
	p.close()
}

// pair are two drivers with one pool, for the nodes a and b.
type pair struct {
	*testing.T
	a, b *process
}

// both makes a call four times with each driver, all concurrently, and returns the
// errors.
func (two pair) both(f func(p *process, node string) error) (failed []error) {
	var g sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		if i%2 == 0 {
			g.Go(func() { errs[i] = f(two.a, "a") })
		} else {
			g.Go(func() { errs[i] = f(two.b, "b") })
		}
	}
	g.Wait()
	return slices.DeleteFunc(errs, func(err error) bool { return err == nil })
}

// well wants such a call to go well each time.
func (two pair) well(what string, f func(p *process) error) {
	two.Helper()
	if failed := two.both(func(p *process, _ string) error {
		return insist(func() error { return f(p) })
	}); len(failed) > 0 {
		two.Errorf("%s: %v", what, failed)
	}
}

func (p *process) publishTo(id, node string) error {
	_, err := p.c.ControllerPublishVolume(p.Context(),
		&csipb.ControllerPublishVolumeRequest{VolumeId: id, NodeId: node, VolumeCapability: capability("block")})
	return err
}

// TestTwoDrivers: two drivers with one pool answer the same, at the same time.
func TestTwoDrivers(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	two := pair{t, run(t, dir, "a").serving("a"), run(t, dir, "b").serving("b")}
	id := volumes.idOf("v")
	for range 5 {
		two.well("create", func(p *process) error {
			v, err := p.c.CreateVolume(t.Context(), request("v", 16*mib, "block"))
			if err == nil && v.GetVolume().GetVolumeId() != id {
				err = fmt.Errorf("made %v", v)
			}
			return err
		})
		// Each publishes to its own node: one of them succeeds.
		failed := two.both(func(p *process, node string) error { return p.publishTo(id, node) })
		if len(failed) != 4 || status.Code(failed[0]) != codes.FailedPrecondition {
			t.Errorf("publish to two nodes: %v", failed)
		}
		two.stageBoth(id)
		two.well("unstage", func(p *process) error { return p.disk("v", id, "block").unstage() })
		two.well("unpublish", func(p *process) error {
			_, err := p.c.ControllerUnpublishVolume(t.Context(), &csipb.ControllerUnpublishVolumeRequest{VolumeId: id})
			return err
		})
		two.well("delete", func(p *process) error { return p.delete(id) })
		two.a.empty()
	}
}

// stageBoth stages the volume with both drivers: the one whose node has it may,
// the other one not.
func (two pair) stageBoth(id string) {
	two.Helper()
	for node, p := range map[string]*process{"a": two.a, "b": two.b} {
		has := p.publishTo(id, node) == nil
		err := p.disk("v", id, "block").stage()
		if has != (err == nil) || !has && status.Code(err) != codes.FailedPrecondition {
			two.Errorf("stage on node %s, which has the volume: %t: %v", node, has, err)
		}
	}
}

// TestTakeOver: a node that is taken for dead while it still shows the volume
// neither keeps another node of the host from using it, nor leaves a device.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	two := pair{t, run(t, dir, "a").serving("a"), run(t, dir, "b").serving("b")}
	on := func(p *process, node, id string) *disk {
		d := p.disk(node, id, "ext4")
		p.ok(p.publishTo(id, node))
		p.ok(d.stage())
		p.ok(d.publish(false))
		return d
	}
	id := two.a.create("v", 16*mib, "ext4", nil).id
	dead := on(two.a, "a", id)
	dead.write("data")
	for range 2 {
		_, err := two.b.c.ControllerUnpublishVolume(t.Context(), &csipb.ControllerUnpublishVolumeRequest{VolumeId: id})
		two.b.ok(err)
		d := on(two.b, "b", id)
		d.holds("data")
		two.b.ok(d.unpublish())
		two.b.ok(d.unstage())
	}
	dead.holds("data")
	two.a.ok(dead.unpublish())
	two.a.ok(dead.unstage())
	if all := loops(t, dir); len(all) > 0 {
		t.Errorf("left: %v", all)
	}
	_, err := two.b.c.ControllerUnpublishVolume(t.Context(), &csipb.ControllerUnpublishVolumeRequest{VolumeId: id})
	two.b.ok(err)
	two.b.ok(two.b.delete(id))
	two.b.empty()
}

// TestStartWhileAnotherMakes: a driver that starts leaves alone what another
// one is making.
func TestStartWhileAnotherMakes(t *testing.T) {
	t.Parallel()
	dir := newDir(t)
	a := run(t, dir, "node").serving("node")
	original := a.create("original", 32*mib, "block", nil)
	original.use()
	original.write("data")
	original.rest()
	pool := filepath.Join(dir, "pool")
	var g sync.WaitGroup
	done := make(chan struct{})
	g.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			p, err := openPool(pool, "b")
			if err == nil {
				err = p.sweep()
				p.close()
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
	})
	for i := range 40 {
		r := request(fmt.Sprint("clone", i), 32*mib, "block")
		r.VolumeContentSource = fromVolume(original.id)
		v, err := a.c.CreateVolume(t.Context(), r)
		if err != nil {
			t.Errorf("clone %d: %v", i, err)
			break
		}
		a.ok(a.delete(v.GetVolume().GetVolumeId()))
	}
	close(done)
	g.Wait()
	a.ok(a.delete(original.id))
	a.empty()
}

// TestLongSocket: the kernel would only say that the argument is invalid.
func TestLongSocket(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(newDir(t), strings.Repeat("d", socket.NameLimit))
	_, err := socket.Listen(t.Context(), filepath.Join(dir, "csi.sock"))
	if err == nil || !strings.Contains(err.Error(), "give a shorter directory") {
		t.Errorf("listening at a long path: %v", err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory was made: %v", err)
	}
}
