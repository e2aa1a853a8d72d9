package csitest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/registrar"
)

// memoryBuffer is how much a connection in memory holds, in bytes.
const memoryBuffer = 64 << 10

// Config describes a Driver and its storage.
type Config struct {
	// Name is the driver's name; empty means "test.csi.example.com".
	Name, Version string
	// Snapshots holds the ids of the snapshots that the driver has at its start.
	Snapshots []string
	// NodeID is the id of this node; empty means "node-1". OtherNodes holds the ids of further nodes that volumes can be
	// published to.
	NodeID     string
	OtherNodes []string
	// MaxVolumes is how many volumes can be published to one node; 0 means no limit.
	MaxVolumes int64
	// Segments is the topology segment of this node and of all volumes.
	Segments map[string]string
	// Capacity is the limit for the sum of all volumes, in bytes; 0 means no limit.
	Capacity int64
	// Plugin, Controller, Group and Node hold the driver's capabilities. Calls that need a missing one fail with
	// Unimplemented.
	Plugin     csi.PluginCapabilities
	Controller csi.ControllerCapabilities
	Group      csi.GroupCapabilities
	Node       csi.NodeCapabilities
	// Hooks holds functions, by method, that replace what a call of the node service does on the
	// host (create or remove a directory or file).
	Hooks map[string]func(req any) error
}

// Full returns a Config with every capability that Driver implements: all but snapshots.
func Full() Config {
	return Config{
		Segments: map[string]string{"topology.test/zone": "a"},
		Plugin:   csi.PluginCapabilities{ControllerService: true, AccessibilityConstraints: true, OnlineExpansion: true},
		Controller: csi.ControllerCapabilities{
			CreateDelete: true, PublishUnpublish: true, ListVolumes: true, ListVolumesPublishedNodes: true, GetCapacity: true,
			Clone: true, PublishReadonly: true, Expand: true, GetVolume: true, Modify: true, SingleNodeMultiWriter: true,
		},
		Node: csi.NodeCapabilities{StageUnstage: true, Expand: true, Stats: true, SingleNodeMultiWriter: true},
	}
}

// Driver is a CSI driver in memory. It is safe for concurrent use.
type Driver struct {
	csipb.UnimplementedIdentityServer
	csipb.UnimplementedControllerServer
	csipb.UnimplementedGroupControllerServer
	csipb.UnimplementedNodeServer
	csipb.UnimplementedSnapshotMetadataServer

	// Socket is the path of its socket; empty if the driver is only in memory.
	Socket string

	t      testing.TB
	config Config
	script script

	mu        sync.Mutex
	name      string
	volumes   map[string]*vol
	snapshots map[string]*csipb.Snapshot
	groups    map[string]*csipb.VolumeGroupSnapshot
	// blocks answers the calls of the snapshot metadata service.
	blocks Blocks
	// server is nil while the driver is dead; stopped is closed when it dies.
	server *grpc.Server
	// memory is the listener of a driver without a socket.
	memory  *bufconn.Listener
	stopped chan struct{}
}

// Start serves a driver at a socket until the test ends.
func Start(t testing.TB, c Config) *Driver {
	t.Helper()
	return start(t, c, filepath.Join(shortDir(t), "csi.sock"))
}

// InMemory serves a driver that only Dial reaches, until the test ends. It has no socket, so that it works in a bubble
// of testing/synctest, where a goroutine that waits for the kernel would stop the clock.
func InMemory(t testing.TB, c Config) *Driver {
	t.Helper()
	return start(t, c, "")
}

func start(t testing.TB, c Config, socket string) *Driver {
	t.Helper()
	d := &Driver{
		Socket: socket, t: t, config: c, volumes: map[string]*vol{}, snapshots: firstSnapshots(c.Snapshots),
		groups: map[string]*csipb.VolumeGroupSnapshot{},
		name:   cmp.Or(c.Name, "test.csi.example.com"), script: newScript(),
	}
	d.config.NodeID = cmp.Or(c.NodeID, "node-1")
	d.config.Version = cmp.Or(c.Version, "1.0")
	d.serve()
	t.Cleanup(d.Kill)
	return d
}

// shortDir returns a temporary directory whose path is short enough for a socket: the kernel limits
// a socket's path to 108 bytes.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "csi")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (d *Driver) serve() {
	d.t.Helper()
	memory := bufconn.Listen(memoryBuffer)
	var listener net.Listener = memory
	if d.Socket != "" {
		var err error
		if listener, err = listen(d.Socket); err != nil {
			d.t.Fatal(err)
		}
	}
	server := d.newServer()
	csipb.RegisterControllerServer(server, d)
	csipb.RegisterGroupControllerServer(server, d)
	csipb.RegisterNodeServer(server, d)
	csipb.RegisterSnapshotMetadataServer(server, d)
	d.mu.Lock()
	d.server, d.stopped, d.memory = server, make(chan struct{}), memory
	d.mu.Unlock()
	go func() { _ = server.Serve(listener) }()
}

// listen replaces a socket that an earlier server left, as a killed process does. A server does not remove the
// socket when it ends: by then the path may be its successor's.
func listen(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove old socket: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	l.SetUnlinkOnClose(false)
	return l, nil
}

// Kill ends the driver as SIGKILL does: calls in flight get no answer. Its volumes survive. It may be repeated.
func (d *Driver) Kill() {
	d.mu.Lock()
	server, stopped := d.server, d.stopped
	d.server = nil
	d.mu.Unlock()
	if server == nil {
		return
	}
	close(stopped)
	server.Stop()
}

// Restart kills the driver and serves it again at the same socket.
func (d *Driver) Restart() {
	d.t.Helper()
	d.Kill()
	d.serve()
}

// Dial connects to the driver as its callers do. The connection is closed when the test ends.
func (d *Driver) Dial(opts ...csi.Option) *csi.Driver {
	d.t.Helper()
	if d.Socket == "" {
		opts = append(opts, csi.WithDialer(d.dialMemory))
	}
	dialed, err := csi.Dial(d.t.Context(), d.Socket, opts...)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = dialed.Close() })
	return dialed
}

func (d *Driver) dialMemory(ctx context.Context) (net.Conn, error) {
	d.mu.Lock()
	memory := d.memory
	d.mu.Unlock()
	return memory.DialContext(ctx)
}

// Rename changes the name that the driver returns from now on.
func (d *Driver) Rename(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.name = name
}

// Name returns the driver's current name.
func (d *Driver) Name() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.name
}

// Probe says that the driver is ready.
func (d *Driver) Probe(context.Context, *csipb.ProbeRequest) (*csipb.ProbeResponse, error) {
	return &csipb.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

// GetPluginInfo returns the current name.
func (d *Driver) GetPluginInfo(context.Context, *csipb.GetPluginInfoRequest) (*csipb.GetPluginInfoResponse, error) {
	return &csipb.GetPluginInfoResponse{Name: d.Name(), VendorVersion: d.config.Version}, nil
}

// GetPluginCapabilities returns the configured capabilities.
func (d *Driver) GetPluginCapabilities(
	context.Context, *csipb.GetPluginCapabilitiesRequest,
) (*csipb.GetPluginCapabilitiesResponse, error) {
	return d.config.Plugin.Answer(), nil
}

// ControllerGetCapabilities returns the configured capabilities.
func (d *Driver) ControllerGetCapabilities(
	context.Context, *csipb.ControllerGetCapabilitiesRequest,
) (*csipb.ControllerGetCapabilitiesResponse, error) {
	return d.config.Controller.Answer(), nil
}

// NodeGetCapabilities returns the configured capabilities.
func (d *Driver) NodeGetCapabilities(
	context.Context, *csipb.NodeGetCapabilitiesRequest,
) (*csipb.NodeGetCapabilitiesResponse, error) {
	return d.config.Node.Answer(), nil
}

// ControllerSocket serves the driver's identity and controller at a socket of their own, as a driver does that runs
// in two processes, until the test ends. It says the same capabilities there, and has no node service.
func (d *Driver) ControllerSocket() string {
	return d.serveAlone("controller.sock", func(s *grpc.Server) { csipb.RegisterControllerServer(s, d) })
}

// NodeSocket serves the driver's identity and node service at a socket of their own. Its plugin capabilities include
// CONTROLLER_SERVICE, if the driver has that, although this socket has no controller: most drivers in two processes
// answer that way.
func (d *Driver) NodeSocket() string {
	return d.serveAlone("node.sock", func(s *grpc.Server) { csipb.RegisterNodeServer(s, d) })
}

func (d *Driver) serveAlone(name string, register func(*grpc.Server)) string {
	d.t.Helper()
	path := filepath.Join(shortDir(d.t), name)
	listener, err := listen(path)
	if err != nil {
		d.t.Fatal(err)
	}
	server := d.newServer()
	register(server)
	go func() { _ = server.Serve(listener) }()
	d.t.Cleanup(server.Stop)
	return path
}

// newServer returns a server of the driver's identity.
func (d *Driver) newServer() *grpc.Server {
	server := grpc.NewServer(grpc.UnaryInterceptor(d.intercept), grpc.ForceServerCodecV2(rawCodec{}))
	csipb.RegisterIdentityServer(server, d)
	return server
}

// Register registers the driver with the node agent that watches dir, until the test ends. The test
// fails if the agent refuses it.
func (d *Driver) Register(dir string) {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	r := registrar.Registrar{
		Driver: d.Name(), Endpoint: d.Socket, Path: registrar.Path(dir, d.Name()), Log: slog.New(slog.DiscardHandler),
	}
	go func() { ended <- r.Run(ctx) }()
	d.t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			d.t.Error(err)
		}
	})
}

// Blocks answers a call of the snapshot metadata service: it sends answers, which are the same for both calls, and
// returns how the stream ends. It may be called concurrently.
type Blocks func(ctx context.Context, request proto.Message, send func(*csipb.GetMetadataAllocatedResponse) error) error

// OnBlocks makes f answer the calls of the snapshot metadata service from now on. Calls lists them like others.
func (d *Driver) OnBlocks(f Blocks) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.blocks = f
}

// GetMetadataAllocated answers as OnBlocks says.
func (d *Driver) GetMetadataAllocated(
	r *csipb.GetMetadataAllocatedRequest, to csipb.SnapshotMetadata_GetMetadataAllocatedServer,
) error {
	return d.stream(to.Context(), "GetMetadataAllocated", r, to.Send)
}

// GetMetadataDelta answers as OnBlocks says.
func (d *Driver) GetMetadataDelta(
	r *csipb.GetMetadataDeltaRequest, to csipb.SnapshotMetadata_GetMetadataDeltaServer,
) error {
	return d.stream(to.Context(), "GetMetadataDelta", r, func(a *csipb.GetMetadataAllocatedResponse) error {
		return to.Send(&csipb.GetMetadataDeltaResponse{
			BlockMetadataType: a.GetBlockMetadataType(), VolumeCapacityBytes: a.GetVolumeCapacityBytes(),
			BlockMetadata: a.GetBlockMetadata(),
		})
	})
}

func (d *Driver) stream(
	ctx context.Context, method string, r proto.Message, send func(*csipb.GetMetadataAllocatedResponse) error,
) error {
	_, leave := d.script.enter(method, "", r)
	defer leave()
	d.mu.Lock()
	f := d.blocks
	d.mu.Unlock()
	if f == nil {
		return status.Errorf(codes.Unimplemented, "%s is not supported", method)
	}
	return f(ctx, r, send)
}
