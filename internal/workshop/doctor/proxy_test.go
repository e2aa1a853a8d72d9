package doctor

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"volplane.dev/volplane/internal/hosting/local"
	"volplane.dev/volplane/internal/process/socket"
)

// TestMain is also the driver that is examined, and the doctor that is killed.
func TestMain(m *testing.M) {
	run := func() error {
		// Tests of faults wait more than they compute.
		if err := flag.Set("test.parallel", "4"); err != nil {
			return err
		}
		os.Exit(m.Run())
		return nil
	}
	if dir := os.Getenv("DOCTOR_TEST_DRIVER"); dir != "" {
		run = func() error { return serve(dir, os.Getenv("DOCTOR_TEST_FAULT")) }
	} else if dir := os.Getenv("DOCTOR_TEST_DOCTOR"); dir != "" {
		run = func() error { return examine(dir) }
	}
	if err := run(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// serve serves the bundled driver at $CSI_ENDPOINT, with its volumes below dir, and with faults, if any are named.
func serve(dir, fault string) error {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	endpoint := strings.TrimPrefix(os.Getenv("CSI_ENDPOINT"), "unix://")
	o := local.Options{
		NodeID: "node", PoolDir: filepath.Join(dir, "pool"), Endpoint: endpoint, Log: slog.New(slog.DiscardHandler),
	}
	role := os.Getenv("DOCTOR_TEST_ROLE")
	if fault == "" && role == "" {
		return local.Serve(ctx, o)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	o.Endpoint = filepath.Join(dir, "inner.sock")
	p := &proxy{
		dir: dir, scratch: filepath.Dir(endpoint), endpoint: endpoint, spoils: spoils{}, seen: map[string]int{}, role: role,
	}
	if role == "Controller" {
		return p.serve(ctx, o.Endpoint)
	}
	for name := range strings.SplitSeq(fault, ";") {
		f := faults()[name]
		maps.Copy(p.spoils, f.spoil)
		if f.blocks != nil {
			p.blocks = f.blocks
		}
		if f.begin != nil {
			if err := f.begin(p); err != nil {
				return err
			}
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- local.Serve(ctx, o) }()
	err := p.serve(ctx, o.Endpoint)
	if os.Getenv("DOCTOR_TEST_STAYS") != "" {
		select {}
	}
	return errors.Join(err, <-ended)
}

// proxy is a driver that passes calls to another one, and spoils some.
type proxy struct {
	// dir is what survives the process, and scratch the directory of the examination.
	dir, scratch, endpoint string
	spoils                 spoils
	// blocks changes the answers of the snapshot metadata service, unless it is nil.
	blocks func(*metadataAnswer)
	// role is the service that there is beside the identity; empty if there are both.
	role string
	conn *grpc.ClientConn

	mu sync.Mutex
	// seen counts what a fault counts.
	seen map[string]int
}

func (p *proxy) serve(ctx context.Context, inner string) error {
	var err error
	if p.conn, err = grpc.NewClient("unix:"+inner, grpc.WithTransportCredentials(insecure.NewCredentials()),
		// The driver behind the proxy begins to listen a moment later.
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{
			BaseDelay: 2 * time.Millisecond, Multiplier: 1, MaxDelay: 2 * time.Millisecond,
		}}),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true))); err != nil {
		return err
	}
	l, err := socket.Listen(ctx, p.endpoint)
	if err != nil {
		return err
	}
	s := grpc.NewServer(grpc.UnaryInterceptor(p.intercept))
	csipb.RegisterIdentityServer(s, csipb.UnimplementedIdentityServer{})
	csipb.RegisterControllerServer(s, csipb.UnimplementedControllerServer{})
	csipb.RegisterGroupControllerServer(s, csipb.UnimplementedGroupControllerServer{})
	csipb.RegisterNodeServer(s, csipb.UnimplementedNodeServer{})
	csipb.RegisterSnapshotMetadataServer(s, metadata{proxy: p})
	defer context.AfterFunc(ctx, s.Stop)()
	return s.Serve(l)
}

// count returns how often it was called with a name before.
func (p *proxy) count(name string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen[name]++
	return p.seen[name] - 1
}

// peek returns how often count was called with a name.
func (p *proxy) peek(name string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen[name]
}

// enter counts a call that is in flight until the returned function is called; inside returns how many are.
func (p *proxy) enter(name string) (leave func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen["in "+name]++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.seen["in "+name]--
	}
}

func (p *proxy) inside(name string) int { return p.peek("in " + name) }

// call is one call that the proxy has received.
type call struct {
	*proxy
	ctx    context.Context
	method string
	req    proto.Message
}

// pass calls the driver behind the proxy, and adds what it does not have.
func (c *call) pass() (proto.Message, error) {
	if answer, answered, err := c.extra(); answered {
		return answer, err
	}
	answer, err := c.ask(c.method, c.req)
	if err == nil {
		err = c.extend(answer)
	}
	return answer, err
}

// ask makes any call of the driver behind the proxy.
func (c *call) ask(method string, req proto.Message) (proto.Message, error) {
	name := protoreflect.FullName("csi.v1." + path.Base(method) + "Response")
	t, err := protoregistry.GlobalTypes.FindMessageByName(name)
	if err != nil {
		return nil, err
	}
	reply := t.New().Interface()
	return reply, c.conn.Invoke(c.ctx, method, req, reply)
}

func (p *proxy) intercept(ctx context.Context, req any, info *grpc.UnaryServerInfo, _ grpc.UnaryHandler) (any, error) {
	c := &call{p, ctx, info.FullMethod, req.(proto.Message)}
	if err := p.note(info.FullMethod); err != nil {
		return nil, err
	}
	if service := path.Base(path.Dir(info.FullMethod)); p.role != "" && service != "csi.v1."+p.role &&
		service != "csi.v1.Group"+p.role && service != "csi.v1.Identity" {
		return nil, status.Error(codes.Unimplemented, "this process does not serve "+service)
	}
	if spoil := p.spoils[path.Base(info.FullMethod)]; spoil != nil {
		return spoil(c)
	}
	return c.pass()
}

// envCheck names the file in which a driver with faults finds the name of the doctor's current check.
const envCheck = "DOCTOR_TEST_CHECK"

// during says whether a check is the doctor's current one.
func during(check string) bool {
	current, err := os.ReadFile(os.Getenv(envCheck))
	return err == nil && string(current) == check
}
