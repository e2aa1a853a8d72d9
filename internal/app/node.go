package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/controller/snapshotter"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/flex"
	"volplane.dev/volplane/internal/hosting/local"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/node"
	"volplane.dev/volplane/internal/process/lifecycle"
	"volplane.dev/volplane/internal/process/observe"
	"volplane.dev/volplane/internal/process/options"
	"volplane.dev/volplane/internal/sidecar"
	"volplane.dev/volplane/internal/volume"
)

// Node runs a node agent until ctx ends. Mounts stay when the agent ends.
func Node(ctx context.Context, o options.NodeOptions) error { return runNode(ctx, o, nil) }

// Node runs the node agent of this process until ctx ends, when the controllers have begun to read.
func (p *Plane) Node(ctx context.Context, o options.NodeOptions) error {
	return lifecycle.After(p.lent, func(ctx context.Context) error { return runNode(ctx, o, p) })(ctx)
}

// runNode runs a node agent that shares caches with a plane in its process, or reads for itself what concerns its node.
func runNode(ctx context.Context, o options.NodeOptions, with *Plane) error {
	if o.StatsEvery != 0 && o.StatsEvery < time.Second {
		return fmt.Errorf("node %s: volumes cannot be asked for their state every %s: a second is the least", o.Name,
			o.StatsEvery)
	}
	config := rest.CopyConfig(o.Config)
	config.QPS, config.UserAgent = -1, "volplane/node"
	var client kubernetes.Interface
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("client of node %s: %w", o.Name, err)
	}
	if o.Bridged {
		client = kube.Translated(client, flex.Translation())
	}
	caches := kube.NewNodeCaches(client, o.Name)
	with.share(caches)
	with.borrow(caches)
	o.Dial = append(slices.Clone(o.Dial), csi.WithCallLog(csi.NewCallLog(o.Log)))
	if o.Metrics != nil {
		o.Dial = append(o.Dial, csi.WithMeter(o.Metrics.Call))
	}
	agent, err := node.New(node.Options{
		Name: o.Name, RootDir: o.RootDir, Protected: o.Keep, Client: client, Caches: caches, ByName: with == nil,
		Drivers: o.Drivers, Dial: o.Dial, StatsEvery: o.StatsEvery, ControlPlane: o.ControlPlane, Sole: o.Sole,
		Restored: o.Restored,
		Events:   kube.NewNodeRecorder(ctx, client, "node", o.Name), Log: o.Log,
	})
	if err != nil {
		return fmt.Errorf("node %s: %w", o.Name, err)
	}
	measureNode(o.Metrics, agent)
	return agent.Run(ctx)
}

// LocalDriver serves the bundled CSI driver over its socket and registers it with
// the node agent, until ctx ends. Volumes stay mounted when the driver ends.
func LocalDriver(ctx context.Context, o options.DriverOptions) error {
	return local.Serve(ctx, local.Options{
		NodeID:             o.NodeID,
		PoolDir:            o.PoolDir,
		Keep:               o.Keep,
		Endpoint:           filepath.Join(o.RootDir, "plugins", volume.LocalDriver, "csi.sock"),
		RegistrationSocket: filepath.Join(o.RootDir, "plugins_registry", volume.LocalDriver+"-reg.sock"),
		Log:                o.Log,
	})
}

// served runs a program until it ends, and until then a server of its metrics and health at each of the addresses. If
// the server fails, the program is asked to end. Without an address nothing is counted, and the registry is nil.
func served(
	ctx context.Context, at []sidecar.HTTPOptions, version string, ready []observe.Check, log *slog.Logger,
	run func(context.Context, *observe.Registry) error,
) error {
	if len(at) == 0 {
		return run(ctx, nil)
	}
	var addresses []observe.Address
	for _, a := range at {
		addresses = append(addresses, observe.Address(a))
	}
	metrics := observe.New(version).WithProcess()
	server, err := observe.Listen(addresses, metrics, ready, log)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() {
		defer stop()
		ended <- server.Serve(ctx)
	}()
	err = run(ctx, metrics)
	stop()
	return errors.Join(err, <-ended)
}

// serveBeside is served for a program beside a driver. In a container, the kubelet is given the error, too.
func serveBeside(
	ctx context.Context, at []sidecar.HTTPOptions, version string, ready []observe.Check, log *slog.Logger,
	run func(context.Context, *observe.Registry) error,
) error {
	limitMemory()
	go newMemoryReleaser().run(ctx)
	err := served(ctx, at, version, ready, log, run)
	tellTermination(terminationLog, err)
	return err
}

// ServeNode runs what a node agent's process does, which is given the registry that counts it, and serves metrics and
// health beside it, if the options say so.
func ServeNode(ctx context.Context, o options.NodeOptions, run func(context.Context, options.NodeOptions) error) error {
	limitMemory()
	go newMemoryReleaser().run(ctx)
	return served(ctx, o.HTTP, o.Version, nil, o.Log, func(ctx context.Context, metrics *observe.Registry) error {
		o.Metrics = metrics
		return run(ctx, o)
	})
}

const (
	// terminationLog is where a kubelet reads why a container has ended.
	terminationLog = "/dev/termination-log"
	// terminationLimit is how much of it a kubelet reads.
	terminationLimit = 4096
)

// tellTermination writes why the process ends to a file, if that exists: elsewhere than in a container it does not. A
// text that cannot be written is still in the program's log.
func tellTermination(file string, err error) {
	if err == nil {
		return
	}
	f, open := os.OpenFile(file, os.O_WRONLY|os.O_TRUNC, 0)
	if open != nil {
		return
	}
	text := strings.ToValidUTF8(err.Error(), "?")
	_, _ = f.WriteString(text[:min(len(text), terminationLimit-1)] + "\n")
	_ = f.Close()
}

// errWholeCluster refuses what there may be only once, in a process that is on each node.
var errWholeCluster = errors.New("the snapshot-controller is one for the whole cluster, and cannot run on each node " +
	"beside a provisioner with --node-deployment")

// placeOnNode puts the driver in the set of those that the controllers call. On each node, they call it for the volumes
// of the node where it says that it is.
func placeOnNode(ctx context.Context, o options.ControllersOptions, d *csi.Driver, drivers *csi.Set) error {
	node := o.Provisioner.OnNode.Node
	if node == "" {
		drivers.Put(d)
		return nil
	}
	if slices.Contains(o.Roles, snapshotter.BindingDeclaration().Name) {
		return errWholeCluster
	}
	info, err := d.NodeInfo(ctx)
	if err != nil {
		return err
	}
	o.Log.Info("the controllers work for the volumes of one node", "node", node, "topology", info.Topology)
	drivers.Put(d.On(node, info.Topology))
	return nil
}

// errMoved says that what the controllers know of their node is not true any more.
var errMoved = errors.New("the driver reports a different topology of this node than when the controllers were started")

// whileThere calls run, and ends it with an error when the driver, after it has come back, says that the node is
// elsewhere. A topology that it had before could be that of another node now, whose volumes would be deleted here.
func whileThere(ctx context.Context, drivers *csi.Set, run func(context.Context) error) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	back := make(chan string, 1)
	defer drivers.Subscribe(func(name string) {
		select {
		case back <- name:
		default:
		}
	})()
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case name := <-back:
				if hasMoved(ctx, drivers, name) {
					end(errMoved)
				}
			}
		}
	}()
	err := run(ctx)
	if cause := context.Cause(ctx); errors.Is(cause, errMoved) {
		return cause
	}
	return err
}

// hasMoved says whether a driver says that its node is elsewhere. One that does not answer is asked when it is back.
func hasMoved(ctx context.Context, drivers *csi.Set, name string) bool {
	d, ok := drivers.Get(name)
	if !ok || d.Place == nil {
		return false
	}
	info, err := d.NodeInfo(ctx)
	return err == nil && !maps.Equal(info.Topology, d.Place)
}
