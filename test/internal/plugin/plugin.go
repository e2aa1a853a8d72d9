package plugin

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path"
	"path/filepath"
	"strings"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"volplane.dev/volplane/internal/csi/registrar"
	"volplane.dev/volplane/internal/mount"
)

// Options describes a driver and its place.
type Options struct {
	// Name is the driver's, NodeID what it calls the host.
	Name, NodeID string
	// Root is the directory of the node agent, Dir the driver's own.
	Root, Dir string
	// MountGroup says that the driver applies the fsGroup itself.
	MountGroup bool
	// Before and After, if they are set, are called with each call that changes
	// something, by method; they may be called concurrently. An error of Before
	// is the answer.
	Before func(ctx context.Context, method string, request proto.Message) error
	After  func(method string, request proto.Message)
}

// Driver is one that serves.
type Driver struct {
	csipb.UnimplementedIdentityServer
	csipb.UnimplementedControllerServer
	csipb.UnimplementedNodeServer
	Options
	// Socket is where it serves CSI.
	Socket string

	server *grpc.Server
	// withdraw ends the registrar, withdrawn receives its error.
	withdraw  context.CancelFunc
	withdrawn chan error
}

// Serve starts a driver.
func Serve(o Options) (*Driver, error) {
	d := &Driver{Options: o, Socket: filepath.Join(o.Root, "plugins", o.Name, "csi.sock"), withdrawn: make(chan error, 1)}
	d.server = grpc.NewServer(grpc.UnaryInterceptor(d.intercept))
	csipb.RegisterIdentityServer(d.server, d)
	csipb.RegisterControllerServer(d.server, d)
	csipb.RegisterNodeServer(d.server, d)
	if err := errors.Join(os.MkdirAll(o.Dir, 0o700), os.MkdirAll(filepath.Dir(d.Socket), 0o700)); err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", d.Socket)
	if err != nil {
		return nil, err
	}
	go func() { _ = d.server.Serve(l) }()
	var ctx context.Context
	ctx, d.withdraw = context.WithCancel(context.Background())
	r := registrar.Registrar{
		Driver: o.Name, Endpoint: d.Socket, Path: registrar.Path(filepath.Join(o.Root, "plugins_registry"), o.Name),
		Log: slog.New(slog.DiscardHandler),
	}
	go func() { d.withdrawn <- r.Run(ctx) }()
	return d, nil
}

// Close ends it and removes its loop devices; mounts stay. It may be repeated.
func (d *Driver) Close() error {
	d.withdraw()
	err := <-d.withdrawn
	d.withdrawn <- nil
	d.server.Stop()
	images, globbed := filepath.Glob(filepath.Join(d.Dir, "*.img"))
	err = errors.Join(err, globbed)
	for _, image := range images {
		err = errors.Join(err, detach(image))
	}
	return err
}

// intercept reports the calls that change something.
func (d *Driver) intercept(
	ctx context.Context, r any, info *grpc.UnaryServerInfo, work grpc.UnaryHandler,
) (any, error) {
	method := path.Base(info.FullMethod)
	request, ok := r.(proto.Message)
	if !ok || !strings.HasSuffix(method, "Volume") {
		return work(ctx, r)
	}
	if d.Before != nil {
		if err := d.Before(ctx, method, request); err != nil {
			return nil, err
		}
	}
	answer, err := work(ctx, r)
	if _, known := status.FromError(err); err != nil && !known {
		err = status.Error(codes.Internal, err.Error())
	}
	if d.After != nil && err == nil {
		d.After(method, request)
	}
	return answer, err
}

// NodeStageVolume makes the device of a block volume.
func (d *Driver) NodeStageVolume(
	_ context.Context, r *csipb.NodeStageVolumeRequest,
) (*csipb.NodeStageVolumeResponse, error) {
	if r.GetVolumeCapability().GetBlock() == nil {
		return &csipb.NodeStageVolumeResponse{}, nil
	}
	return &csipb.NodeStageVolumeResponse{}, os.WriteFile(d.image(r.GetVolumeId()), make([]byte, 1<<20), 0o600)
}

func (d *Driver) image(id string) string { return filepath.Join(d.Dir, id+".img") }

// NodePublishVolume mounts a file system in memory, or shows the device.
func (d *Driver) NodePublishVolume(
	_ context.Context, r *csipb.NodePublishVolumeRequest,
) (*csipb.NodePublishVolumeResponse, error) {
	out, target := &csipb.NodePublishVolumeResponse{}, r.GetTargetPath()
	// What exists was published before. The mount table is not read: the time of a fast
	// driver must not depend on the number of mounts.
	if _, err := os.Lstat(target); err == nil {
		if _, there, err := mount.At(target); there || err != nil {
			return out, err
		}
	}
	if r.GetVolumeCapability().GetBlock() != nil {
		return out, d.show(r)
	}
	if err := os.MkdirAll(target, 0o750); err != nil {
		return nil, err
	}
	var flags uintptr
	if r.GetReadonly() {
		flags = unix.MS_RDONLY
	}
	return out, unix.Mount("none", target, "tmpfs", flags, "size=64k,mode=0755")
}

func (d *Driver) show(r *csipb.NodePublishVolumeRequest) error {
	image := d.image(r.GetVolumeId())
	device, err := mount.LoopFind(image)
	if err != nil || device == "" {
		if device, err = new(mount.Loops).Attach(image, false); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(r.GetTargetPath(), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_ = f.Close()
	return unix.Mount(device, r.GetTargetPath(), "", unix.MS_BIND, "")
}

// NodeUnpublishVolume unmounts it.
func (d *Driver) NodeUnpublishVolume(
	_ context.Context, r *csipb.NodeUnpublishVolumeRequest,
) (*csipb.NodeUnpublishVolumeResponse, error) {
	out, target := &csipb.NodeUnpublishVolumeResponse{}, r.GetTargetPath()
	// EINVAL says that nothing is mounted there.
	if err := unix.Unmount(target, 0); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return nil, err
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return out, nil
}

// NodeUnstageVolume takes the device away.
func (d *Driver) NodeUnstageVolume(
	_ context.Context, r *csipb.NodeUnstageVolumeRequest,
) (*csipb.NodeUnstageVolumeResponse, error) {
	return &csipb.NodeUnstageVolumeResponse{}, detach(d.image(r.GetVolumeId()))
}

func detach(image string) error {
	if _, err := os.Stat(image); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return errors.Join(mount.LoopDetach(image), os.Remove(image))
}
