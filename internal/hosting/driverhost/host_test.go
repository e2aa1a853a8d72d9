package driverhost

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/hosting/driverfile"
	"volplane.dev/volplane/internal/hosting/supervise"
	"volplane.dev/volplane/internal/process/queue"
)

// TestMain is also the gate and the driver that tests start.
func TestMain(m *testing.M) {
	switch {
	case slices.Equal(os.Args[1:], []string{"gate"}):
		os.Exit(supervise.Gate())
	case len(os.Args) == 4 && os.Args[1] == "driver":
		fmt.Fprintln(os.Stderr, serve(os.Args[2], os.Args[3], os.Getenv(driverfile.VarEndpoint)))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// plugin is a driver whose services do nothing. Like most, it says CONTROLLER_SERVICE wherever it runs.
type plugin struct {
	csipb.UnimplementedIdentityServer
	csipb.UnimplementedControllerServer
	csipb.UnimplementedNodeServer
	name, mode string
}

func (p plugin) Probe(context.Context, *csipb.ProbeRequest) (*csipb.ProbeResponse, error) {
	if p.mode == "unready" {
		return nil, status.Error(codes.FailedPrecondition, "no credentials")
	}
	return &csipb.ProbeResponse{}, nil
}

// GetPluginInfo returns as the version what the environment has.
func (p plugin) GetPluginInfo(context.Context, *csipb.GetPluginInfoRequest) (*csipb.GetPluginInfoResponse, error) {
	return &csipb.GetPluginInfoResponse{Name: p.name, VendorVersion: os.Getenv("TOKEN") + "1"}, nil
}

func (p plugin) GetPluginCapabilities(
	context.Context, *csipb.GetPluginCapabilitiesRequest,
) (*csipb.GetPluginCapabilitiesResponse, error) {
	return csi.PluginCapabilities{ControllerService: true}.Answer(), nil
}

func (p plugin) ControllerGetCapabilities(
	context.Context, *csipb.ControllerGetCapabilitiesRequest,
) (*csipb.ControllerGetCapabilitiesResponse, error) {
	return csi.ControllerCapabilities{CreateDelete: true}.Answer(), nil
}

func (p plugin) NodeGetCapabilities(
	context.Context, *csipb.NodeGetCapabilitiesRequest,
) (*csipb.NodeGetCapabilitiesResponse, error) {
	return csi.NodeCapabilities{}.Answer(), nil
}

func (p plugin) NodeGetInfo(context.Context, *csipb.NodeGetInfoRequest) (*csipb.NodeGetInfoResponse, error) {
	return &csipb.NodeGetInfoResponse{NodeId: os.Getenv(driverfile.VarNode)}, nil
}

// serve serves the services of a driver that a mode names: all, node or controller; deaf has
// all, and does not end when it is asked to stop; unready is a controller that is never
// ready.
func serve(name, mode, endpoint string) error {
	l, err := net.Listen("unix", strings.TrimPrefix(endpoint, "unix://"))
	if err != nil {
		return err
	}
	server, p := grpc.NewServer(), plugin{name: name, mode: mode}
	csipb.RegisterIdentityServer(server, p)
	if mode != "node" {
		csipb.RegisterControllerServer(server, p)
	}
	if mode != "controller" && mode != "unready" {
		csipb.RegisterNodeServer(server, p)
	}
	if mode == "deaf" {
		signal.Ignore(syscall.SIGTERM)
	}
	return server.Serve(l)
}

// driverHost is a host with files about drivers.
type driverHost struct {
	t       *testing.T
	root    string
	files   driverfile.Dir
	calls   *csi.Set
	end     func()
	mu      sync.Mutex
	said    []string
	reached []string
	secrets map[string]string
	changed chan struct{}
	// accounts answers for service accounts, which a joined host cannot use.
	accounts accounts
	joined   bool
	// grace is how long programs may take to end; the usual time if it is zero.
	grace time.Duration
}

const name = "d.example.com"

func newDriverHost(t *testing.T) *driverHost {
	t.Helper()
	// The kernel limits the length of a socket's path.
	root, err := os.MkdirTemp("/tmp", "dh")
	if err != nil {
		t.Fatal(err)
	}
	w := &driverHost{
		t: t, root: root, files: driverfile.Dir(filepath.Join(root, "drivers.d")), secrets: map[string]string{},
		changed: make(chan struct{}, 1),
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	w.run()
	t.Cleanup(func() {
		for path := range w.pids() {
			_ = w.files.Remove(strings.TrimSuffix(strings.TrimSuffix(path, "-node"), "-controller"))
		}
		w.until("all programs end", func() bool { return len(w.pids()) == 0 })
		w.end()
	})
	return w
}

// run runs a host until end.
func (w *driverHost) run() {
	w.calls = csi.NewSet()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	identify := w.identify
	if w.joined {
		identify = nil
	}
	go func() {
		ended <- Run(ctx, Options{
			Identify: identify, accountPlace: w.place(),
			Files: w.files, RootDir: w.root, Node: "n1", Gate: []string{executable(w.t), "gate"}, Controllers: w.calls,
			Secret: w.secret, Reached: w.heard, Failed: w.failed, Log: slog.New(slog.DiscardHandler),
			grace: w.grace,
			Retry: queue.Backoff{Min: 10 * time.Millisecond, Max: 20 * time.Millisecond},
		})
	}()
	w.end = func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Error(err)
		}
	}
}

// place is where programs look for the files of their account.
func (w *driverHost) place() string { return filepath.Join(w.root, "run", "sa") }

func executable(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return self
}

func (w *driverHost) secret(_ context.Context, ns, name, key string) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if v, ok := w.secrets[ns+"/"+name+"/"+key]; ok {
		return v, nil
	}
	return "", fmt.Errorf("the secret %w", ErrNoValue)
}

func (w *driverHost) heard(_ context.Context, _ driverfile.Driver, d *csi.Driver) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reached = append(w.reached, fmt.Sprintf("%s %s controller=%t", d.Name, d.Version, d.HasController))
}

func (w *driverHost) failed(about string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said = append(w.said, strings.ReplaceAll(about+": "+err.Error(), w.root, "ROOT"))
}

// until waits until something is so.
func (w *driverHost) until(what string, is func() bool) {
	w.t.Helper()
	tick, limit := time.NewTicker(5*time.Millisecond), time.After(time.Minute)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-limit:
			w.mu.Lock()
			defer w.mu.Unlock()
			w.t.Fatalf("never: %s; failures %q, reached %q, programs %v", what, w.said, w.reached, w.pids())
		}
	}
}

// tells waits until a failure with these words was reported.
func (w *driverHost) tells(words string) {
	w.t.Helper()
	w.until("told of "+words, func() bool { return w.told(words) > 0 })
}

// told returns how often a failure with these words was reported.
func (w *driverHost) told(words string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.said {
		if strings.Contains(s, words) {
			n++
		}
	}
	return n
}

// pids returns the main processes of the programs that run.
func (w *driverHost) pids() map[string]int {
	out := map[string]int{}
	names, _ := supervise.Names(StateDir(w.root))
	for _, n := range names {
		r, _ := supervise.Read(StateDir(w.root), n)
		out[n] = r.PID
	}
	return out
}

// announced says whether the driver has a registration socket.
func (w *driverHost) announced() bool {
	_, err := os.Lstat(filepath.Join(w.root, "plugins_registry", name+"-reg.sock"))
	return err == nil
}

// process returns a process of the driver that is started in a mode.
func (w *driverHost) process(mode string, roles ...driverfile.Role) driverfile.Process {
	return driverfile.Process{Roles: roles, Exec: []string{executable(w.t), "driver", name, mode}}
}

func (w *driverHost) put(processes ...driverfile.Process) driverfile.Driver {
	w.t.Helper()
	d := driverfile.Driver{APIVersion: driverfile.APIVersion, Kind: driverfile.Kind, Name: name, Processes: processes}
	if err := w.files.Put(d); err != nil {
		w.t.Fatal(err)
	}
	return d
}

const (
	controller = driverfile.RoleController
	node       = driverfile.RoleNode
)

// TestOneProcess: a driver is started, registered and reported; it outlives its host, is adopted, and ends when its
// file is removed.
func TestOneProcess(t *testing.T) {
	w := newDriverHost(t)
	w.put(w.process("all", controller, node))
	w.until("announced", w.announced)
	w.until("reached", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return slices.Contains(w.reached, name+" 1 controller=true")
	})
	if names := w.calls.Names(); len(names) > 0 {
		t.Errorf("%q are called beside the node agent's connection", names)
	}
	before := w.pids()[name]
	w.end()
	if w.announced() {
		t.Error("it is announced, and nobody serves the registration")
	}
	w.run()
	w.until("announced again", w.announced)
	if now := w.pids()[name]; before == 0 || now != before {
		t.Errorf("process %d was %d: it was started again", now, before)
	}
	if err := w.files.Remove(name); err != nil {
		t.Fatal(err)
	}
	w.until("ended", func() bool { return len(w.pids()) == 0 && !w.announced() })
	if n := len(w.said); n > 0 {
		t.Errorf("told %q", w.said)
	}
}

// TestTwoProcesses: the controller is reached at its own socket, whenever that exists.
func TestTwoProcesses(t *testing.T) {
	w := newDriverHost(t)
	w.put(w.process("node", node), w.process("controller", controller))
	w.until("announced", w.announced)
	called := func() bool { d, ok := w.calls.Get(name); return ok && d.HasController }
	w.until("called", called)
	process, err := os.FindProcess(w.pids()[name+"-controller"])
	if err != nil {
		t.Fatal(err)
	}
	before, _ := w.calls.Get(name)
	if err := process.Kill(); err != nil {
		t.Fatal(err)
	}
	w.until("called anew", func() bool { now, ok := w.calls.Get(name); return ok && now != before })
	// The node's process alone is left.
	w.put(w.process("node", node), driverfile.Process{
		Roles: []driverfile.Role{controller}, Socket: "/tmp/nobody/csi.sock",
	})
	w.until("no longer called", func() bool { return !called() })
	w.until("its program ended", func() bool { _, is := w.pids()[name+"-controller"]; return !is })
}

// TestSlowEnd: a program that takes long to end holds up its own driver, which must not run twice, and no other one.
func TestSlowEnd(t *testing.T) {
	w := newDriverHost(t)
	w.end()
	w.grace = time.Hour
	w.run()
	w.put(w.process("deaf", controller, node))
	w.until("announced", w.announced)
	slow := w.pids()[name]
	if err := w.files.Remove(name); err != nil {
		t.Fatal(err)
	}
	w.until("it is being ended", func() bool { return !w.announced() })
	other := w.process("all", controller, node)
	other.Exec[2] = "other.example.com"
	d := driverfile.Driver{
		APIVersion: driverfile.APIVersion, Kind: driverfile.Kind, Name: other.Exec[2], Processes: []driverfile.Process{other},
	}
	if err := w.files.Put(d); err != nil {
		t.Fatal(err)
	}
	w.until("the other one runs", func() bool { return w.pids()[d.Name] > 0 })
	w.put(w.process("all", controller, node))
	if err := w.files.Remove(d.Name); err != nil {
		t.Fatal(err)
	}
	w.until("the files are read", func() bool { return w.pids()[d.Name] == 0 })
	if now := w.pids()[name]; now != slow {
		t.Errorf("it is process %d, and %d has not ended", now, slow)
	}
	if err := syscall.Kill(slow, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	w.until("it runs again", w.announced)
	if n := len(w.said); n > 0 {
		t.Errorf("told %q", w.said)
	}
}

// TestWrongProcesses: a process that does not match its file is reported once, and is not called.
func TestWrongProcesses(t *testing.T) {
	for _, c := range []struct {
		what, want string
		announced  bool
		processes  func(w *driverHost) []driverfile.Process
	}{
		{"another name", "calls itself other.example.com", false, func(w *driverHost) []driverfile.Process {
			p := w.process("all", controller, node)
			p.Exec[2] = "other.example.com"
			return []driverfile.Process{p}
		}},
		{
			"only half of it", "has none at ROOT/plugins/" + name + "/csi.sock: add the process that has it", true,
			func(w *driverHost) []driverfile.Process {
				return []driverfile.Process{w.process("node", controller, node)}
			},
		},
		{
			"no controller where it is said to be", "has no controller at ROOT/plugins/" + name + "/controller.sock", true,
			func(w *driverHost) []driverfile.Process {
				return []driverfile.Process{w.process("node", node), w.process("node", controller)}
			},
		},
		{
			"no secret", "variable TOKEN of " + name + ": the secret does not exist", false,
			func(w *driverHost) []driverfile.Process {
				p := w.process("all", controller, node)
				p.EnvFromSecret = []driverfile.SecretVariable{{Name: "TOKEN", Secret: "ns/s", Key: "k"}}
				return []driverfile.Process{p}
			},
		},
	} {
		t.Run(c.what, func(t *testing.T) {
			w := newDriverHost(t)
			w.put(c.processes(w)...)
			w.tells(c.want)
			if c.announced {
				w.until("announced", w.announced)
			} else if w.announced() {
				t.Error("it is announced")
			}
			if names := w.calls.Names(); len(names) > 0 {
				t.Errorf("%q are called", names)
			}
			if n := w.told(c.want); n != 1 {
				t.Errorf("told %d times: %q", n, w.said)
			}
		})
	}
}

// TestBrokenFile: a file that becomes unusable is reported, and the driver that it described keeps running.
func TestBrokenFile(t *testing.T) {
	w := newDriverHost(t)
	d := w.put(w.process("all", controller, node))
	w.until("announced", w.announced)
	before := w.pids()[name]
	path := filepath.Join(string(w.files), name+".yaml")
	if err := os.WriteFile(path, []byte("kind: Pod\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.tells(name + ".yaml")
	if w.pids()[name] != before || !w.announced() {
		t.Error("the driver was disturbed")
	}
	w.put(d.Processes...)
	w.tells(name + ".yaml")
	if w.pids()[name] != before || !w.announced() {
		t.Error("the driver was disturbed when its file was mended")
	}
}

// TestStaleSocket: a socket that a killed driver has left does not keep it from starting, and one at which another
// process listens is not taken from it.
func TestStaleSocket(t *testing.T) {
	w := newDriverHost(t)
	socket := filepath.Join(PluginDir(w.root), name, "csi.sock")
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: socket})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	w.put(w.process("all", controller, node))
	w.until("told in the record", func() bool {
		r, _ := supervise.Read(StateDir(w.root), name)
		return strings.Contains(r.Message, "another process listens at "+socket)
	})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	w.until("announced", w.announced)
}
