package kubelets

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"volplane.dev/volplane/internal/app"
	settings "volplane.dev/volplane/internal/process/options"
	"volplane.dev/volplane/internal/sidecar"
	"volplane.dev/volplane/internal/sidecar/nodesidecar"
	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/test/internal/cluster"
	"volplane.dev/volplane/test/internal/upstream"
)

// Services of a driver, by the beginnings of their methods' names.
const (
	controllerService = "/csi.v1.Controller/"
	nodeService       = "/csi.v1.Node/"
)

// TestDriverInTwoProcesses: in a cluster of Kubernetes, with a kubelet, a driver works that has separate sockets for
// its node process and its controller. Each half says that the driver has a controller, and answers Unimplemented to
// calls of the other half: the registrar needs the node's half only, and controllers refuse to run beside it.
func TestDriverInTwoProcesses(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t)
	c.Controllers(t, "persistentvolume-binder-controller", "persistentvolume-attach-detach-controller",
		"persistentvolume-protection-controller", "persistentvolumeclaim-protection-controller",
		"node-lifecycle-controller")
	c.Scheduler(t)
	root := c.Kubelet(t, "n1")
	h := &kubeletCluster{t: t, client: c.Client, root: root}
	var cancel context.CancelFunc
	h.ctx, cancel = context.WithTimeout(t.Context(), cluster.MountLimit)
	defer cancel()
	// A kubelet does not see drivers that register there.
	elsewhere := filepath.Join(filepath.Dir(root), "whole")
	bundled(t, "n1", elsewhere)
	whole := filepath.Join(elsewhere, "plugins", volume.LocalDriver, "csi.sock")
	nodes := serveHalf(t, controllerService, whole, filepath.Join(root, "plugins", volume.LocalDriver, "csi.sock"))
	controller := serveHalf(t, nodeService, whole, filepath.Join(elsewhere, "controller.sock"))
	options := settings.ControllersOptions{
		Config: c.AdminConfig(), Log: noLog(),
		ControllersOptions: sidecar.ControllersOptions{
			Roles: app.DriverControllers(), Namespace: "default", Elects: true,
			Term: sidecar.Term{Duration: 15 * time.Second, Deadline: 10 * time.Second, Retry: 2 * time.Second},
		},
	}

	wrong := options
	wrong.Socket = nodes
	if err := app.Controllers(h.ctx, wrong); err == nil || !strings.Contains(err.Error(), "not behind this socket") {
		t.Errorf("controllers beside the node's half: %v", err)
	}
	runs(t, func(ctx context.Context) error {
		return nodesidecar.Registrar(ctx, sidecar.RegistrarOptions{
			Socket: nodes, Endpoint: nodes, Dir: filepath.Join(root, "plugins_registry"), Log: noLog(),
		})
	})
	options.Socket = controller
	runs(t, func(ctx context.Context) error { return app.Controllers(ctx, options) })

	h.useTwice()
	s := side{Name: "cluster", Server: c, Client: c.Client}
	upstream.Eventually(h.ctx, t, func() string { return s.Left(h.ctx) + below(t, root) })
}

func noLog() *slog.Logger { return slog.New(slog.DiscardHandler) }

// runs runs a program until the test ends.
func runs(t *testing.T, program func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- program(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// serveHalf serves a driver, without one of its services, at another socket until the test ends, and returns that
// socket.
func serveHalf(t *testing.T, service, driver, socket string) string {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+driver, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(socket), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		method, ok := grpc.MethodFromServerStream(s)
		if !ok || strings.HasPrefix(method, service) {
			return status.Errorf(codes.Unimplemented, "unknown service %s", service)
		}
		// An empty message keeps unknown fields.
		request, answer := &emptypb.Empty{}, &emptypb.Empty{}
		if err := s.RecvMsg(request); err != nil {
			return err
		}
		return forward(s, conn, method, request, answer)
	}))
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		_ = conn.Close()
	})
	return socket
}

func forward(s grpc.ServerStream, conn *grpc.ClientConn, method string, request, answer *emptypb.Empty) error {
	if err := conn.Invoke(s.Context(), method, request, answer, grpc.WaitForReady(true)); err != nil {
		return err
	}
	return s.SendMsg(answer)
}
