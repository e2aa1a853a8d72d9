package crash

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/registrar"
	"volplane.dev/volplane/internal/hosting/local"
	"volplane.dev/volplane/internal/process/options"
	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/test/internal/servers"
)

// agentEnv is the environment variable with the crashingAgent that a process of this test is to run.
const agentEnv = "VOLPLANE_CRASH_AGENT"

// TestMain runs the tests, or a node agent when agentEnv is set, since only a process can be killed.
func TestMain(m *testing.M) {
	text, ok := os.LookupEnv(agentEnv)
	if !ok {
		os.Exit(servers.Main(m))
	}
	var a crashingAgent
	err := json.Unmarshal([]byte(text), &a)
	if err == nil {
		err = a.live(context.Background())
	}
	fmt.Fprintln(os.Stderr, "agent:", err)
	os.Exit(1)
}

// crashingAgent is a node agent with the bundled driver, as `volplane node` runs them, that kills itself
// with SIGKILL at one of its effects.
type crashingAgent struct {
	Node, Dir, Pool, Kubeconfig string
	// At is the effect at which it dies, counted from 1; 0 means that it does not die. After
	// says that it dies once the effect is done.
	At    int
	After bool

	mu     sync.Mutex
	count  int
	driver *grpc.ClientConn
}

func (a *crashingAgent) root() string { return filepath.Join(a.Dir, "root") }

// diary returns the file that has "begin" and "end" of each effect of the agent.
func (a *crashingAgent) diary() string { return filepath.Join(a.Dir, "diary") }

func (a *crashingAgent) live(ctx context.Context) error {
	config, err := clientcmd.BuildConfigFromFlags("", a.Kubeconfig)
	if err != nil {
		return err
	}
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:node:" + a.Node, Groups: []string{"system:nodes"}}
	config.Wrap(a.api)
	registry, endpoint := filepath.Join(a.root(), "plugins_registry"), filepath.Join(a.Dir, "driver.sock")
	if err := os.MkdirAll(registry, 0o700); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	ended := make(chan error, 4)
	go func() {
		ended <- local.Serve(ctx, local.Options{NodeID: a.Node, PoolDir: a.Pool, Endpoint: endpoint, Log: log})
	}()
	if a.driver, err = grpc.NewClient("unix:"+endpoint,
		grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		return err
	}
	between := grpc.NewServer(grpc.ForceServerCodec(raw{}), grpc.UnknownServiceHandler(a.forward))
	_ = os.Remove(a.between())
	l, err := net.Listen("unix", a.between())
	if err != nil {
		return err
	}
	go func() { ended <- between.Serve(l) }()
	announce := registrar.Registrar{
		Driver: volume.LocalDriver, Endpoint: a.between(), Path: registrar.Path(registry, volume.LocalDriver), Log: log,
	}
	go func() { ended <- announce.Run(ctx) }()
	go func() {
		ended <- app.Node(ctx, options.NodeOptions{
			Name: a.Node, RootDir: a.root(), Config: config, Drivers: csi.NewSet(), Log: log,
		})
	}()
	return <-ended
}

// between returns the socket between agent and driver.
func (a *crashingAgent) between() string { return filepath.Join(a.Dir, "between.sock") }

// effect causes an effect, and dies before or after it.
func (a *crashingAgent) effect(name string, happen func() error) error {
	a.mu.Lock()
	a.count++
	here := a.count == a.At
	a.note("begin " + name)
	if here && !a.After {
		die()
	}
	a.mu.Unlock()
	err := happen()
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil {
		a.note("end " + name)
	}
	if here {
		die()
	}
	return err
}

func die() {
	_ = unix.Kill(os.Getpid(), unix.SIGKILL)
	select {}
}

func (a *crashingAgent) note(text string) {
	f, err := os.OpenFile(a.diary(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = io.WriteString(f, text+"\n")
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		panic(err)
	}
}

// api counts the requests that write, except those that are sent at regular intervals.
func (a *crashingAgent) api(next http.RoundTripper) http.RoundTripper {
	return roundTrip(func(r *http.Request) (answer *http.Response, err error) {
		if r.Method == http.MethodGet || strings.Contains(r.URL.Path, "/events") || strings.Contains(r.URL.Path, "/leases") {
			return next.RoundTrip(r)
		}
		err = a.effect(r.Method+" "+r.URL.Path, func() (err error) {
			answer, err = next.RoundTrip(r)
			return err
		})
		return answer, err
	})
}

// forward passes a call of the agent on to the driver.
func (a *crashingAgent) forward(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	var in, out []byte
	if err := stream.RecvMsg(&in); err != nil {
		return err
	}
	call := func() error { return a.driver.Invoke(stream.Context(), method, &in, &out, grpc.ForceCodec(raw{})) }
	var err error
	switch name := method[strings.LastIndex(method, "/")+1:]; name {
	case "NodeStageVolume", "NodeUnstageVolume", "NodePublishVolume", "NodeUnpublishVolume":
		err = a.effect(name, call)
	default:
		err = call()
	}
	if err != nil {
		return err
	}
	return stream.SendMsg(&out)
}

// raw is the codec of messages that are passed on without decoding.
type raw struct{}

// Marshal returns the bytes.
func (raw) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

// Unmarshal keeps the bytes.
func (raw) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}

// Name is that of the codec that both sides use.
func (raw) Name() string { return "proto" }
