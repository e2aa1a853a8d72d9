package up

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	rtdebug "runtime/debug"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/standalone/apiserver"
	"volplane.dev/volplane/standalone/garbage"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/flex"
	"volplane.dev/volplane/internal/parts"
)

// Options says where and how the control plane runs.
type Options struct {
	// DataDir holds everything that lasts.
	DataDir string
	// Listen is the API server's address, host:port; port 0 takes a free one.
	Listen string
	// Names are further names and addresses of this host for nodes that join.
	Names []string
	// Node is the name of this host's Node.
	Node string
	// PluginDir is where FlexVolume drivers are; empty is volumeplugins in
	// DataDir. FlexConfig is the file that says who may use them; empty is none.
	PluginDir, FlexConfig string
	// EncryptionConfig is a file in Kubernetes' form that says how Secrets are
	// encrypted; empty is by a key in DataDir. ForgetUnreadable deletes those
	// whose key is gone.
	EncryptionConfig string
	ForgetUnreadable bool
	// DisableForceDetachOnTimeout keeps volumes from being detached by force
	// only because their node has not been ready for six minutes.
	DisableForceDetachOnTimeout bool
	Backups                     Backups
	// Out receives the one screen that says what runs; Log the rest.
	Out io.Writer
	Log *slog.Logger
	// Version is shown on the screen.
	Version string
}

// Validate names what is wrong with the options.
func (o Options) Validate() error {
	if !filepath.IsAbs(o.DataDir) {
		return fmt.Errorf("data directory %q is not an absolute path: give one with --data-dir", o.DataDir)
	}
	if o.Node == "" {
		return fmt.Errorf("the node has no name: give one with --name")
	}
	if o.PluginDir != "" && !filepath.IsAbs(o.PluginDir) {
		return fmt.Errorf("--volume-plugin-dir %q is not an absolute path", o.PluginDir)
	}
	if o.EncryptionConfig != "" && o.ForgetUnreadable {
		return fmt.Errorf("--forget-unreadable-secrets is for volplane's own key only: where the key is elsewhere, it may " +
			"come back; give it without --encryption-provider-config")
	}
	for _, n := range o.Names {
		if !isHost(n) {
			return fmt.Errorf("--tls-san %.80q is neither an address nor a host name", n)
		}
	}
	return nil
}

func (o Options) nodeRoot() string { return filepath.Join(o.DataDir, "node") }
func (o Options) pool() string     { return filepath.Join(o.DataDir, "pool") }

// Run runs the control plane until ctx ends or a part of it fails.
func Run(ctx context.Context, o Options) error {
	begin := time.Now()
	if err := o.Validate(); err != nil {
		return err
	}
	notify := supervisor()
	starting, started := context.WithCancel(ctx)
	defer started()
	go extend(starting, notify)
	server, err := apiserver.Start(ctx, o.server())
	if err != nil && ctx.Err() != nil {
		return nil //nolint:nilerr // it was asked to end before it was up
	}
	if err != nil {
		return err
	}
	defer server.Stop()
	admin, err := kubernetes.NewForConfig(server.AdminConfig())
	if err != nil {
		return fmt.Errorf("client of the administrator: %w", err)
	}
	if err := ensureBundled(ctx, admin); err != nil {
		return err
	}
	ready := func() {
		started()
		// The start has read far more than idling needs.
		rtdebug.FreeOSMemory()
		notify(daemon.SdNotifyReady)
		screen(o, server, time.Since(begin))
	}
	// The supervisor hears of the stop when it begins, not when it is over.
	defer context.AfterFunc(ctx, func() { notify(daemon.SdNotifyStopping) })()
	return parts.Run(ctx, o.Log, o.parts(server, admin, ready))
}

// extendEvery is the pause between two requests for more time to start; each
// asks for extension.
const (
	extendEvery = 20 * time.Second
	extension   = 3 * extendEvery
)

// extend asks the supervisor to wait for as long as the start goes on: it ends
// by itself when nothing moves any more.
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

func (o Options) server() apiserver.Options {
	return apiserver.Options{
		DataDir: o.DataDir, Listen: o.Listen, Names: o.Names, RBAC: append(app.RBAC(), garbage.RBAC()...), Collects: true,
		Version: o.Version, Log: o.Log,
		EncryptionConfig: o.EncryptionConfig, ForgetUnreadable: o.ForgetUnreadable,
	}
}

// supervisor returns the way to tell systemd, or whoever started us, how far
// we are. The API server's library would say that all is ready as soon as it
// listens: the socket's name is hidden from it.
func supervisor() (notify func(state string)) {
	const key = "NOTIFY_SOCKET"
	socket := os.Getenv(key)
	_ = os.Unsetenv(key)
	var mu sync.Mutex
	return func(state string) {
		if socket == "" {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		_ = os.Setenv(key, socket)
		_, _ = daemon.SdNotify(true, state) // and hides the name again
	}
}

// parts are what runs on top of the API server, in start order.
func (o Options) parts(server *apiserver.Server, admin kubernetes.Interface, ready func()) []parts.Part {
	drivers, works := csi.NewSet(), make(chan struct{})
	return []parts.Part{
		{Name: "api server", Run: server.Wait},
		{Name: "controllers", Run: func(ctx context.Context) error {
			return app.ControlPlane(ctx, app.ControlPlaneOptions{
				ConfigFor: func(role string) (*rest.Config, error) { return server.ClientConfig(app.User(role)), nil },
				Drivers:   drivers, Flex: true, DisableForceDetachOnTimeout: o.DisableForceDetachOnTimeout, Log: o.Log,
			}, func() {
				ready()
				close(works)
			})
		}},
		{Name: "garbage collector", Run: func(ctx context.Context) error {
			// It reads everything at its start, which nobody waits for.
			select {
			case <-ctx.Done():
				return nil
			case <-works:
				return garbage.Run(ctx, server.ClientConfig(garbage.User))
			}
		}},
		// The driver before the agent: on the way down the agent goes first and
		// does not see the driver go away.
		{Name: "bundled driver", Run: func(ctx context.Context) error {
			return app.LocalDriver(ctx, app.DriverOptions{
				NodeID: o.Node, RootDir: o.nodeRoot(), PoolDir: o.pool(), Keep: o.keep(), Log: o.Log,
			})
		}},
		{Name: "backups", Run: o.backUp},
		{Name: "flex bridge", Run: func(ctx context.Context) error { return o.flex(ctx, admin) }},
		{Name: "node agent", Run: func(ctx context.Context) error {
			config := server.ClientConfig("system:node:"+o.Node, "system:nodes")
			return app.Node(ctx, app.NodeOptions{
				Name: o.Node, RootDir: o.nodeRoot(), Keep: []string{o.DataDir, flex.Root(o.DataDir)},
				Config: config, Drivers: drivers, ControlPlane: true, Flex: true, Log: o.Log,
			})
		}},
	}
}

// screen says what runs, where it is, and how to go on.
func screen(o Options, server *apiserver.Server, took time.Duration) {
	root := ""
	if os.Geteuid() != 0 {
		root = "\n  not root:   the API works, but nothing can be mounted; start it as root for that\n"
	}
	fmt.Fprintf(o.Out, `volplane %s is up (%.1f s)

  API server  https://%s
  kubeconfig  %s
  data        %s
  node        %s, mounts below %s
  class       local (default), driver local.volplane.dev
  runs        API server, etcd, binder, provisioner, attacher, attach/detach, resizer,
              placement, protection, garbage collector, node agent, local driver,
              FlexVolume drivers of %s
%s
Go on with
  export KUBECONFIG=%s
  volplane apply -f claim.yaml        # or kubectl
  volplane mount CLAIM DIR            # a claim's data at a path of this host
  volplane why pvc/CLAIM              # who waits for whom
  volplane invite NODE > NODE.kubeconfig; volplane node --join NODE.kubeconfig
`, o.Version, took.Seconds(), server.Addr(), server.AdminKubeconfig(), o.DataDir, o.Node, o.nodeRoot(), o.pluginDir(),
		root, server.AdminKubeconfig())
}
