package nodesidecar

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
	"volplane.dev/volplane/internal/sidecar"
)

// registration is a driver with a running registrar.
type registration struct {
	t           *testing.T
	driver      *csitest.Driver
	dir         string
	end         context.CancelFunc
	unlessEnded chan error
}

func registerUntilRestart(t *testing.T, endpoint string) *registration {
	t.Helper()
	d := csitest.Start(t, csitest.Full())
	ctx, end := context.WithCancel(t.Context())
	a := &registration{
		t: t, driver: d, dir: filepath.Join(filepath.Dir(d.Socket), "registry"), end: end, unlessEnded: make(chan error, 1),
	}
	o := sidecar.RegistrarOptions{Socket: d.Socket, Endpoint: endpoint, Dir: a.dir, Log: slog.New(slog.DiscardHandler)}
	go func() { a.unlessEnded <- Registrar(ctx, o) }()
	return a
}

// socket waits until the driver of that name is registered by another socket than
// before, and returns the new socket.
func (a *registration) socket(name string, before fs.FileInfo) fs.FileInfo {
	a.t.Helper()
	tick, limit := time.NewTicker(time.Millisecond), time.After(time.Minute)
	defer tick.Stop()
	for {
		now, err := os.Lstat(registrar.Path(a.dir, name))
		if err == nil && (before == nil || !sameSocket(now, before)) {
			return now
		}
		select {
		case <-tick.C:
		case err := <-a.unlessEnded:
			a.t.Fatal("it ended: ", err)
		case <-limit:
			a.t.Fatalf("%s is not announced: %v", name, err)
		}
	}
}

// sameSocket says whether two files are the same socket; an inode number may be reused, so
// the times are compared too.
func sameSocket(a, b fs.FileInfo) bool { return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) }

// kubelet connects to the registration socket of a driver, as a kubelet does.
func (a *registration) kubelet(name string) registerapi.RegistrationClient {
	a.t.Helper()
	conn, err := grpc.NewClient("unix:"+registrar.Path(a.dir, name),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		// The file of a socket exists a moment before the server listens.
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { _ = conn.Close() })
	return registerapi.NewRegistrationClient(conn)
}

func (a *registration) checkLeftovers() {
	a.t.Helper()
	if files, err := os.ReadDir(a.dir); err != nil || len(files) > 0 {
		a.t.Errorf("left are %v: %v", files, err)
	}
}

// TestRegistrarFollowsTheDriver: a driver that ends stays registered, because its
// volumes still exist; when it restarts, perhaps with another name, it is registered
// again; no socket is left at the end.
func TestRegistrarFollowsTheDriver(t *testing.T) {
	a := registerUntilRestart(t, "")
	first := a.socket(a.driver.Name(), nil)
	info, err := a.kubelet(a.driver.Name()).GetInfo(t.Context(), &registerapi.InfoRequest{})
	if want := "/var/lib/kubelet/plugins/test.csi.example.com/csi.sock"; err != nil || info.GetEndpoint() != want {
		t.Errorf("the driver is said to be at %v: %v", info, err)
	}
	a.driver.Kill()
	if now := a.socket(a.driver.Name(), nil); !sameSocket(now, first) {
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
	if err := <-a.unlessEnded; err != nil {
		t.Error(err)
	}
	a.checkLeftovers()
}

// TestRegistrarEnds: the registrar returns an error if the agent refuses the driver, or
// if the driver restarts with an invalid name (S1-004).
func TestRegistrarEnds(t *testing.T) {
	for _, c := range []struct {
		by   func(a *registration)
		want error
	}{
		{func(a *registration) {
			_, _ = a.kubelet(a.driver.Name()).NotifyRegistrationStatus(t.Context(), &registerapi.RegistrationStatus{Error: "no"})
		}, registrar.ErrRefused},
		{func(a *registration) { a.driver.Rename("no/name"); a.driver.Restart() }, csi.ErrName},
	} {
		a := registerUntilRestart(t, "/at/csi.sock")
		a.socket(a.driver.Name(), nil)
		c.by(a)
		if err := <-a.unlessEnded; !errors.Is(err, c.want) {
			t.Errorf("it ended with %v, want %v", err, c.want)
		}
		a.checkLeftovers()
	}
}
