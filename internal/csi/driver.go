package csi

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"volplane.dev/volplane/internal/volume"
)

// probePause is the first pause between two calls of a driver that is not ready, and maxProbePause the longest.
const (
	probePause    = 100 * time.Millisecond
	maxProbePause = time.Second
)

// HeaderNodeOnly is the header with which a registrar of volplane answers the node agent that asks for its driver, if
// the driver is known to have only the node service at the socket.
const HeaderNodeOnly = "volplane-node-only"

// ErrControllerLost says that the connection to a driver was lost when its controller was called: some drivers have a
// process for each service, report CONTROLLER_SERVICE in both, and exit when the wrong one is called.
var ErrControllerLost = errors.New("the connection was lost when the driver was asked for its controller")

// Driver is one CSI driver behind one socket. It is safe for concurrent use.
type Driver struct {
	// Name is the driver's name, as GetPluginInfo returned it to Dial.
	Name string
	// Version is the driver's version, which has no fixed form.
	Version string
	// Endpoint is the path of the driver's socket.
	Endpoint string
	// HasController says that the controller service is behind this socket. If a driver has several processes, all of them
	// may report CONTROLLER_SERVICE, so the controller service itself is called.
	HasController bool
	// Scope says for which volumes the process that has this Driver calls the controller service.
	Scope volume.Scope
	// Place is the topology segment of the scope's node, as reported by the driver: then volumes are found by it, whatever
	// the cluster's objects say. It is nil if they are found by what the control plane has recorded.
	Place map[string]string
	// Plugin, Controller, Group and Node hold the capabilities, as the driver returned them to Dial.
	Plugin     PluginCapabilities
	Controller ControllerCapabilities
	Group      GroupCapabilities
	Node       NodeCapabilities

	link    *link
	service service
}

// NodeInfo is the answer of NodeGetInfo: the node that a driver runs on.
type NodeInfo struct {
	// ID identifies the node in calls of the driver.
	ID string
	// MaxVolumes is how many volumes can be attached to the node; 0 means no limit.
	MaxVolumes int64
	// Topology is the node's topology segment; empty if the driver has no topology.
	Topology map[string]string
}

// Dial connects to the driver at a socket, waits until the driver is ready, and reads its name and capabilities. It
// fails with ErrName if the name is not allowed, with the driver's error, or when ctx ends. It may be repeated.
func Dial(ctx context.Context, socket string, opts ...Option) (*Driver, error) {
	o := newOptions(socket, opts)
	d := newDriver(socket, o)
	if err := d.ask(ctx, o); err != nil {
		_ = d.link.close()
		return nil, fmt.Errorf("driver at %s: %w", socket, err)
	}
	return d, nil
}

func newDriver(socket string, o *options) *Driver {
	d := &Driver{Endpoint: socket, link: newLink(socket, o.dial)}
	d.service = service{link: d.link, call: o.chain(d, d.link.invoke), memory: o.memory, witness: o.witness}
	return d
}

// Close ends the connection; calls in flight fail with Canceled. It may be repeated.
func (d *Driver) Close() error { return d.link.close() }

// Retire closes the connection once no call is in flight. Later calls may fail as after Close.
func (d *Driver) Retire() { d.link.retire() }

// ControllerClient returns a client of the driver's controller service.
func (d *Driver) ControllerClient() csipb.ControllerClient {
	return csipb.NewControllerClient(d.service)
}

// GroupControllerClient returns a client of the driver's group controller service. It refuses answers that are not
// about the requested group.
func (d *Driver) GroupControllerClient() csipb.GroupControllerClient {
	return csipb.NewGroupControllerClient(d.service)
}

// SnapshotMetadataClient returns a client of the driver's snapshot metadata service. The caller must cancel the
// context of a call, which ends the stream of its answers.
func (d *Driver) SnapshotMetadataClient() csipb.SnapshotMetadataClient {
	return csipb.NewSnapshotMetadataClient(d.service)
}

// NodeClient returns a client of the driver's node service.
func (d *Driver) NodeClient() csipb.NodeClient { return csipb.NewNodeClient(d.service) }

// IdentityClient returns a client of the driver's identity service.
func (d *Driver) IdentityClient() csipb.IdentityClient { return csipb.NewIdentityClient(d.service) }

// Call calls any method of the driver by its full name.
func (d *Driver) Call(ctx context.Context, method string, request, answer proto.Message) error {
	return d.service.Invoke(ctx, method, request, answer)
}

// NodeInfo calls NodeGetInfo. It may be repeated.
func (d *Driver) NodeInfo(ctx context.Context) (NodeInfo, error) {
	r, err := d.NodeClient().NodeGetInfo(ctx, &csipb.NodeGetInfoRequest{})
	if err != nil {
		return NodeInfo{}, fmt.Errorf("ask driver %s about its node: %w", d.Name, err)
	}
	return NodeInfo{
		ID: r.GetNodeId(), MaxVolumes: r.GetMaxVolumesPerNode(), Topology: r.GetAccessibleTopology().GetSegments(),
	}, nil
}

// CheckName returns an error that wraps ErrName unless CSI allows the name: a domain name of at
// most 63 characters (S1-004).
func CheckName(name string) error {
	if ok, _ := regexp.MatchString(`^[a-zA-Z0-9]([a-zA-Z0-9.-]{0,61}[a-zA-Z0-9])?$`, name); !ok {
		return fmt.Errorf("%w: %.80q is not a domain name of at most 63 characters", ErrName, name)
	}
	return nil
}

// CheckIs returns an error that wraps ErrOtherDriver unless the driver has this name.
func CheckIs(d *Driver, name string) error {
	if d.Name != name {
		return fmt.Errorf("%w: the driver at %s calls itself %s, and not %s", ErrOtherDriver, d.Endpoint, d.Name, name)
	}
	return nil
}

// Connected says whether a connection to the driver exists. It makes no call.
func (d *Driver) Connected() bool { return d.link.connected() }

// AwaitLoss waits until the connection to the driver is lost and returns nil then, or the error of ctx if that ends
// first. Without a connection it tries to make one, and returns nil immediately if that fails. It may be repeated.
func (d *Driver) AwaitLoss(ctx context.Context) error {
	d.link.awaitLoss(ctx)
	return ctx.Err()
}

func (d *Driver) ask(ctx context.Context, o *options) error {
	if o.nameOnly {
		return d.awaitName(ctx, o.name)
	}
	identity := d.IdentityClient()
	if err := awaitReady(ctx, identity); err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	if err := d.askName(ctx); err != nil {
		return err
	}
	plugin, err := identity.GetPluginCapabilities(ctx, &csipb.GetPluginCapabilitiesRequest{})
	if err != nil {
		return fmt.Errorf("ask its capabilities: %w", err)
	}
	d.Plugin = pluginCapabilities(plugin)
	if d.Plugin.ControllerService && !o.nodeOnly {
		if err := d.askController(ctx); err != nil {
			return err
		}
	}
	n, err := d.NodeClient().NodeGetCapabilities(ctx, &csipb.NodeGetCapabilitiesRequest{})
	if Code(err) == codes.Unimplemented {
		// The process of a driver that serves its controller only has no node service.
		return nil
	}
	if err != nil {
		return fmt.Errorf("ask its node service's capabilities: %w", err)
	}
	setCalls(d.Node.calls(), n.GetCapabilities())
	return nil
}

// askName asks the driver for its name and version.
func (d *Driver) askName(ctx context.Context) error {
	info, err := d.IdentityClient().GetPluginInfo(ctx, &csipb.GetPluginInfoRequest{})
	if err != nil {
		return fmt.Errorf("ask its name: %w", err)
	}
	if err := CheckName(info.GetName()); err != nil {
		return err
	}
	d.Name, d.Version = info.GetName(), info.GetVendorVersion()
	d.link.name = d.Name
	return nil
}

// awaitName calls for the driver's name until it can be reached, and answers within the time limit, if any.
func (d *Driver) awaitName(ctx context.Context, limit time.Duration) error {
	return untilReady(ctx, func() (again bool, err error) {
		ask, cancel := ctx, func() {}
		if limit > 0 {
			ask, cancel = context.WithTimeout(ctx, limit)
		}
		defer cancel()
		err = d.askName(ask)
		code := Code(err)
		return code == codes.Unavailable || limit > 0 && code == codes.DeadlineExceeded, err
	})
}

// askController reads the capabilities of the controller, and of the group controller beside it. Unimplemented means
// that the controller is behind another socket, or that there is no group controller.
func (d *Driver) askController(ctx context.Context) error {
	c, err := d.ControllerClient().ControllerGetCapabilities(ctx, &csipb.ControllerGetCapabilitiesRequest{})
	switch Code(err) {
	case codes.Unimplemented:
		return nil
	case codes.Unavailable:
		return fmt.Errorf("%w: %w", ErrControllerLost, err)
	}
	if err != nil {
		return fmt.Errorf("ask its controller's capabilities: %w", err)
	}
	d.HasController = true
	setCalls(d.Controller.calls(), c.GetCapabilities())
	if !d.Plugin.GroupController {
		return nil
	}
	g, err := d.GroupControllerClient().GroupControllerGetCapabilities(ctx,
		&csipb.GroupControllerGetCapabilitiesRequest{})
	if Code(err) == codes.Unimplemented {
		return nil
	}
	if err != nil {
		return fmt.Errorf("ask its group controller's capabilities: %w", err)
	}
	setCalls(d.Group.calls(), g.GetCapabilities())
	return nil
}

// awaitReady probes until the driver says that it is ready. An answer without the field counts as ready, and
// FailedPrecondition is CSI's code for a driver that is not.
func awaitReady(ctx context.Context, identity csipb.IdentityClient) error {
	return untilReady(ctx, func() (again bool, err error) {
		r, err := identity.Probe(ctx, &csipb.ProbeRequest{})
		if code := Code(err); err != nil {
			return code == codes.Unavailable || code == codes.FailedPrecondition, err
		}
		return r.GetReady() != nil && !r.GetReady().GetValue(), nil
	})
}

// untilReady calls f until it does not request another call, and returns its error. If ctx ends first, it returns the
// last error.
func untilReady(ctx context.Context, f func() (again bool, err error)) error {
	for pause := probePause; ; pause = min(2*pause, maxProbePause) {
		again, err := f()
		if !again {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			if err == nil {
				err = fmt.Errorf("the driver is not ready: %w", ctx.Err())
			}
			return err
		}
	}
}
