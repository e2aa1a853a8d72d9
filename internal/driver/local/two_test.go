package local

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestOneDriverPerNode: a second driver for a node, or at a socket where one
// answers, ends at once and says why. The first one goes on.
func TestOneDriverPerNode(t *testing.T) {
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
	err := Serve(t.Context(), Options{NodeID: "other", PoolDir: filepath.Join(dir, "pool"), Endpoint: filepath.Join(dir, "node.sock")})
	if err == nil || !strings.Contains(err.Error(), "another one answers at "+dir+"/node.sock; stop it first") {
		t.Errorf("a second driver at the socket: %v", err)
	}
	d := first.create("v", mib, "block", nil)
	first.ok(first.delete(d.id))
	// One that was killed is in nobody's way.
	first.end(unix.SIGKILL)
	run(t, dir, "node").serving("node").empty()
}

// TestLongNode: a node may have any name that Kubernetes allows.
func TestLongNode(t *testing.T) {
	p, err := openPool(filepath.Join(newDir(t), "pool"), strings.Repeat("n", 253))
	if err != nil {
		t.Fatal(err)
	}
	p.close()
}

// TestTwoDrivers: two drivers with one pool answer the same, at the same time.
func TestTwoDrivers(t *testing.T) {
	dir := newDir(t)
	a, b := run(t, dir, "a").serving("a"), run(t, dir, "b").serving("b")
	both := func(f func(p *process) error) (failed []error) {
		t.Helper()
		errs := make([]error, 8)
		var g sync.WaitGroup
		for i := range errs {
			g.Go(func() { errs[i] = f([]*process{a, b}[i%2]) })
		}
		g.Wait()
		for _, err := range errs {
			if err != nil {
				failed = append(failed, err)
			}
		}
		return failed
	}
	for range 5 {
		id := volumes.idOf("v")
		if failed := both(func(p *process) error {
			v, err := p.c.CreateVolume(t.Context(), request("v", 16*mib, "block"))
			if err == nil && v.GetVolume().GetVolumeId() != id {
				err = fmt.Errorf("made %v", v)
			}
			return err
		}); failed != nil {
			t.Fatal("create", failed)
		}
		publish := func(p *process, node string) error {
			_, err := p.c.ControllerPublishVolume(t.Context(), &csipb.ControllerPublishVolumeRequest{VolumeId: id, NodeId: node, VolumeCapability: capability("block")})
			return err
		}
		// Each asks for its own node: one of them gets it.
		failed := both(func(p *process) error { return publish(p, map[*process]string{a: "a", b: "b"}[p]) })
		if len(failed) != 4 || status.Code(failed[0]) != codes.FailedPrecondition {
			t.Errorf("publish to two nodes: %v", failed)
		}
		for _, p := range []*process{a, b} {
			for _, node := range []string{"a", "b"} {
				d := p.disk("v", id, "block")
				if publish(p, node) == nil {
					// The node that has it may stage it, the other one not.
					err := d.stage()
					mine := node == "a" && p == a || node == "b" && p == b
					if mine != (err == nil) || !mine && status.Code(err) != codes.FailedPrecondition {
						t.Errorf("stage: %v", err)
					}
				}
				if failed := both(func(*process) error { return d.unstage() }); failed != nil {
					t.Error("unstage", failed)
				}
			}
		}
		if failed := both(func(p *process) error {
			_, err := p.c.ControllerUnpublishVolume(t.Context(), &csipb.ControllerUnpublishVolumeRequest{VolumeId: id})
			return err
		}); failed != nil {
			t.Error("unpublish", failed)
		}
		if failed := both(func(p *process) error { return p.delete(id) }); failed != nil {
			t.Error("delete", failed)
		}
		a.empty()
	}
}

// TestStartWhileAnotherMakes: a driver that starts leaves alone what another
// one is making.
func TestStartWhileAnotherMakes(t *testing.T) {
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
