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
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	"volplane.dev/volplane/internal/process/lifecycle"
	"volplane.dev/volplane/internal/process/noderoot"
	"volplane.dev/volplane/internal/volume"
)

// Options are the settings and the collaborators of an agent.
type Options struct {
	// Name is the Node's name.
	Name string
	// RootDir is an absolute path; one agent at a time uses it.
	RootDir string
	// Protected are other directories of this host on which volumes depend: no volume is mounted
	// at, in or over them.
	Protected []string
	// Client is authenticated as the node.
	Client kubernetes.Interface
	// Caches come from kube.NewNodeCaches and are not started yet.
	Caches *kube.Caches
	// ByName makes the caches read only those claims and volumes that concern this node.
	ByName bool
	// Drivers receives the drivers that register.
	Drivers *csi.Set
	// Dial are more options of the connections to them.
	Dial []csi.Option
	// Events records reasons.
	Events *kube.Recorder
	Log    *slog.Logger
	// Labels are set on the Node in addition to the usual ones.
	Labels map[string]string
	// ControlPlane and Sole are those of identity.Options.
	ControlPlane string
	Sole         bool
	// TrustDrivers accepts a driver's answer without a check of the mount table. It is for drivers
	// that do not mount.
	TrustDrivers bool
	// RetryMin and RetryMax bound the back-off of a failed volume; the defaults are 500 ms and 2
	// minutes.
	RetryMin, RetryMax time.Duration
	// RepublishEvery is the pause between two calls for the same target of a driver with
	// requiresRepublish; the default is a minute.
	RepublishEvery time.Duration
	// PollEvery is the pause between two polls of states that the node cannot watch: failed attaches and drivers' limits;
	// the default is 10 seconds.
	PollEvery time.Duration
	// StatsEvery is the pause between two reads of the volumes' usage and health; the default is a
	// minute.
	StatsEvery time.Duration
	// LateMount is how long a mount may take to appear after a driver has reported success; the default is 5 seconds.
	LateMount time.Duration
	// FileLabel returns the label of files for a container's SELinux options; the default is the host's.
	FileLabel func(*corev1.SELinuxOptions) (string, error)
	// RegistrationGrace is the time after a start at which drivers that have not registered are
	// removed from the Node's objects; the default is a minute.
	RegistrationGrace time.Duration
	// RestoreTime is how long a start waits for the volumes of the Pods that existed before; the default is a minute.
	RestoreTime time.Duration
	// Restored, if set, is called when the Node is written and these Pods have their volumes, or RestoreTime is over. It
	// returns when ctx ends. works fails if a part of the agent hangs.
	Restored func(ctx context.Context, works func(context.Context) error)
}

// Rights are the rights of node agents beyond what the Node authorizer grants each of them for its own
// objects.
func Rights() []kube.Access {
	out := kube.Read("", "persistentvolumes", "persistentvolumeclaims")
	out = append(out, kube.Access{
		Namespace: volume.NamespaceSystem, Resource: "configmaps", Names: []string{volume.ConfigRestored},
		Verbs: []string{"get"},
	}, kube.Access{
		Namespace: metav1.NamespacePublic, Resource: "configmaps", Names: []string{volume.ConfigPlanes},
		Verbs: []string{"get", "list", "watch"},
	})
	return append(out, kube.Read("storage.k8s.io", "csidrivers")...)
}

// Agent is the agent of one node. It connects the parts, and passes changes of the API on to them.
type Agent struct {
	Options
	journal *journal.Journal
	node    *identity.Node
	volumes *volumes.Volumes
	health  *health.Monitor
	pods    *pods.Pods
	seen    seen
	pulse   pulse
}

var errOptions = errors.New("node agent cannot start")

// New returns an agent that is not started.
func New(o Options) (*Agent, error) {
	switch {
	case o.Name == "":
		return nil, fmt.Errorf("%w: the node has no name", errOptions)
	case !filepath.IsAbs(o.RootDir) || filepath.Clean(o.RootDir) != o.RootDir:
		return nil, fmt.Errorf("%w: root directory %q is not an absolute path", errOptions, o.RootDir)
	}
	for _, dir := range o.Protected {
		// The mount table has paths without symbolic links.
		if real, err := filepath.EvalSymlinks(dir); err == nil && real != dir {
			o.Protected = append(slices.Clone(o.Protected), real)
		}
	}
	for d, fallback := range map[*time.Duration]time.Duration{
		&o.RetryMin: 500 * time.Millisecond, &o.RetryMax: 2 * time.Minute, &o.PollEvery: 10 * time.Second,
		&o.RepublishEvery: time.Minute, &o.StatsEvery: time.Minute, &o.RegistrationGrace: time.Minute,
		&o.RestoreTime: time.Minute,
	} {
		if *d == 0 {
			*d = fallback
		}
	}
	return &Agent{Options: o}, nil
}

// Run works until ctx ends. It fails if another agent uses the directory, or the journal cannot be read.
func (a *Agent) Run(ctx context.Context) error {
	// The mount table has paths without symbolic links.
	if err := mount.CheckPath("root directory", a.RootDir); err != nil {
		return fmt.Errorf("%w: %w", errOptions, err)
	}
	// Access to this directory is access to the mounts and sockets in it.
	if err := os.MkdirAll(a.RootDir, 0o700); err != nil {
		return fmt.Errorf("create root directory: %w", err)
	}
	waits, cancel := context.WithTimeout(ctx, durable.EndWait)
	defer cancel()
	lock, err := durable.Lock(waits, filepath.Join(a.RootDir, "lock"))
	if err != nil {
		return fmt.Errorf("another node agent uses the root directory: %w", err)
	}
	defer lock.Close()
	if err := noderoot.KeepName(a.RootDir, a.Name); err != nil {
		return err
	}
	boot, err := durable.Boot()
	if err != nil {
		return err
	}
	var quarantined []string
	a.journal, quarantined, err = journal.Open(filepath.Join(a.RootDir, "journal"), boot)
	if err != nil {
		return err
	}
	if a.ByName && !leftovers.Unexplained(a.RootDir, a.journal) {
		a.Caches.ByName(a.recordedVolumes())
	}
	finder := &uses.Finder{Root: a.RootDir, Protected: a.Protected, Claims: a.Caches.Claims(), Volumes: a.Caches.Volumes()}
	search := leftovers.Options{
		Root: a.RootDir, Journal: a.journal, Finder: finder, Pods: a.Caches.Pods(), Volumes: a.Caches.Volumes(),
		Events: a.Events, Log: a.Log,
	}
	a.assemble(search)
	a.watch()
	if err := a.Caches.Start(ctx); err != nil {
		return lifecycle.UnlessEnded(ctx, err)
	}
	defer a.Drivers.Subscribe(a.volumes.AddAll)()
	node, err := a.node.Start(ctx)
	if err != nil {
		return lifecycle.UnlessEnded(ctx, err)
	}
	a.resume(node, search, quarantined)
	var running sync.WaitGroup
	for _, run := range []func(context.Context){
		a.node.Run, a.volumes.Run, a.pods.Run, a.resync, a.watchMounts, a.health.Run, a.restore,
	} {
		running.Go(func() { run(ctx) })
	}
	running.Wait()
	return nil
}

// assemble creates the agent's parts; each receives those that it depends on.
func (a *Agent) assemble(search leftovers.Options) {
	liveness := &mount.Liveness{}
	a.node = identity.New(identity.Options{
		Name: a.Name, Labels: a.Labels, ControlPlane: a.ControlPlane, Sole: a.Sole, Client: a.Client, Nodes: a.Caches.Nodes(),
		CSIDrivers: a.Caches.CSIDrivers(), Drivers: a.Drivers, Dial: a.Dial,
		Sockets: filepath.Join(a.RootDir, "plugins_registry"),
		SecretValues: func(ctx context.Context, driver, volumeID string) ([]string, error) {
			return a.volumes.SecretValues(ctx, driver, volumeID)
		},
		Turned: a.pulse.turned, Events: a.Events, Log: a.Log,
		RetryMin: a.RetryMin, RetryMax: a.RetryMax, PollEvery: a.PollEvery, RegistrationGrace: a.RegistrationGrace,
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
		RetryMin: a.RetryMin, RetryMax: a.RetryMax, RepublishEvery: a.RepublishEvery, PollEvery: a.PollEvery,
		LateMount: a.LateMount, FileLabel: a.FileLabel,
	})
	unknown := leftovers.UnknownMounts{Options: search, Node: a.node.Object, Count: a.seen.unknown}
	a.health = health.New(health.Options{
		Node: a.Name, Root: a.RootDir, TrustDrivers: a.TrustDrivers, Journal: a.journal, Drivers: a.Drivers,
		Pods:   a.Caches.Pods(),
		Claims: a.Caches.Claims(), Volumes: a.Caches.Volumes(), Liveness: liveness, Events: a.Events, Log: a.Log,
		Every: a.StatsEvery, HealthChanged: a.pods.Add, MountsRead: unknown.Check,
		StorageHealth: func(ctx context.Context, driver string, all []storagev1.StorageHealthCondition) {
			a.seen.storageOf(driver, all)
			a.node.SetStorageHealth(ctx, driver, all)
		},
	})
	a.pods.Join(a.volumes, a.health)
	a.seen.begin(a.health)
}

// resume rebuilds the state that an earlier run left behind, and enqueues all volumes and Pods.
func (a *Agent) resume(node *corev1.Node, search leftovers.Options, quarantined []string) {
	a.seen.unreadable(len(quarantined))
	for _, path := range quarantined {
		a.Log.Error("journal record cannot be read", "file", path)
		a.Events.Warn(node, decide.RecordUnreadable(path))
	}
	if leftovers.Rebuild(search, node, a.journal.Lossy()) {
		if err := a.journal.MarkComplete(); err != nil {
			a.Log.Warn("the next start searches for lost journal records again", "err", err)
		}
	}
	a.node.Marks.Start(node.Status.VolumesInUse, a.volumes.Recorded())
	a.volumes.AddAll("")
	for _, p := range a.Caches.Pods().List() {
		a.pods.Add(cluster.Key(p))
	}
}

// recordedVolumes returns the names of the PersistentVolumes in the journal.
func (a *Agent) recordedVolumes() []string {
	var out []string
	for _, r := range a.journal.List() {
		if !r.Ephemeral && r.Volume != "" {
			out = append(out, r.Volume)
		}
	}
	return out
}

// watchMounts enqueues the volumes that are unmounted, or over which something is mounted, by others.
func (a *Agent) watchMounts(ctx context.Context) {
	if a.TrustDrivers {
		return
	}
	if err := mount.Watch(ctx, mountsEvery, a.volumes.CheckMounts); err != nil {
		a.Log.Warn("changes of mounts are noticed late, the mount table cannot be watched", "err", err)
	}
}

// mountsEvery is the minimum pause between two reads of the mount table after changes: while many
// volumes are mounted it changes all the time.
const mountsEvery = time.Second

// resyncEvery is the resync period of all volumes: no watch reports that the server of a filesystem
// has ended. The Node's volumesInUse is repaired at the same time.
const resyncEvery = time.Minute

func (a *Agent) resync(ctx context.Context) {
	tick := time.NewTicker(resyncEvery)
	defer tick.Stop()
	for {
		a.pulse.turned("resync")
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			a.Caches.Release(a.recordedVolumes())
			a.node.Resync()
			a.volumes.AddAll("")
		}
	}
}

// Writes lists the fields that an agent writes: of its own Node, CSINode and Lease, of its Pods, and of
// their claims. The Node authorizer and NodeRestriction grant the rights.
func Writes() []kube.Access {
	return []kube.Access{
		kube.Write("", "nodes", "create", "patch").Only("metadata.labels", kube.Annotation(volume.AnnControllerManagedAttach),
			kube.Annotation(volume.AnnControlPlane), kube.Annotation(volume.AnnLegacyNodeID),
			kube.Annotation(volume.AnnRefused)),
		kube.Write("", "nodes/status", "patch").
			Only("status.capacity", "status.allocatable", "status.nodeInfo", "status.volumesInUse",
				"status.addresses").
			Shared("says that it is there; nodelife says so of a silent one", kube.Condition(corev1.NodeReady)),
		kube.Write("storage.k8s.io", "csinodes", "create", "update", "delete").Only("spec.drivers"),
		kube.Write("storage.k8s.io", "csinodes/status", "update").Only("status.storageHealth"),
		kube.Write("coordination.k8s.io", "leases", "create", "update").Only("spec", "metadata.ownerReferences"),
		kube.Write("", "pods/status", "patch").Only(kube.Condition(volume.ConditionVolumesMounted),
			kube.Condition(volume.ConditionVolumesHealthy), kube.Annotation(volume.AnnNextMounted),
			kube.Annotation(volume.AnnCauseMounted), kube.Annotation(volume.AnnPaths),
			kube.Annotation(volume.AnnCalledAt), kube.Annotation(volume.AnnNextHealthy),
			kube.Annotation(volume.AnnCauseHealthy), "status.phase", "status.reason", "status.message",
			"status.volumeHealth"),
		kube.Write("", "pods", "delete").Shared("for good, when nothing is mounted for them any more; "+
			"at first those that end when their path is unmounted", "deletion"),
		kube.Write("", "persistentvolumeclaims/status", "patch").Shared("when the node has had its turn, over the version "+
			"that it has read", "status.capacity", "status.allocatedResourceStatuses",
			kube.Condition(corev1.PersistentVolumeClaimResizing),
			kube.Condition(corev1.PersistentVolumeClaimFileSystemResizePending),
			kube.Condition(corev1.PersistentVolumeClaimControllerResizeError),
			kube.Condition(corev1.PersistentVolumeClaimNodeResizeError)),
	}
}
