package app

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/csi/registrar"
)

// announced is a driver beside which a registrar runs.
type announced struct {
	t      *testing.T
	driver *csitest.Driver
	dir    string
	end    context.CancelFunc
	ended  chan error
}

func announce(t *testing.T, endpoint string) *announced {
	t.Helper()
	d := csitest.Start(t, csitest.Full())
	ctx, end := context.WithCancel(t.Context())
	a := &announced{
		t: t, driver: d, dir: filepath.Join(filepath.Dir(d.Socket), "registry"), end: end, ended: make(chan error, 1),
	}
	o := RegistrarOptions{Socket: d.Socket, Endpoint: endpoint, Dir: a.dir, Log: slog.New(slog.DiscardHandler)}
	go func() { a.ended <- Registrar(ctx, o) }()
	return a
}

// socket waits until the driver of that name is announced by another socket
// than before, and returns the new one.
func (a *announced) socket(name string, before fs.FileInfo) fs.FileInfo {
	a.t.Helper()
	tick, limit := time.NewTicker(time.Millisecond), time.After(time.Minute)
	defer tick.Stop()
	for {
		now, err := os.Lstat(registrar.Path(a.dir, name))
		if err == nil && (before == nil || !same(now, before)) {
			return now
		}
		select {
		case <-tick.C:
		case err := <-a.ended:
			a.t.Fatal("it ended: ", err)
		case <-limit:
			a.t.Fatalf("%s is not announced: %v", name, err)
		}
	}
}

// same says whether it is one socket; the number of an inode that is free again
// is used again.
func same(a, b fs.FileInfo) bool { return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) }

// agent asks at the socket of a driver as a kubelet does.
func (a *announced) agent(name string) registerapi.RegistrationClient {
	a.t.Helper()
	conn, err := grpc.NewClient("unix:"+registrar.Path(a.dir, name),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { _ = conn.Close() })
	return registerapi.NewRegistrationClient(conn)
}

func (a *announced) nothingLeft() {
	a.t.Helper()
	if files, err := os.ReadDir(a.dir); err != nil || len(files) > 0 {
		a.t.Errorf("left are %v: %v", files, err)
	}
}

// TestRegistrarFollowsTheDriver: a driver that goes stays announced, for its
// volumes are there; when it comes again, perhaps under another name, it is
// announced anew, and nothing is left in the end.
func TestRegistrarFollowsTheDriver(t *testing.T) {
	a := announce(t, "")
	first := a.socket(a.driver.Name(), nil)
	info, err := a.agent(a.driver.Name()).GetInfo(t.Context(), &registerapi.InfoRequest{})
	if want := "/var/lib/kubelet/plugins/test.csi.example.com/csi.sock"; err != nil || info.GetEndpoint() != want {
		t.Errorf("the driver is said to be at %v: %v", info, err)
	}
	a.driver.Kill()
	if now := a.socket(a.driver.Name(), nil); !same(now, first) {
		t.Error("the driver is gone and announced anew")
	}
	a.driver.Restart()
	a.socket(a.driver.Name(), first)
	a.driver.Rename("other.example.com")
	a.driver.Restart()
	a.socket("other.example.com", nil)
	if _, err := os.Lstat(registrar.Path(a.dir, "test.csi.example.com")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the earlier name is still announced: %v", err)
	}
	a.end()
	if err := <-a.ended; err != nil {
		t.Error(err)
	}
	a.nothingLeft()
}

// TestRegistrarEnds with an error that somebody must see: the agent refuses the
// driver, or the driver comes again under a name that is none (S1-004).
func TestRegistrarEnds(t *testing.T) {
	for _, c := range []struct {
		by   func(a *announced)
		want error
	}{
		{func(a *announced) {
			_, _ = a.agent(a.driver.Name()).NotifyRegistrationStatus(t.Context(), &registerapi.RegistrationStatus{Error: "no"})
		}, registrar.ErrRefused},
		{func(a *announced) { a.driver.Rename("no/name"); a.driver.Restart() }, csi.ErrName},
	} {
		a := announce(t, "/at/csi.sock")
		a.socket(a.driver.Name(), nil)
		c.by(a)
		if err := <-a.ended; !errors.Is(err, c.want) {
			t.Errorf("it ended with %v, want %v", err, c.want)
		}
		a.nothingLeft()
	}
}
