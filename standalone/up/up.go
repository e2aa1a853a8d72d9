package up

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"path/filepath"
	rtdebug "runtime/debug"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/standalone/apiserver"
	"volplane.dev/volplane/standalone/external"
	"volplane.dev/volplane/standalone/garbage"
	"volplane.dev/volplane/standalone/page"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/trace"
	"volplane.dev/volplane/internal/decide/identity"
	"volplane.dev/volplane/internal/flex"
	"volplane.dev/volplane/internal/gather/world"
	"volplane.dev/volplane/internal/process/lifecycle"
	"volplane.dev/volplane/internal/process/noderoot"
	"volplane.dev/volplane/internal/process/observe"
	"volplane.dev/volplane/internal/process/options"
	"volplane.dev/volplane/internal/process/sdnotify"
)

// Options configure the control plane.
type Options struct {
	// DataDir is the directory of all persistent data.
	DataDir string
	// RootDir is the directory of the node agent's sockets, journal and mounts; empty means the one of the last start.
	RootDir string
	// Listen is the API server's address, host:port; port 0 chooses a free port.
	Listen string
	// Names are additional host names and addresses under which nodes reach this host.
	Names []string
	// Node is the name of this host's Node; empty means the one of the last start, otherwise the host's name.
	Node string
	// PluginDir is the directory of FlexVolume drivers; empty means volumeplugins in DataDir.
	PluginDir string
	// FlexConfig is the path of the configuration of FlexVolume drivers; empty means none.
	FlexConfig string
	// EncryptionConfig is the path of Kubernetes' EncryptionConfiguration for Secrets; empty means a key in DataDir.
	EncryptionConfig string
	// ForgetUnreadable deletes the Secrets whose key is lost.
	ForgetUnreadable bool
	// FeatureGates are the API server's feature gates with another value than Kubernetes' default.
	FeatureGates map[string]bool
	// DisableForceDetachOnTimeout says that a volume is not detached by force after its
	// node has not been ready for six minutes.
	DisableForceDetachOnTimeout bool
	// Store is an etcd that others run, which holds the objects; zero means that of the last start, or one in DataDir.
	Store external.Options
	// Join is the path of the invitation with which this host becomes a control plane for the objects of another one;
	// empty means none. After joining, the host no longer needs the file.
	Join string
	// Backups configure the automatic backups.
	Backups Backups
	// Docker says where and which claims are served to docker and podman.
	Docker Door
	// Page is the loopback address of the web page, host:port; empty means no page.
	Page string
	// Storage says where and which claims are served to systemd.
	Storage Door
	// StatsEvery is the pause of the node agent between two reads of the usage and health of volumes.
	StatsEvery time.Duration
	// Out receives the summary that is printed when the control plane is ready.
	Out io.Writer
	Log *slog.Logger
	// Version is the version of the program.
	Version string
}

// Validate returns an error for invalid options.
func (o Options) Validate() error {
	if !filepath.IsAbs(o.DataDir) {
		return fmt.Errorf("data directory %q is not an absolute path: set one with --data-dir", o.DataDir)
	}
	if o.RootDir != "" && !filepath.IsAbs(o.RootDir) {
		return fmt.Errorf("--root-dir %q is not an absolute path", o.RootDir)
	}
	if o.PluginDir != "" && !filepath.IsAbs(o.PluginDir) {
		return fmt.Errorf("--volume-plugin-dir %q is not an absolute path", o.PluginDir)
	}
	if o.EncryptionConfig != "" && o.ForgetUnreadable {
		return fmt.Errorf("--forget-unreadable-secrets works only with volplane's own key, because another key may still " +
			"be found: use it without --encryption-provider-config")
	}
	if !o.Store.IsZero() {
		if err := o.Store.Validate(); err != nil {
			return err
		}
	}
	if err := page.CheckAddress(o.Page); err != nil {
		return fmt.Errorf("--page: %w", err)
	}
	return o.validateNames()
}

// validateNames returns an error for a name that no host can have.
func (o Options) validateNames() error {
	if o.Node != "" && len(validation.IsDNS1123Subdomain(o.Node)) > 0 {
		return fmt.Errorf("--name %.80q is not a name of a node, which has lower-case letters, digits, '-' and '.' only",
			o.Node)
	}
	for _, n := range o.Names {
		if !isHost(n) {
			return fmt.Errorf("--tls-san %.80q is neither an address nor a host name", n)
		}
	}
	return nil
}

func (o Options) nodeRoot() string { return cmp.Or(o.RootDir, noderoot.Default(o.DataDir)) }
func (o Options) pool() string     { return filepath.Join(o.DataDir, "pool") }

// driversDir is the directory of the files about CSI drivers that this host runs.
func (o Options) driversDir() string { return filepath.Join(o.DataDir, "drivers.d") }

// Run runs the control plane until ctx ends or a part of it fails.
func Run(ctx context.Context, o Options) error {
	if err := o.Validate(); err != nil {
		return err
	}
	go app.PaceGarbage(ctx)
	notifier := sdnotify.New()
	extending, started := context.WithCancel(ctx)
	defer started()
	go extend(extending, notifier.Notify)
	steps := begin(ctx, o.Out)
	defer steps.end()
	var err error
	if o.Node, err = o.join(ctx, steps.does); err != nil {
		return lifecycle.UnlessEnded(ctx, err)
	}
	metrics, web, world, plane := observe.New(o.Version), o.page(), &world.World{}, app.NewPlane()
	server, err := apiserver.Start(ctx, o.server(metrics, web, world, plane, steps))
	if err != nil {
		return lifecycle.UnlessEnded(ctx, err)
	}
	defer server.Stop()
	// The data directory is this process's now.
	o.RootDir = cmp.Or(o.RootDir, noderoot.Of(o.DataDir))
	o.RootDir = filepath.Clean(o.RootDir)
	if err := noderoot.Claim(ctx, o.DataDir, o.RootDir); err != nil {
		return err
	}
	// The host's name may change; the owner of these mounts does not.
	o.Node = cmp.Or(o.Node, noderoot.NameOf(o.RootDir), options.HostName())
	if err := noderoot.CheckName(o.RootDir, o.Node); err != nil {
		return err
	}
	if err := o.admit(ctx, server); err != nil {
		return lifecycle.UnlessEnded(ctx, err)
	}
	admin, err := kubernetes.NewForConfig(server.AdminConfig())
	if err != nil {
		return fmt.Errorf("client of the administrator: %w", err)
	}
	if err := ensureBundled(ctx, admin); err != nil {
		return err
	}
	steps.does("starting the controllers")
	alive := &liveness{server: server, controllers: make(chan struct{}), mounted: make(chan struct{})}
	ready := func() {
		took := steps.end()
		// The start has allocated far more memory than the idle process needs.
		rtdebug.FreeOSMemory()
		close(alive.controllers)
		screen(o, server, took)
	}
	// The service manager is notified at the beginning of the stop.
	defer context.AfterFunc(ctx, func() { notifier.Notify(sdnotify.Stopping) })()
	o.measure(metrics, server)
	doors, err := o.doors(ctx, server.AdminConfig(), plane)
	if err != nil {
		return err
	}
	world.Ask(admin)
	shown, err := web.show(server, world, metrics)
	if err != nil {
		return err
	}
	return lifecycle.Run(ctx, o.Log, slices.Concat(
		o.parts(server, admin, plane, world, metrics, alive.restored, ready), doors, shown,
		[]lifecycle.Part{alive.part(notifier, started, o.Log)},
	))
}

// extendEvery is the interval of the requests for more time to start; each request is for extension.
const (
	extendEvery = 20 * time.Second
	extension   = 3 * extendEvery
)

// extend asks the supervisor for more time until the start has ended. A start without progress fails on its own.
func extend(ctx context.Context, notify func(state string)) {
	ticker := time.NewTicker(extendEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			notify(fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", extension.Microseconds()))
		}
	}
}

func (o Options) server(
	metrics *observe.Registry, web optionalPage, world *world.World, plane *app.Plane, steps *starting,
) apiserver.Options {
	paths := world.Paths()
	maps.Copy(paths, web.paths())
	return apiserver.Options{
		Metrics: metrics.Gatherer(), Step: steps.does, Transform: plane.Transform,
		DataDir: o.DataDir, Listen: o.Listen, Names: o.Names,
		RBAC: slices.Concat(app.RBAC(), garbage.RBAC(), page.RBAC()), Collects: true, Paths: paths,
		Services: plane.Services(), Version: o.Version, Log: o.Log, FeatureGates: o.FeatureGates,
		External:         o.Store,
		EncryptionConfig: o.EncryptionConfig, ForgetUnreadable: o.ForgetUnreadable, NoBackups: o.Backups.Every <= 0,
	}
}

// parts returns the parts of the control plane, in start order.
func (o Options) parts(
	server *apiserver.Server, admin kubernetes.Interface, plane *app.Plane, world *world.World, metrics *observe.Registry,
	restored func(ctx context.Context, works func(context.Context) error), ready func(),
) []lifecycle.Part {
	drivers, controllers := csi.NewSet(), csi.NewSet()
	reached := []*csi.Set{drivers, controllers}
	traced := trace.New()
	common := app.ControlPlaneOptions{
		ConfigFor: func(role string) (*rest.Config, error) { return server.ClientConfig(app.User(role)), nil },
		Flex:      true, DisableForceDetachOnTimeout: o.DisableForceDetachOnTimeout, Metrics: metrics, World: world,
		Log: o.Log,
	}
	var runNode func(context.Context, options.NodeOptions) error
	var working []lifecycle.Part
	if server.Shared() {
		// The node agent reads the objects of its node itself, because the controllers start again when their leases are
		// lost.
		runNode, working = app.Node, o.shared(server, common, plane, reached, ready)
	} else {
		runNode, working = plane.Node, o.alone(server, common, plane, reached, ready)
	}
	return slices.Concat([]lifecycle.Part{
		{Name: "API server with etcd", Run: server.Wait},
		{Name: "membership of this control plane", Run: server.Members().Stay},
	}, working, []lifecycle.Part{
		{Name: "class of snapshots", Run: func(ctx context.Context) error {
			ensureSnapshotClasses(ctx, admin)
			<-ctx.Done()
			return nil
		}},
		{Name: "trace", Run: func(ctx context.Context) error {
			return traced.Serve(ctx, trace.Socket(o.nodeRoot()), o.Log)
		}},
		// The driver starts before the agent and stops after it, so that the agent never loses the driver.
		{Name: "bundled driver", Run: func(ctx context.Context) error {
			return app.LocalDriver(ctx, options.DriverOptions{
				NodeID: o.Node, RootDir: o.nodeRoot(), PoolDir: o.pool(), Keep: o.keep(), Log: o.Log,
			})
		}},
		{Name: "drivers of this host", Run: func(ctx context.Context) error {
			host, port, err := net.SplitHostPort(server.Addr())
			if err != nil {
				return fmt.Errorf("address of the API server: %w", err)
			}
			return app.Drivers(ctx, options.DriversOptions{
				FilesDir: o.driversDir(), RootDir: o.nodeRoot(), Node: o.Node, Client: admin, Objects: true,
				API: options.Endpoint{Host: host, Port: port, CA: server.CA()}, Controllers: controllers,
				Dial: append(traced.Options(), csi.WithMeter(metrics.Call)), Log: o.Log,
			})
		}},
		{Name: "backups", Run: o.backUp},
		{Name: "flex bridge", Run: func(ctx context.Context) error { return o.flex(ctx, admin) }},
		{Name: "node agent", Run: func(ctx context.Context) error {
			config := server.ClientConfig(identity.UserPrefix+o.Node, identity.NodesGroup, identity.PlanesGroup)
			return runNode(ctx, options.NodeOptions{
				Name: o.Node, RootDir: o.nodeRoot(), Keep: []string{o.DataDir, flex.Root(o.DataDir)},
				Config: config, Drivers: drivers, Dial: traced.Options(), Bridged: true,
				ControlPlane: o.addresses(server), Sole: !server.Shared(),
				StatsEvery: o.StatsEvery, Restored: restored, Metrics: metrics, Log: o.Log,
			})
		}},
	})
}
