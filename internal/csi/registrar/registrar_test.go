package registrar_test

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/registrar"
)

const driverName = "csi.example.com"

// patience bounds what must not hang.
const patience = time.Minute

// run is a registrar that runs.
type run struct {
	registrar.Registrar
	t     *testing.T
	end   context.CancelFunc
	ended chan error
}

// announced returns a registrar for a new directory.
func announced(t *testing.T) registrar.Registrar {
	t.Helper()
	// Not t.TempDir: the name of a unix socket has at most 107 bytes.
	dir, err := os.MkdirTemp("", "reg-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return registrar.Registrar{
		Driver: driverName, Endpoint: "/plugins/csi.sock", Path: registrar.Path(dir, driverName),
		Log: slog.New(slog.DiscardHandler),
	}
}

// start runs a registrar and returns when its socket exists.
func start(t *testing.T, r registrar.Registrar) *run {
	t.Helper()
	ctx, end := context.WithCancel(t.Context())
	a := &run{Registrar: r, t: t, end: end, ended: make(chan error, 1)}
	go func() { a.ended <- r.Run(ctx) }()
	a.awaitSocket()
	return a
}

// awaitSocket waits until a node agent can find the driver.
func (a *run) awaitSocket() {
	a.t.Helper()
	tick, limit := time.NewTicker(time.Millisecond), time.After(patience)
	defer tick.Stop()
	for {
		if c, err := net.Dial("unix", a.Path); err == nil {
			_ = c.Close()
			return
		}
		select {
		case <-tick.C:
		case err := <-a.ended:
			a.t.Fatal("it ended: ", err)
		case <-limit:
			a.t.Fatal("no process listens at ", a.Path)
		}
	}
}

// result waits for the end.
func (a *run) result() error {
	a.t.Helper()
	select {
	case err := <-a.ended:
		return err
	case <-time.After(patience):
		a.t.Fatal("it does not end")
		return nil
	}
}

// stop ends the registrar, which may return no error and leaves nothing at the path.
func (a *run) stop() {
	a.t.Helper()
	a.end()
	if err := a.result(); err != nil {
		a.t.Error(err)
	}
	a.gone()
}

// gone fails the test when something is at the path still.
func (a *run) gone() {
	a.t.Helper()
	if _, err := os.Lstat(a.Path); !errors.Is(err, fs.ErrNotExist) {
		a.t.Errorf("the socket is left: %v", err)
	}
}

// agent asks as a kubelet does.
func (a *run) agent() registerapi.RegistrationClient {
	a.t.Helper()
	conn, err := grpc.NewClient("unix:"+a.Path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { _ = conn.Close() })
	return registerapi.NewRegistrationClient(conn)
}

func (a *run) tell(status *registerapi.RegistrationStatus) {
	a.t.Helper()
	if _, err := a.agent().NotifyRegistrationStatus(a.t.Context(), status); err != nil {
		a.t.Errorf("it was notified of %v: %v", status, err)
	}
}

// TestContract: it reports who the driver is, learns that it is accepted, and leaves nothing behind when it is stopped.
func TestContract(t *testing.T) {
	r := announced(t)
	a := start(t, r)
	var header metadata.MD
	info, err := a.agent().GetInfo(t.Context(), &registerapi.InfoRequest{}, grpc.Header(&header))
	if err != nil {
		t.Fatal(err)
	}
	if said := header.Get(csi.HeaderNodeOnly); len(said) > 0 {
		t.Errorf("it says of itself that it has no controller: %q", said)
	}
	if info.GetType() != registerapi.CSIPlugin || info.GetName() != driverName || info.GetEndpoint() != r.Endpoint ||
		!slices.Equal(info.GetSupportedVersions(), []string{"1.0.0"}) {
		t.Errorf("it says %v", info)
	}
	a.tell(&registerapi.RegistrationStatus{PluginRegistered: true})
	if s, err := os.Lstat(r.Path); err != nil || s.Mode().Perm() != 0o600 {
		t.Errorf("the socket is %v: %v", s, err)
	}
	a.stop()
}

// TestNodeOnly: a driver whose socket is known to have no controller reports that to agents that ask for it.
func TestNodeOnly(t *testing.T) {
	r := announced(t)
	r.NodeOnly = true
	a := start(t, r)
	var header metadata.MD
	_, err := a.agent().GetInfo(t.Context(), &registerapi.InfoRequest{}, grpc.Header(&header))
	if said := header.Get(csi.HeaderNodeOnly); err != nil || !slices.Equal(said, []string{"true"}) {
		t.Errorf("%q, %v", said, err)
	}
	a.stop()
}

// TestRefused: Run ends with the agent's reason.
func TestRefused(t *testing.T) {
	a := start(t, announced(t))
	a.tell(&registerapi.RegistrationStatus{Error: "topology collides" + strings.Repeat("!", 60_000)})
	if err := a.result(); !errors.Is(err, registrar.ErrRefused) || !strings.Contains(err.Error(), "topology collides") ||
		len(err.Error()) > 1200 {
		t.Errorf("it ended with %.1300v", err)
	}
	a.gone()
}

// TestPatient: a driver that may not end with a refusal keeps its socket for the agent's next attempt.
func TestPatient(t *testing.T) {
	r := announced(t)
	r.Patient = true
	a := start(t, r)
	a.tell(&registerapi.RegistrationStatus{Error: "not yet"})
	a.tell(&registerapi.RegistrationStatus{PluginRegistered: true})
	a.stop()
}

// TestReplaced: a registrar that must keep running takes its path back when another one's socket was put there and does
// not answer.
func TestReplaced(t *testing.T) {
	r := announced(t)
	r.Patient = true
	a := start(t, r)
	away := r.Path + ".away"
	if err := os.Rename(r.Path, away); err != nil {
		t.Fatal(err)
	}
	a.awaitSocket()
	if err := os.Rename(away, r.Path); err != nil {
		t.Fatal(err)
	}
	a.awaitSocket()
	a.tell(&registerapi.RegistrationStatus{PluginRegistered: true})
	a.stop()
}

// TestSocketIsRemoved: the socket is created again, repeatedly, even with its directory.
func TestSocketIsRemoved(t *testing.T) {
	a := start(t, announced(t))
	for _, remove := range []func() error{
		func() error { return os.Remove(a.Path) },
		func() error { return os.Remove(a.Path) },
		func() error { return os.RemoveAll(filepath.Dir(a.Path)) },
	} {
		if err := remove(); err != nil {
			t.Fatal(err)
		}
		a.awaitSocket()
		a.tell(&registerapi.RegistrationStatus{PluginRegistered: true})
	}
	a.stop()
}

// TestRemoveStale: a socket without a listener is removed; one in use stays, and so does anything that is not a socket.
func TestRemoveStale(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		make  func(path string) error
		stays bool
	}{
		"none":   {func(string) error { return nil }, false},
		"a file": {func(path string) error { return os.WriteFile(path, nil, 0o600) }, true},
		"stale": {func(path string) error {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
			if err != nil {
				return err
			}
			l.SetUnlinkOnClose(false)
			return l.Close()
		}, false},
		"used": {func(path string) error {
			l, err := net.Listen("unix", path)
			if err == nil {
				t.Cleanup(func() { _ = l.Close() })
			}
			return err
		}, true},
	} {
		path := registrar.Path(dir, name)
		if err := c.make(path); err != nil {
			t.Fatal(err)
		}
		if err := registrar.RemoveStale(t.Context(), dir, name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Lstat(path); (err == nil) != c.stays {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOneAnnounces: a registrar starts where a killed one has left its socket; where another one responds, or has taken
// over the path, it ends and leaves the other's socket alone.
func TestOneAnnounces(t *testing.T) {
	r := announced(t)
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: r.Path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	left.SetUnlinkOnClose(false)
	if err := left.Close(); err != nil {
		t.Fatal(err)
	}
	first := start(t, r)
	before, err := os.Lstat(r.Path)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Run(t.Context()); !errors.Is(err, registrar.ErrTaken) {
		t.Errorf("a second one ended with %v", err)
	}
	if now, err := os.Lstat(r.Path); err != nil || !now.ModTime().Equal(before.ModTime()) {
		t.Errorf("the first one's socket was touched: %v", err)
	}
	first.tell(&registerapi.RegistrationStatus{PluginRegistered: true})
	other, err := net.Listen("unix", r.Path+"2")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := os.Rename(r.Path+"2", r.Path); err != nil {
		t.Fatal(err)
	}
	if err := first.result(); !errors.Is(err, registrar.ErrTaken) {
		t.Errorf("the first one ended with %v", err)
	}
	if c, err := net.Dial("unix", r.Path); err != nil {
		t.Errorf("the other one's socket is gone: %v", err)
	} else {
		_ = c.Close()
	}
}

// TestCannotAnnounce: invalid options are reported before there is a socket.
func TestCannotAnnounce(t *testing.T) {
	for name, change := range map[string]func(*registrar.Registrar){
		"name":     func(r *registrar.Registrar) { r.Driver = "../evil" },
		"endpoint": func(r *registrar.Registrar) { r.Endpoint = "csi.sock" },
		"path":     func(r *registrar.Registrar) { r.Path += "/../x" },
		"long":     func(r *registrar.Registrar) { r.Path += strings.Repeat("x", 108) },
	} {
		r := announced(t)
		change(&r)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		err := r.Run(ctx)
		cancel()
		if err == nil || ctx.Err() == context.DeadlineExceeded || name == "name" && !errors.Is(err, csi.ErrName) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
