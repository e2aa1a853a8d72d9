package csi

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// Reasons why a driver is refused.
var (
	ErrName  = errors.New("driver's name is not usable")
	ErrOther = errors.New("another driver answers at this socket")
)

// maxAnswer bounds one answer of a driver.
const maxAnswer = 4 << 20

// Driver is one CSI driver behind one socket. It is safe for concurrent use.
type Driver struct {
	// Name and Version are what the driver calls itself.
	Name, Version string
	// Endpoint is the path of its socket.
	Endpoint string
	// Plugin, Controller and Node are what it can do; read once.
	Plugin     PluginCapabilities
	Controller ControllerCapabilities
	Node       NodeCapabilities

	conn *grpc.ClientConn
}

// PluginCapabilities is what a driver can do as a whole.
type PluginCapabilities struct {
	ControllerService, AccessibilityConstraints, OnlineExpansion, OfflineExpansion bool
}

// ControllerCapabilities is what a driver's controller service can do.
type ControllerCapabilities struct {
	CreateDelete, PublishUnpublish, ListVolumes, ListVolumesPublishedNodes, GetCapacity, Snapshot, ListSnapshots,
	Clone, PublishReadonly, Expand, GetVolume, Modify, SingleNodeMultiWriter bool
}

// NodeCapabilities is what a driver's node service can do.
type NodeCapabilities struct{ StageUnstage, Expand, Stats, MountGroup, SingleNodeMultiWriter bool }

// NodeInfo is what a driver says of the node it runs on.
type NodeInfo struct {
	// ID is the driver's name of the node.
	ID string
	// MaxVolumes is how many volumes the node takes; 0 is no limit.
	MaxVolumes int64
	// Topology is the segment of the node; empty when there is none.
	Topology map[string]string
}

// Dial connects to the driver at a socket and asks what it is and can do. It
// fails when ctx ends first; it may be repeated.
func Dial(ctx context.Context, socket string) (*Driver, error) {
	d := &Driver{Endpoint: socket}
	guard := &guard{calls: newCalls()}
	conn, err := grpc.NewClient("unix:"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithNoProxy(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 2, MaxDelay: 2 * time.Second}, MinConnectTimeout: 5 * time.Second}),
		grpc.WithChainUnaryInterceptor(deadline, hideSecrets, guard.identity, guard.serialise, checkAnswer))
	if err != nil {
		return nil, fmt.Errorf("connect to driver at %s: %w", socket, err)
	}
	d.conn = conn
	guard.driver = d
	if err := d.ask(ctx); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("driver at %s: %w", socket, err)
	}
	return d, nil
}

// Close ends the connection; calls under way fail with Canceled.
func (d *Driver) Close() error { return d.conn.Close() }

// ControllerClient calls the driver's controller service.
func (d *Driver) ControllerClient() csipb.ControllerClient { return csipb.NewControllerClient(d.conn) }

// NodeClient calls the driver's node service.
func (d *Driver) NodeClient() csipb.NodeClient { return csipb.NewNodeClient(d.conn) }

// IdentityClient calls the driver's identity service.
func (d *Driver) IdentityClient() csipb.IdentityClient { return csipb.NewIdentityClient(d.conn) }

// NodeInfo asks the driver about the node it runs on.
func (d *Driver) NodeInfo(ctx context.Context) (NodeInfo, error) {
	r, err := d.NodeClient().NodeGetInfo(ctx, &csipb.NodeGetInfoRequest{})
	if err != nil {
		return NodeInfo{}, fmt.Errorf("ask driver %s about its node: %w", d.Name, err)
	}
	return NodeInfo{ID: r.GetNodeId(), MaxVolumes: max(r.GetMaxVolumesPerNode(), 0), Topology: r.GetAccessibleTopology().GetSegments()}, nil
}

// name is what CSI allows: a domain name of at most 63 characters (S1-004).
func validName(name string) bool {
	ok, _ := regexp.MatchString(`^[a-zA-Z0-9]([a-zA-Z0-9.-]{0,61}[a-zA-Z0-9])?$`, name)
	return ok
}

func (d *Driver) ask(ctx context.Context) error {
	identity := d.IdentityClient()
	if _, err := identity.Probe(ctx, &csipb.ProbeRequest{}, grpc.WaitForReady(true)); err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	info, err := identity.GetPluginInfo(ctx, &csipb.GetPluginInfoRequest{})
	if err != nil {
		return fmt.Errorf("ask its name: %w", err)
	}
	if !validName(info.GetName()) {
		return fmt.Errorf("%w: %.80q is not a domain name of at most 63 characters", ErrName, info.GetName())
	}
	d.Name, d.Version = info.GetName(), info.GetVendorVersion()
	plugin, err := identity.GetPluginCapabilities(ctx, &csipb.GetPluginCapabilitiesRequest{})
	if err != nil {
		return fmt.Errorf("ask its capabilities: %w", err)
	}
	d.Plugin = pluginCapabilities(plugin)
	if d.Plugin.ControllerService {
		c, err := d.ControllerClient().ControllerGetCapabilities(ctx, &csipb.ControllerGetCapabilitiesRequest{})
		if err != nil {
			return fmt.Errorf("ask its controller's capabilities: %w", err)
		}
		d.Controller = controllerCapabilities(c)
	}
	n, err := d.NodeClient().NodeGetCapabilities(ctx, &csipb.NodeGetCapabilitiesRequest{})
	if status.Code(err) == codes.Unimplemented {
		// A driver that runs beside the controller only has no node service.
		return nil
	}
	if err != nil {
		return fmt.Errorf("ask its node service's capabilities: %w", err)
	}
	d.Node = nodeCapabilities(n)
	return nil
}

func pluginCapabilities(r *csipb.GetPluginCapabilitiesResponse) PluginCapabilities {
	var out PluginCapabilities
	for _, c := range r.GetCapabilities() {
		switch c.GetService().GetType() {
		case csipb.PluginCapability_Service_CONTROLLER_SERVICE:
			out.ControllerService = true
		case csipb.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS:
			out.AccessibilityConstraints = true
		}
		switch c.GetVolumeExpansion().GetType() {
		case csipb.PluginCapability_VolumeExpansion_ONLINE:
			out.OnlineExpansion = true
		case csipb.PluginCapability_VolumeExpansion_OFFLINE:
			out.OfflineExpansion = true
		}
	}
	return out
}

func controllerCapabilities(r *csipb.ControllerGetCapabilitiesResponse) ControllerCapabilities {
	var out ControllerCapabilities
	fields := map[csipb.ControllerServiceCapability_RPC_Type]*bool{
		csipb.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME:         &out.CreateDelete,
		csipb.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME:     &out.PublishUnpublish,
		csipb.ControllerServiceCapability_RPC_LIST_VOLUMES:                 &out.ListVolumes,
		csipb.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES: &out.ListVolumesPublishedNodes,
		csipb.ControllerServiceCapability_RPC_GET_CAPACITY:                 &out.GetCapacity,
		csipb.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT:       &out.Snapshot,
		csipb.ControllerServiceCapability_RPC_LIST_SNAPSHOTS:               &out.ListSnapshots,
		csipb.ControllerServiceCapability_RPC_CLONE_VOLUME:                 &out.Clone,
		csipb.ControllerServiceCapability_RPC_PUBLISH_READONLY:             &out.PublishReadonly,
		csipb.ControllerServiceCapability_RPC_EXPAND_VOLUME:                &out.Expand,
		csipb.ControllerServiceCapability_RPC_GET_VOLUME:                   &out.GetVolume,
		csipb.ControllerServiceCapability_RPC_MODIFY_VOLUME:                &out.Modify,
		csipb.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER:     &out.SingleNodeMultiWriter,
	}
	for _, c := range r.GetCapabilities() {
		if f := fields[c.GetRpc().GetType()]; f != nil {
			*f = true
		}
	}
	return out
}

func nodeCapabilities(r *csipb.NodeGetCapabilitiesResponse) NodeCapabilities {
	var out NodeCapabilities
	fields := map[csipb.NodeServiceCapability_RPC_Type]*bool{
		csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME:     &out.StageUnstage,
		csipb.NodeServiceCapability_RPC_EXPAND_VOLUME:            &out.Expand,
		csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS:         &out.Stats,
		csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP:       &out.MountGroup,
		csipb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER: &out.SingleNodeMultiWriter,
	}
	for _, c := range r.GetCapabilities() {
		if f := fields[c.GetRpc().GetType()]; f != nil {
			*f = true
		}
	}
	return out
}
