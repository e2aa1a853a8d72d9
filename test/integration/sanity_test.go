package integration

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"volplane.dev/volplane/internal/hosting/local"
)

// TestSanity runs csi-sanity against the bundled driver, with real loop devices and mounts.
func TestSanity(t *testing.T) {
	dir, err := os.MkdirTemp("", "sanity-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	socket := filepath.Join(dir, "csi.sock")
	go func() {
		ended <- local.Serve(ctx, local.Options{
			NodeID: "node", PoolDir: filepath.Join(dir, "pool"), Endpoint: socket, Log: slog.New(slog.DiscardHandler),
		})
	}()
	c := sanity.NewTestConfig()
	c.Address = "unix:" + socket
	c.TargetPath, c.StagingPath = filepath.Join(dir, "target"), filepath.Join(dir, "staging")
	c.TestVolumeSize = 64 << 20
	// The suite compares messages with reflect.DeepEqual, which sees what sending has cached in them.
	c.DialOptions = append(c.DialOptions, grpc.WithUnaryInterceptor(func(
		ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, call grpc.UnaryInvoker,
		o ...grpc.CallOption,
	) error {
		return call(ctx, method, proto.Clone(req.(proto.Message)), reply, conn, o...)
	}))
	sanity.Test(t, c)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
