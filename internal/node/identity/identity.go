package identity

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/csi"
	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/decide/nodelife"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/node/registration"
	"volplane.dev/volplane/internal/queue"
)

// Options says what a node's identity works with.
type Options struct {
	// Name is the Node's name, Labels are put on it in addition to the usual ones.
	Name   string
	Labels map[string]string
	// ControlPlane says that the controllers of this process call the drivers that
	// register here.
	ControlPlane bool
	Client       kubernetes.Interface
	Nodes        *kube.Cache[*corev1.Node]
	CSIDrivers   cluster.Objects[*storagev1.CSIDriver]
	// Drivers receives the drivers that register, by sockets in the directory Sockets.
	Drivers *csi.Set
	Sockets string
	// Given returns the values of the Secrets that a driver was given of a volume.
	Given  func(ctx context.Context, driver, volumeID string) ([]string, error)
	Events *kube.Recorder
	Log    *slog.Logger
	// RetryMin and RetryMax bound the pause after a failure.
	RetryMin, RetryMax time.Duration
	// LookEvery is the pause between looks at drivers' limits.
	LookEvery time.Duration
	// SettleAfter is how long drivers have to register at the start.
	SettleAfter time.Duration
}

// Node is the node as the cluster knows it.
type Node struct {
	Options
	// Marks are the Node's volumesInUse.
	Marks   *Marks
	object  *object
	watcher *registration.Watcher
	limits  limits
	// lost receives a word when the Node was deleted, or marked as dead.
	lost chan struct{}
	// made is the Node as Start returned it, before the cache has it.
	made *corev1.Node
}

// New returns a node of which nothing is written yet.
func New(o Options) *Node {
	n := &Node{
		Options: o, lost: make(chan struct{}, 1), Marks: newMarks(o.Client, o.Name, o.Nodes.Wrote),
		object: &object{client: o.Client, name: o.Name, labels: o.Labels, controlPlane: o.ControlPlane, log: o.Log},
	}
	n.limits = limits{
		object: n.object, drivers: o.Drivers, spec: n.Spec,
		asked: map[string]time.Time{}, asking: map[string]bool{}, full: map[string]bool{},
	}
	n.watcher = &registration.Watcher{
		Dir: o.Sockets, Registrar: n.object, Drivers: o.Drivers, Memory: csi.NewMemory(o.Given),
		Hold: n.object.held, Log: o.Log,
		Refused: n.refused, RetryMin: o.RetryMin, RetryMax: o.RetryMax,
	}
	return n
}

// Run keeps the node's objects, and registers drivers, until ctx ends.
func (n *Node) Run(ctx context.Context) {
	heartbeat := func(ctx context.Context) { n.object.heartbeat(ctx, n.RetryMin) }
	limits := func(ctx context.Context) { n.limits.keep(ctx, n.LookEvery) }
	var parts sync.WaitGroup
	for _, run := range []func(context.Context){n.Marks.run, n.register, n.keep, heartbeat, limits, n.dropStale} {
		parts.Go(func() { run(ctx) })
	}
	parts.Wait()
}

// Object returns the Node as it is known to be.
func (n *Node) Object() (*corev1.Node, bool) { return n.Nodes.Get(n.Name) }

// Attached says whether the Node says that a volume is attached to it.
func (n *Node) Attached(name corev1.UniqueVolumeName) bool {
	node, ok := n.Object()
	return ok && slices.ContainsFunc(node.Status.VolumesAttached,
		func(v corev1.AttachedVolume) bool { return v.Name == name })
}

// Spec returns what a driver's object says of it; without one it is empty.
func (n *Node) Spec(driver string) storagev1.CSIDriverSpec {
	if d, ok := n.CSIDrivers.Get(driver); ok {
		return d.Spec
	}
	return storagev1.CSIDriverSpec{}
}

// Hold fails while nothing may be taken away: the API was restored from a backup, and
// nobody has said yet that what it does not know of may go.
func (n *Node) Hold(ctx context.Context) error { return n.object.held(ctx) }

// Full notes that an attach failed because the node takes no more volumes of a
// driver, which is asked anew how many they are.
func (n *Node) Full(driver string) { n.limits.isFull(driver) }

// Resync writes once more what somebody has changed of the volumes in use.
func (n *Node) Resync() {
	if node, ok := n.Object(); ok {
		n.Marks.look(node.Status.VolumesInUse)
	}
}

// Changed notices when the Node was deleted under its agent, or taken for dead.
func (n *Node) Changed(before, after *corev1.Node) {
	if after == nil || before != nil && nodelife.Ready(before) && !nodelife.Ready(after) {
		select {
		case n.lost <- struct{}{}:
		default:
		}
	}
}

// Start makes the Node, which it repeats until the API takes it, and returns it as
// it was made or found.
func (n *Node) Start(ctx context.Context) (made *corev1.Node, err error) {
	n.made, err = n.ensure(ctx)
	return n.made, err
}

func (n *Node) ensure(ctx context.Context) (*corev1.Node, error) {
	for attempt := 0; ; attempt++ {
		node, err := n.object.ensure(ctx)
		if err == nil {
			n.Nodes.Wrote(node)
			return node, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		n.Log.Warn("node cannot be written, will be tried again", "attempt", attempt+1, "err", err)
		pause(ctx, queue.Backoff{Min: n.RetryMin, Max: n.RetryMax}.Pause(attempt))
	}
}

// keep makes the Node again when somebody has deleted it or taken this agent for
// dead, with all that was written of drivers and volumes.
func (n *Node) keep(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.lost:
		}
		if _, err := n.ensure(ctx); err != nil {
			return
		}
		n.Marks.rewrite()
		n.watcher.Again()
	}
}

// refused records at the Node why a driver is not registered. What it answers
// may be another thing the next time, what it is may not.
func (n *Node) refused(socket string, err error) {
	next := "user"
	if _, answered := status.FromError(err); answered {
		next = "node " + n.Name
	}
	node, ok := n.Object()
	if !ok {
		node = n.made
	}
	n.Events.Warn(node, decide.Refused(socket, fmt.Sprintf("%.900s", err), next))
}

func (n *Node) register(ctx context.Context) {
	for attempt := 0; ; attempt++ {
		err := n.watcher.Run(ctx)
		if ctx.Err() != nil {
			return
		}
		n.Log.Error("drivers cannot register, will be tried again", "attempt", attempt+1, "err", err)
		pause(ctx, queue.Backoff{Min: n.RetryMin, Max: n.RetryMax}.Pause(attempt))
	}
}

// dropStale takes the drivers from the Node's objects whose sockets went away
// while no agent ran, once the others have had time to register.
func (n *Node) dropStale(ctx context.Context) {
	pause(ctx, n.SettleAfter)
	for attempt := 0; ctx.Err() == nil; attempt++ {
		err := n.dropStaleOnce(ctx)
		if err == nil {
			return
		}
		if ctx.Err() == nil {
			n.Log.Warn("drivers that are gone stay with the node, will be tried again", "attempt", attempt+1, "err", err)
		}
		pause(ctx, n.RetryMax)
	}
}

func (n *Node) dropStaleOnce(ctx context.Context) error {
	names, err := n.object.drivers(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		if n.watcher.Claimed(name) {
			continue
		}
		n.Log.Info("driver went away while no agent ran", "driver", name)
		if err := n.object.Unregister(ctx, name); err != nil {
			return err
		}
		if n.watcher.Claimed(name) {
			// It came just now.
			n.watcher.Again()
		}
	}
	return nil
}
