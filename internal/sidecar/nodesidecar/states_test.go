package nodesidecar

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/csi/registrar"
	"volplane.dev/volplane/internal/sidecar"
	"volplane.dev/volplane/internal/testkit"
)

// patience bounds what must not hang.
const patience = time.Minute

// probeTime is the time limit of a probe here.
const probeTime = 500 * time.Millisecond

// subject is a program that answers at /healthz: ours, or upstream's.
type subject struct {
	t       *testing.T
	address string
	// upstream says that it is upstream's.
	upstream bool
}

// answers waits until the program answers so, and fails when it does not. Where it differs, upstream's answer is that
// after a second one.
func (s subject) answers(want string, upstream ...string) {
	s.t.Helper()
	if s.upstream && len(upstream) > 0 {
		want = upstream[0]
	}
	var got string
	for limit := time.Now().Add(patience); time.Now().Before(limit); {
		if got = s.get(); strings.HasPrefix(got, want) {
			return
		}
		<-time.After(10 * time.Millisecond)
	}
	s.t.Fatalf("it answers %q, want %q", got, want)
}

func (s subject) get() string {
	r, err := http.Get("http://" + s.address + "/healthz")
	if err != nil {
		return "nobody listens"
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		s.t.Error(err)
	}
	return fmt.Sprintf("%d %s", r.StatusCode, body)
}

// upstreams returns the directory of upstream's programs, which are compared if the variable is set: they are in no
// module that the Go proxy has, so that only a checkout of their repositories can be built.
func upstreams() string { return os.Getenv("UPSTREAM") }

// start starts a program of upstream's until the test ends.
func start(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	c := exec.Command(filepath.Join(upstreams(), name), args...)
	c.Stderr = t.Output()
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	return c
}

// TestLivenessStates: what a kubelet is answered in each state of the driver.
func TestLivenessStates(t *testing.T) {
	t.Run("volplane", func(t *testing.T) {
		livenessStates(t, func(socket, address string) subject {
			ctx, end := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() {
				ended <- Liveness(ctx, sidecar.LivenessOptions{
					Socket: socket, Address: address, Timeout: probeTime, Log: slog.New(slog.DiscardHandler),
				})
			}()
			t.Cleanup(func() {
				end()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
			return subject{t: t, address: address}
		})
	})
	if upstreams() == "" {
		return
	}
	t.Run("upstream", func(t *testing.T) {
		livenessStates(t, func(socket, address string) subject {
			start(t, "livenessprobe", "--csi-address", socket, "--http-endpoint", address,
				"--probe-timeout", probeTime.String())
			return subject{t: t, address: address, upstream: true}
		})
	})
}

func livenessStates(t *testing.T, begin func(socket, address string) subject) {
	d := csitest.Start(t, csitest.Full())
	d.Kill()
	s := begin(d.Socket, testkit.FreeAddress(t))
	s.answers("500 context deadline exceeded: dial unix "+d.Socket+": connect: connection refused", "nobody listens")
	probe := func(a csitest.Action) { d.OnCall("Probe", func(int, any) csitest.Action { return a }) }
	probe(csitest.Action{Answer: &csipb.ProbeResponse{Ready: wrapperspb.Bool(false)}})
	d.Restart()
	s.answers("500 driver responded but is not ready")
	probe(csitest.Action{Answer: &csipb.ProbeResponse{}})
	s.answers("200 ok")
	probe(csitest.Action{Err: status.Error(codes.FailedPrecondition, "no disk")})
	s.answers("500 rpc error: code = FailedPrecondition desc = no disk")
	probe(csitest.Action{})
	s.answers("200 ok")
	probe(csitest.Action{Hang: true})
	s.answers("500 rpc error: code = DeadlineExceeded desc = context deadline exceeded")
	probe(csitest.Action{Answer: csitest.Raw(make([]byte, 5<<20))})
	const broken = "500 rpc error: code = Unknown desc = the driver's answer breaks the CSI specification: grpc: "
	s.answers(broken+"received message larger than max",
		"500 rpc error: code = ResourceExhausted desc = grpc: received message larger than max")
	probe(csitest.Action{Answer: csitest.Raw("nonsense")})
	s.answers(broken, "500 rpc error: code = Internal desc = grpc: ")
	probe(csitest.Action{})
	s.answers("200 ok")
	d.Kill()
	s.answers("500 context deadline exceeded")
	d.Restart()
	s.answers("200 ok")
	// Another process holds the socket, and never answers.
	d.Kill()
	if err := os.Remove(d.Socket); err != nil {
		t.Fatal(err)
	}
	s.answers("500 context deadline exceeded: dial unix "+d.Socket+": connect: no such file",
		"500 context deadline exceeded")
	l, err := net.Listen("unix", d.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s.answers("500 rpc error: code = DeadlineExceeded desc = ", "500 context deadline exceeded")
}

// TestRegistrarStates: what a kubelet is answered in each state of the driver and of the registration socket.
func TestRegistrarStates(t *testing.T) {
	t.Run("volplane", func(t *testing.T) {
		registrarStates(t, func(socket, dir, address string) (subject, func()) {
			ctx, end := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() {
				ended <- Registrar(ctx, sidecar.RegistrarOptions{
					Socket: socket, Dir: dir, Health: address, Timeout: time.Second, Log: slog.New(slog.DiscardHandler),
				})
			}()
			return subject{t: t, address: address}, func() {
				end()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			}
		})
	})
	if upstreams() == "" {
		return
	}
	t.Run("upstream", func(t *testing.T) {
		registrarStates(t, func(socket, dir, address string) (subject, func()) {
			c := start(t, "csi-node-driver-registrar", "--csi-address", socket, "--http-endpoint", address,
				"--plugin-registration-path", dir, "--kubelet-registration-path", "/x")
			return subject{t: t, address: address, upstream: true}, func() {
				if err := c.Process.Signal(syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
				if err := c.Wait(); err != nil {
					t.Error(err)
				}
			}
		})
	})
}

func registrarStates(t *testing.T, begin func(socket, dir, address string) (subject, func())) {
	d := csitest.Start(t, csitest.Full())
	d.Kill()
	dir := filepath.Join(filepath.Dir(d.Socket), "registry")
	path := registrar.Path(dir, d.Name())
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	// A killed registrar has left its socket.
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	s, end := begin(d.Socket, dir, testkit.FreeAddress(t))
	s.answers("404 registration socket does not exist", "nobody listens")
	d.Restart()
	s.answers("200 ok")
	if file, err := os.Stat(path); err != nil || file.Mode().Perm()&0o077 != 0 {
		t.Errorf("the socket is %v, %v", file, err)
	}
	d.Kill()
	s.answers("200 ok")
	d.Restart()
	s.answers("200 ok")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	// Ours is created again; a kubelet with upstream's has to restart its container.
	s.answers("200 ok", "404 registration socket does not exist")
	end()
	if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
		t.Errorf("left are %v: %v", files, err)
	}
}

// TestRegistrationHealth: the other answers of a registrar about its socket.
func TestRegistrationHealth(t *testing.T) {
	dir := t.TempDir()
	name := "d.example"
	check := func(want string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), probeTime)
		defer cancel()
		a := registrationHealth(ctx, dir, &name)
		if got := fmt.Sprintf("%d %s", a.Code, a.Body); !strings.HasPrefix(got, want) {
			t.Errorf("it answers %q, want %q", got, want)
		}
	}
	check("404 registration socket does not exist")
	path := registrar.Path(dir, name)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	check("500 " + path + " is not a socket")
	_ = os.Remove(path)
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	check("500 error getting info from node-registrar socket: rpc error: code = DeadlineExceeded")
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = l.Close()
	check("500 error connecting to node-registrar socket " + path + ": ")
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- registrar.Registrar{
			Driver: "other.example", Endpoint: "/x", Path: path, Log: slog.New(slog.DiscardHandler),
		}.Run(ctx)
	}()
	for limit := time.Now().Add(patience); time.Now().Before(limit); <-time.After(time.Millisecond) {
		if c, err := net.Dial("unix", path); err == nil {
			_ = c.Close()
			break
		}
	}
	check(`500 invalid driver name "other.example"`)
	end()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
