package up

import (
	"cmp"
	"context"
	"net"
	"slices"
	"strings"

	utilnet "k8s.io/apimachinery/pkg/util/net"

	"volplane.dev/volplane/standalone/apiserver"
	"volplane.dev/volplane/standalone/garbage"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/process/identity"
	"volplane.dev/volplane/internal/process/lifecycle"
	"volplane.dev/volplane/internal/volume"
)

// alone returns the controllers of the only control plane over its store: that is the etcd in its process.
func (o Options) alone(
	server *apiserver.Server, common app.ControlPlaneOptions, plane *app.Plane, reached []*csi.Set, ready func(),
) []lifecycle.Part {
	called, works := csi.NewSet(), make(chan struct{})
	common.Drivers, common.Scope, common.Plane = called, volume.Scope{Node: o.Node, Rest: true}, plane
	return []lifecycle.Part{
		{Name: "leases of drivers", Run: func(ctx context.Context) error {
			return app.LeadDrivers(ctx, server.ClientConfig(app.User(app.LeasesRole)), o.Node, reached, called, o.Log)
		}},
		{Name: "controllers", Run: func(ctx context.Context) error {
			return app.ControlPlane(ctx, common, func() {
				ready()
				close(works)
			})
		}},
		{Name: "changed blocks", Run: func(ctx context.Context) error {
			return plane.ChangedBlocks(ctx, o.changedBlocks(server, common), called)
		}},
		// It reads all objects at its start, which must not delay the other parts.
		{Name: "garbage collector", Run: lifecycle.After(works, func(ctx context.Context) error {
			return garbage.Run(ctx, server.ClientConfig(garbage.User))
		})},
	}
}

// shared returns the controllers of a control plane over a store that others may use, too.
func (o Options) shared(
	server *apiserver.Server, common app.ControlPlaneOptions, plane *app.Plane, reached []*csi.Set, ready func(),
) []lifecycle.Part {
	return []lifecycle.Part{{Name: "controllers", Run: func(ctx context.Context) error {
		id, err := server.DirectoryID()
		if err != nil {
			return err
		}
		return app.Shared(ctx, app.SharedOptions{
			ControlPlaneOptions: common, Node: o.Node, Identity: "volplane-up_" + o.Node + "_" + id, Reached: reached,
			Beside: func(ctx context.Context, drivers *csi.Set) error {
				return plane.ChangedBlocks(ctx, o.changedBlocks(server, common), drivers)
			},
			Admitted: server.Members().Admitted,
			Once:     func(ctx context.Context) error { return garbage.Run(ctx, server.ClientConfig(garbage.User)) },
			Remember: func(addresses []string) error {
				return identity.Remember(o.nodeRoot(), server.CA(), addresses)
			},
		}, ready)
	}}}
}

// changedBlocks returns how the changed blocks of drivers are served.
func (o Options) changedBlocks(server *apiserver.Server, common app.ControlPlaneOptions) app.ChangedBlocksOptions {
	return app.ChangedBlocksOptions{
		Config: server.ClientConfig(app.User(app.MetadataRole)), CA: server.CA(),
		Address: append(o.reachedAt(server), server.Addr())[0],
		Metrics: common.Metrics, Log: o.Log,
	}
}

// addresses returns what the Node says of this control plane: its addresses, with commas, if it has any.
func (o Options) addresses(server *apiserver.Server) string {
	return cmp.Or(strings.Join(o.reachedAt(server), ","), "yes")
}

// reachedAt returns at which addresses, host:port, the API server is reached: by other hosts, if it listens for them.
func (o Options) reachedAt(server *apiserver.Server) (out []string) {
	host, port, err := net.SplitHostPort(server.Addr())
	if err != nil {
		return nil
	}
	hosts := []string{host}
	if given, _, err := net.SplitHostPort(o.Listen); err == nil && (given == "" || net.ParseIP(given).IsUnspecified()) {
		hosts = nil
		if ip, err := utilnet.ChooseHostInterface(); err == nil {
			hosts = []string{ip.String()}
		}
	}
	for _, h := range slices.Concat(hosts, o.Names) {
		out = append(out, net.JoinHostPort(h, port))
	}
	return out
}
