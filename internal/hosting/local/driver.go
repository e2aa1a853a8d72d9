package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/registrar"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/process/socket"
	"volplane.dev/volplane/internal/volume"
)

// Options configure one instance of the driver.
type Options struct {
	// NodeID is the driver's id of this node.
	NodeID string
	// PoolDir is the directory of the volumes; several instances on a host may share it.
	PoolDir string
	// Keep is how many bytes of the pool's disk are reserved for other users of the disk: no new
	// volume or snapshot is created when less is free.
	Keep int64
	// Endpoint is the path of the CSI socket.
	Endpoint string
	// RegistrationSocket is the path of the socket at which the driver registers with a node agent; empty if it does not
	// register.
	RegistrationSocket string
	// Log is the log of the driver.
	Log *slog.Logger
}

// Serve answers CSI calls until ctx ends, and then finishes the calls in flight. Volumes stay
// mounted. It may be called again.
func Serve(ctx context.Context, o Options) error {
	p, err := openPool(o.PoolDir, o.NodeID)
	if err != nil {
		return err
	}
	defer p.close()
	if err := p.sweep(); err != nil {
		// A leftover that cannot be deleted must not make all volumes unavailable.
		o.Log.Warn("garbage stays in the pool", "driver", volume.LocalDriver, "pool", o.PoolDir, "err", err)
	}
	stopThawing, err := thawAll(ctx, p)
	if err != nil {
		return err
	}
	defer stopThawing()
	server := grpc.NewServer(grpc.UnaryInterceptor(csi.Complete))
	csipb.RegisterIdentityServer(server, identity{})
	c := &controller{pool: p, keep: o.Keep, log: o.Log}
	csipb.RegisterControllerServer(server, c)
	csipb.RegisterGroupControllerServer(server, &groupController{controller: c})
	csipb.RegisterSnapshotMetadataServer(server, &metadata{pool: p})
	csipb.RegisterNodeServer(server, &node{pool: p, id: o.NodeID, keep: o.Keep})
	at, err := socket.Listen(ctx, o.Endpoint)
	if err != nil {
		return fmt.Errorf("serve driver: %w", err)
	}
	defer server.GracefulStop()
	return registrar.Registrar{
		Driver: volume.LocalDriver, Endpoint: o.Endpoint, Path: o.RegistrationSocket, Patient: true, Log: o.Log,
	}.Serve(ctx, server, at)
}

// version is the driver's version; it changes when the driver's behaviour changes.
const version = "1.0.0"

// identity is the CSI identity service.
type identity struct {
	csipb.UnimplementedIdentityServer
}

// GetPluginInfo names the driver.
func (identity) GetPluginInfo(context.Context, *csipb.GetPluginInfoRequest) (*csipb.GetPluginInfoResponse, error) {
	return &csipb.GetPluginInfoResponse{Name: volume.LocalDriver, VendorVersion: version}, nil
}

// Probe says that the driver works.
func (identity) Probe(context.Context, *csipb.ProbeRequest) (*csipb.ProbeResponse, error) {
	return &csipb.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

// GetPluginCapabilities lists the capabilities of the driver as a whole.
func (identity) GetPluginCapabilities(
	context.Context, *csipb.GetPluginCapabilitiesRequest,
) (*csipb.GetPluginCapabilitiesResponse, error) {
	return csi.PluginCapabilities{
		ControllerService: true, GroupController: true, AccessibilityConstraints: true,
		SnapshotAccessibilityConstraints: true, SnapshotMetadata: true, OnlineExpansion: true,
	}.Answer(), nil
}

// failure returns an error of the pool or the kernel with its gRPC code and, if the error does not
// say it, with the next step.
func failure(err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	for _, known := range []struct {
		is   error
		code codes.Code
		next string
	}{
		{errMissing, codes.NotFound, ""},
		{errID, codes.NotFound, ""},
		{errDamaged, codes.Internal, ""},
		{errBusy, codes.Aborted, ""},
		{mount.ErrHeld, codes.Aborted, ""},
		{mount.ErrUnknownFS, codes.InvalidArgument, ""},
		{errNoPreallocation, codes.InvalidArgument, ""},
		{mount.ErrNotPlain, codes.InvalidArgument, ""},
		{mount.ErrNotPermitted, codes.FailedPrecondition, ""},
		{mount.ErrExpandLater, codes.FailedPrecondition, ""},
		{mount.ErrNotBlank, codes.FailedPrecondition, "; it is never formatted: ask for what it holds, or delete the volume"},
		{mount.ErrNeedsPerson, codes.FailedPrecondition, ""},
		{mount.ErrOccupied, codes.FailedPrecondition, "; unmount that first"},
		{mount.ErrNoLoop, codes.ResourceExhausted, ""},
		{unix.ENOSPC, codes.ResourceExhausted, "; the pool's disk is full: delete volumes or snapshots, or make room on it"},
		{
			unix.EDQUOT, codes.ResourceExhausted,
			"; the quota of the pool's disk is used up: delete volumes or snapshots, or raise it",
		},
		{unix.EFBIG, codes.OutOfRange, "; the filesystem of the pool has no files as large: ask for less"},
		{unix.EBUSY, codes.FailedPrecondition, "; a process still uses it, end that first"},
		{context.Canceled, codes.Canceled, ""},
		{context.DeadlineExceeded, codes.DeadlineExceeded, ""},
	} {
		if errors.Is(err, known.is) {
			return status.Error(known.code, err.Error()+known.next)
		}
	}
	return status.Error(codes.Internal, err.Error())
}
