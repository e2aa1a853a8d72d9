package identity

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/csi"
	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/decide/nodelife"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/node/registration"
	"volplane.dev/volplane/internal/process/lifecycle"
	"volplane.dev/volplane/internal/process/queue"
	"volplane.dev/volplane/internal/volume"
)

// Options are the settings and the collaborators of a Node.
type Options struct {
	// Name is the Node's name.
	Name string
	// Labels are set on the Node in addition to the usual ones.
	Labels map[string]string
	// ControlPlane is the value of volume.AnnControlPlane, "" if the agent is not in the process of a control plane.
	ControlPlane string
	// Sole means that no other process serves the objects of the API, so they can be restored only by a start of this
	// process.
	Sole       bool
	Client     kubernetes.Interface
	Nodes      *kube.Cache[*corev1.Node]
	CSIDrivers cluster.Objects[*storagev1.CSIDriver]
	// Drivers receives the drivers that register.
	Drivers *csi.Set
	// Dial are more options of the connections to them.
	Dial []csi.Option
	// Sockets is the directory of registration sockets.
	Sockets string
	// SecretValues returns the values of the Secrets that a driver received for a volume.
	SecretValues func(ctx context.Context, driver, volumeID string) ([]string, error)
	// Turned is called in each round of a loop, with the name of the loop.
	Turned func(loop string)
	Events *kube.Recorder
	Log    *slog.Logger
	// RetryMin and RetryMax bound the back-off.
	RetryMin, RetryMax time.Duration
	// PollEvery is the pause between two checks whether drivers' limits must be read again.
	PollEvery time.Duration
	// RegistrationGrace is the time that drivers have to register after a start.
	RegistrationGrace time.Duration
}

// Node maintains a node's objects in the API.
type Node struct {
	Options
	// Marks are the Node's volumesInUse.
	Marks   *Marks
	object  *object
	watcher *registration.Watcher
	limits  limits
	// hold fails while nothing may be unmounted.
	hold func(ctx context.Context) error
	// recreate receives a signal when the Node was deleted, or became not ready.
	recreate chan struct{}
	// initial is the Node that Start returned, for the time until the cache has it.
	initial *corev1.Node
}

// New returns a node whose objects are not written yet.
func New(o Options) *Node {
	n := &Node{
		Options: o, recreate: make(chan struct{}, 1), Marks: newMarks(o.Client, o.Name, o.Nodes.Wrote),
		object: &object{
			client: o.Client, name: o.Name, labels: o.Labels, controlPlane: o.ControlPlane, log: o.Log, well: map[string]bool{},
		},
	}
	n.hold = func(ctx context.Context) error { return kube.CheckHeld(ctx, o.Client) }
	if o.Sole {
		n.hold = kube.CheckHeldBeside(o.Client)
	}
	n.limits = limits{
		object: n.object, drivers: o.Drivers, spec: n.Spec,
		asked: map[string]time.Time{}, asking: map[string]bool{}, full: map[string]bool{},
	}
	n.watcher = &registration.Watcher{
		Dir: o.Sockets, Registrar: n.object, Drivers: o.Drivers, Memory: csi.NewMemory(o.SecretValues),
		Hold: n.Hold, Dial: o.Dial, Log: o.Log, Turned: func() { o.Turned("registration of drivers") },
		Refused: n.refused, RetryMin: o.RetryMin, RetryMax: o.RetryMax,
	}
	return n
}

// Run maintains the node's objects, and registers drivers, until ctx ends.
func (n *Node) Run(ctx context.Context) {
	heartbeat := func(ctx context.Context) {
		n.object.heartbeat(ctx, n.RetryMin, func() { n.Turned("heartbeat") })
	}
	limits := func(ctx context.Context) { n.limits.run(ctx, n.PollEvery) }
	var parts sync.WaitGroup
	for _, run := range []func(context.Context){n.Marks.run, n.register, n.recreateNode, heartbeat, limits, n.dropStale} {
		parts.Go(func() { run(ctx) })
	}
	parts.Wait()
}

// Object returns the Node from the cache.
func (n *Node) Object() (*corev1.Node, bool) { return n.Nodes.Get(n.Name) }

// Attached says whether the Node's volumesAttached has a volume.
func (n *Node) Attached(name corev1.UniqueVolumeName) bool {
	node, ok := n.Object()
	return ok && slices.ContainsFunc(node.Status.VolumesAttached,
		func(v corev1.AttachedVolume) bool { return v.Name == name })
}

// IDOf returns the id that a driver has given the node; "" if it is not known.
func (n *Node) IDOf(driver string) string {
	node, ok := n.Object()
	if !ok {
		return ""
	}
	ids, err := nodeIDs(node)
	if err != nil {
		return "" // registration reports it
	}
	return ids[driver]
}

// Spec returns the spec of a driver's CSIDriver object; it is empty if there is none.
func (n *Node) Spec(driver string) storagev1.CSIDriverSpec {
	if d, ok := n.CSIDrivers.Get(driver); ok {
		return d.Spec
	}
	return storagev1.CSIDriverSpec{}
}

// Hold fails while nothing may be unmounted, because the API was restored from a backup and no
// administrator has accepted that yet.
func (n *Node) Hold(ctx context.Context) error { return n.hold(ctx) }

// AttachLimitReached reports that an attach failed because of a driver's limit, which is then read again.
func (n *Node) AttachLimitReached(driver string) { n.limits.setFull(driver) }

// Resync repairs the Node's volumesInUse if it was changed.
func (n *Node) Resync() {
	if node, ok := n.Object(); ok {
		n.Marks.resync(node.Status.VolumesInUse)
	}
}

// Changed has the Node written again if it was deleted, or became not ready.
func (n *Node) Changed(before, after *corev1.Node) {
	if after == nil || before != nil && nodelife.Ready(before) && !nodelife.Ready(after) {
		lifecycle.Wake(n.recreate)
	}
}

// Start writes the Node, with retries until it succeeds, and returns it.
func (n *Node) Start(ctx context.Context) (node *corev1.Node, err error) {
	n.initial, err = n.ensure(ctx)
	return n.initial, err
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
		n.Log.Warn("node cannot be written, will be retried", "attempt", attempt+1, "err", err)
		lifecycle.Sleep(ctx, queue.Backoff{Min: n.RetryMin, Max: n.RetryMax}.Pause(attempt))
	}
}

// recreateNode writes the Node again, with its drivers and volumes, whenever it was deleted or became not ready.
func (n *Node) recreateNode(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.recreate:
		}
		if _, err := n.ensure(ctx); err != nil {
			return
		}
		n.Marks.rewrite()
		n.watcher.RegisterAll()
	}
}

// refused records at the Node why a driver is not registered; nil removes that record. The node acts next if it tries
// again after the driver's error; otherwise a user has to act.
func (n *Node) refused(ctx context.Context, socket, driver string, err error) {
	if noted := n.object.noteRefused(ctx, driver, err); noted != nil && ctx.Err() == nil {
		n.Log.Warn("a refused driver cannot be reported to the node", "driver", driver, "err", noted)
	}
	if err == nil {
		return
	}
	next := volume.User()
	if a := csi.AnswerOf(err); a.Code != "" {
		next = a.Next(volume.NodeAgent(n.Name))
	}
	node, ok := n.Object()
	if !ok {
		node = n.initial
	}
	n.Events.Warn(node, decide.Refused(socket, driver, fmt.Sprintf("%.900s", err), next))
}

func (n *Node) register(ctx context.Context) {
	for attempt := 0; ; attempt++ {
		err := n.watcher.Run(ctx)
		if ctx.Err() != nil {
			return
		}
		n.Log.Error("drivers cannot register, will be retried", "attempt", attempt+1, "err", err)
		lifecycle.Sleep(ctx, queue.Backoff{Min: n.RetryMin, Max: n.RetryMax}.Pause(attempt))
	}
}

// dropStale removes the drivers from the Node's objects whose sockets disappeared while no agent ran,
// after the others have had time to register.
func (n *Node) dropStale(ctx context.Context) {
	lifecycle.Sleep(ctx, n.RegistrationGrace)
	for attempt := 0; ctx.Err() == nil; attempt++ {
		err := n.dropStaleOnce(ctx)
		if err == nil {
			return
		}
		if ctx.Err() == nil {
			n.Log.Warn("drivers that are gone stay with the node, will be retried", "attempt", attempt+1, "err", err)
		}
		lifecycle.Sleep(ctx, n.RetryMax)
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
			// It has registered in the meantime.
			n.watcher.RegisterAll()
		}
	}
	return nil
}
