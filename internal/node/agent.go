package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/csi"
	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/durable"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/node/health"
	"volplane.dev/volplane/internal/node/identity"
	"volplane.dev/volplane/internal/node/journal"
	"volplane.dev/volplane/internal/node/leftovers"
	"volplane.dev/volplane/internal/node/pods"
	"volplane.dev/volplane/internal/node/uses"
	"volplane.dev/volplane/internal/node/volumes"
	"volplane.dev/volplane/internal/volume"
)

// Options says what an agent works with.
type Options struct {
	// Name is the Node's name.
	Name string
	// RootDir is an absolute path; one agent at a time uses it.
	RootDir string
	// Keep are further directories of this host that hold what volumes live by:
	// no volume is mounted at them, in them or over them.
	Keep []string
	// Client has the identity of the node.
	Client kubernetes.Interface
	// Caches are made with kube.NewNodeCaches and not started yet.
	Caches *kube.Caches
	// Drivers receives the drivers that register.
	Drivers *csi.Set
	// Events records reasons.
	Events *kube.Recorder
	// Log receives what is worth telling.
	Log *slog.Logger
	// Labels are put on the Node in addition to the usual ones.
	Labels map[string]string
	// ControlPlane says that the controllers of this process call the drivers
	// that register here.
	ControlPlane bool
	// TrustDrivers lets a driver's answer stand without a look at the mount
	// table. It is for drivers that do not mount.
	TrustDrivers bool
	// RetryMin and RetryMax bound the pause before a failed volume is tried
	// again; the defaults are 500 ms and 2 minutes.
	RetryMin, RetryMax time.Duration
	// RepublishEvery is the pause between two calls for the same target of a
	// driver that wants to be called again; the default is a minute.
	RepublishEvery time.Duration
	// LookEvery is the pause between looks at what no watch tells: attaches
	// that fail, and drivers' limits; the default is 10 seconds.
	LookEvery time.Duration
	// StatsEvery is the pause between questions how full volumes are and how
	// they are; the default is a minute.
	StatsEvery time.Duration
	// SettleAfter is how long drivers have to register at the start before
	// those that have not are taken for gone; the default is a minute.
	SettleAfter time.Duration
}

// Rights is what node agents may do beyond what the Node authorizer grants
// each of them for its own objects.
func Rights() []kube.Access {
	out := kube.Read("", "persistentvolumes", "persistentvolumeclaims")
	out = append(out, kube.Access{
		Namespace: volume.NamespaceSystem, Resource: "configmaps", Names: []string{volume.ConfigRestored},
		Verbs: []string{"get"},
	})
	return append(out, kube.Read("storage.k8s.io", "csidrivers")...)
}

// Agent is the agent of one node. It joins the rooms, and tells them what changes.
type Agent struct {
	Options
	journal *journal.Journal
	node    *identity.Node
	volumes *volumes.Volumes
	health  *health.Monitor
	pods    *pods.Pods
}

var errOptions = errors.New("node agent cannot start")

// New returns an agent that has not done anything yet.
func New(o Options) (*Agent, error) {
	switch {
	case o.Name == "":
		return nil, fmt.Errorf("%w: the node has no name", errOptions)
	case !filepath.IsAbs(o.RootDir) || filepath.Clean(o.RootDir) != o.RootDir:
		return nil, fmt.Errorf("%w: root directory %q is not an absolute path", errOptions, o.RootDir)
	}
	for _, dir := range o.Keep {
		// The mount table knows no links.
		if real, err := filepath.EvalSymlinks(dir); err == nil && real != dir {
			o.Keep = append(slices.Clone(o.Keep), real)
		}
	}
	for d, otherwise := range map[*time.Duration]time.Duration{
		&o.RetryMin: 500 * time.Millisecond, &o.RetryMax: 2 * time.Minute, &o.LookEvery: 10 * time.Second,
		&o.RepublishEvery: time.Minute, &o.StatsEvery: time.Minute, &o.SettleAfter: time.Minute,
	} {
		if *d == 0 {
			*d = otherwise
		}
	}
	return &Agent{Options: o}, nil
}

// Run works until ctx ends. It fails when another agent has the directory, or
// the journal cannot be read.
func (a *Agent) Run(ctx context.Context) error {
	// The mount table names places, never a way to them.
	if err := mount.CheckPath("root directory", a.RootDir); err != nil {
		return fmt.Errorf("%w: %w", errOptions, err)
	}
	// Mounts and sockets below are for whoever may enter here.
	if err := os.MkdirAll(a.RootDir, 0o700); err != nil {
		return fmt.Errorf("make root directory: %w", err)
	}
	lock, err := durable.TryLock(filepath.Join(a.RootDir, "lock"))
	if err != nil {
		return fmt.Errorf("another node agent uses the root directory: %w", err)
	}
	defer lock.Close()
	boot, err := durable.Boot()
	if err != nil {
		return err
	}
	var aside []string
	a.journal, aside, err = journal.Open(filepath.Join(a.RootDir, "journal"), boot)
	if err != nil {
		return err
	}
	finder := &uses.Finder{Root: a.RootDir, Keep: a.Keep, Claims: a.Caches.Claims(), Volumes: a.Caches.Volumes()}
	search := leftovers.Options{
		Root: a.RootDir, Journal: a.journal, Finder: finder, Pods: a.Caches.Pods(), Volumes: a.Caches.Volumes(),
		Events: a.Events, Log: a.Log,
	}
	a.join(search)
	a.watch()
	if err := a.Caches.Start(ctx); err != nil {
		return ended(ctx, err)
	}
	defer a.Drivers.Subscribe(a.volumes.AddAll)()
	node, err := a.node.Start(ctx)
	if err != nil {
		return ended(ctx, err)
	}
	a.begin(node, search, aside)
	var parts sync.WaitGroup
	tellPods := func(ctx context.Context) { a.pods.Run(ctx, a.volumes, a.health) }
	for _, run := range []func(context.Context){a.node.Run, a.volumes.Run, tellPods, a.resync, a.health.Run} {
		parts.Go(func() { run(ctx) })
	}
	parts.Wait()
	return nil
}

// join makes the rooms, from the ground up: each is given those that it works with.
func (a *Agent) join(search leftovers.Options) {
	liveness := &mount.Liveness{}
	a.node = identity.New(identity.Options{
		Name: a.Name, Labels: a.Labels, ControlPlane: a.ControlPlane, Client: a.Client, Nodes: a.Caches.Nodes(),
		CSIDrivers: a.Caches.CSIDrivers(), Drivers: a.Drivers, Sockets: filepath.Join(a.RootDir, "plugins_registry"),
		Given: func(ctx context.Context, driver, volumeID string) ([]string, error) {
			return a.volumes.Given(ctx, driver, volumeID)
		},
		Events: a.Events, Log: a.Log, RetryMin: a.RetryMin, RetryMax: a.RetryMax, LookEvery: a.LookEvery,
		SettleAfter: a.SettleAfter,
	})
	a.pods = pods.New(pods.Options{
		Node: a.Name, Root: a.RootDir, Client: a.Client, Cache: a.Caches.Pods(), Journal: a.journal, Finder: search.Finder,
		Events: a.Events, Log: a.Log, RetryMax: a.RetryMax,
	})
	a.volumes = volumes.New(volumes.Options{
		Root: a.RootDir, TrustDrivers: a.TrustDrivers, Client: a.Client, Pods: a.Caches.Pods(), Claims: a.Caches.Claims(),
		Volumes: a.Caches.Volumes(), Drivers: a.Drivers, Journal: a.journal, Node: a.node, Finder: search.Finder,
		Liveness:  liveness,
		Consumers: a.pods, Events: a.Events, Log: a.Log,
		RetryMin: a.RetryMin, RetryMax: a.RetryMax, RepublishEvery: a.RepublishEvery, LookEvery: a.LookEvery,
	})
	unknown := leftovers.Unknown{Options: search, Node: a.node.Object}
	a.health = health.New(health.Options{
		Node: a.Name, Root: a.RootDir, TrustDrivers: a.TrustDrivers, Journal: a.journal, Drivers: a.Drivers,
		Pods:   a.Caches.Pods(),
		Claims: a.Caches.Claims(), Volumes: a.Caches.Volumes(), Liveness: liveness, Events: a.Events, Log: a.Log,
		Every: a.StatsEvery, Changed: a.pods.Add, Looked: unknown.Look,
	})
}

// ended returns no error when it only says that the agent was asked to end.
func ended(ctx context.Context, err error) error {
	select {
	case <-ctx.Done():
		return nil
	default:
		return err
	}
}

// begin finds what an earlier run left behind, and has everything looked at.
func (a *Agent) begin(node *corev1.Node, search leftovers.Options, aside []string) {
	for _, path := range aside {
		a.Log.Error("journal record cannot be read and was moved aside", "file", path)
		a.Events.Warn(node, decide.Torn(path))
	}
	if leftovers.Rebuild(search, node, a.journal.Lossy()) {
		if err := a.journal.Found(); err != nil {
			// The next start looks for lost records once more.
			a.Log.Warn("journal", "err", err)
		}
	}
	a.node.Marks.Start(node.Status.VolumesInUse, a.volumes.Recorded())
	a.volumes.AddAll("")
	for _, p := range a.Caches.Pods().List() {
		a.pods.Add(cluster.Key(p))
	}
}

// resyncEvery is the pause between looks at all volumes that no event asked
// for: the mount table has no watch that tells who unmounted what. What
// somebody took out of volumesInUse comes back then.
const resyncEvery = time.Minute

func (a *Agent) resync(ctx context.Context) {
	tick := time.NewTicker(resyncEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			a.node.Resync()
			a.volumes.AddAll("")
		}
	}
}
