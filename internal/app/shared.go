package app

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/controller/provisioner"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/nodelife"
	"volplane.dev/volplane/internal/decide/planes"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/lease"
	"volplane.dev/volplane/internal/process/lifecycle"
	"volplane.dev/volplane/internal/volume"
)

// SharedOptions configure the controllers of one of several control planes that have one store.
type SharedOptions struct {
	// ControlPlaneOptions are those of all its controllers; Roles, Drivers, Scope, Intents and Plane are set by Shared.
	ControlPlaneOptions

	// Node is the name of the node.
	Node string
	// Identity is the holder's name in the leases of this control plane: after a crash the process that follows on the
	// same host has the same, and no other process has.
	Identity string
	// Reached holds the drivers that the process reaches; see lease.Drivers.
	Reached []*csi.Set
	// Beside runs beside the controllers that call drivers, with the drivers that they call.
	Beside func(ctx context.Context, drivers *csi.Set) error
	// Admitted returns an error if this control plane was given up, as it may have been while its lease was another's.
	Admitted func(ctx context.Context) error
	// Once runs beside the controllers of the whole cluster, in one control plane at a time.
	Once func(ctx context.Context) error
	// Remember stores on this host at which addresses control planes are.
	Remember func(addresses []string) error
}

// Shared runs the controllers of one of several control planes until ctx ends. Each runs those that call drivers, for
// the drivers whose leases it holds and for the volumes of its own node; those of the whole cluster run in the one that
// holds volume.ControlPlaneLease. A second process with the name of the node waits until the first one has ended.
// Ready is called once, when the drivers' controllers are about to run.
func Shared(ctx context.Context, o SharedOptions, ready func()) error {
	config, err := o.ConfigFor(LeasesRole)
	if err != nil {
		return fmt.Errorf("identity of %s: %w", LeasesRole, err)
	}
	leases, err := lease.NewClient(kube.Restrict(config, LeasesRole, lease.Rights(volume.NamespaceSystem, nil)),
		volume.NamespaceSystem, o.Identity, nil)
	if err != nil {
		return err
	}
	own := []string{volume.LeaseOnNode(volume.ControlPlaneLease, o.Node)}
	host, err := leases.Candidate(own, lease.SharedTerm(), o.Log)
	if err != nil {
		return err
	}
	o.Drivers, ready = csi.NewSet(), sync.OnceFunc(ready)
	return host.Run(ctx, func(ctx context.Context) error {
		err := o.Admitted(ctx)
		if err != nil {
			return lifecycle.UnlessEnded(ctx, err)
		}
		known, err := readPlanes(ctx, config)
		if err != nil {
			return lifecycle.UnlessEnded(ctx, err)
		}
		return lifecycle.Run(ctx, o.Log, []lifecycle.Part{
			{Name: "controllers of drivers", Run: func(ctx context.Context) error {
				return o.callDrivers(ctx, config, known, ready)
			}},
			{Name: "controllers of the cluster", Run: func(ctx context.Context) error {
				return o.oncePerCluster(ctx, config, known, leases)
			}},
			{Name: "addresses of control planes on this host", Run: func(ctx context.Context) error {
				return known.follow(ctx, o.Log, func(nodes []*corev1.Node) error {
					return o.Remember(planes.AddressesIn(planes.Published(nodes)))
				})
			}},
		})
	})
}

// oncePerCluster runs what there is once in a cluster while this control plane holds the lease for it.
func (o SharedOptions) oncePerCluster(
	ctx context.Context, config *rest.Config, known *planeNodes, leases *lease.Client,
) error {
	elected, err := leases.Candidate([]string{volume.ControlPlaneLease}, lease.SharedTerm(), o.Log)
	if err != nil {
		return err
	}
	o.Metrics.Follow(elected)
	cluster := o.ControlPlaneOptions
	cluster.Roles, cluster.Drivers, cluster.World = wholeCluster(), nil, nil
	return elected.Run(ctx, func(ctx context.Context) error {
		works := make(chan struct{})
		return lifecycle.Run(ctx, o.Log, []lifecycle.Part{
			{Name: "controllers", Run: func(ctx context.Context) error {
				return ControlPlane(ctx, cluster, func() {
					o.Log.Info("this control plane runs the controllers of the cluster", "node", o.Node)
					close(works)
				})
			}},
			{Name: "addresses of control planes", Run: func(ctx context.Context) error {
				return o.publish(ctx, config, known)
			}},
			// It reads all objects at its start, which must not delay the controllers.
			{Name: "garbage collector", Run: lifecycle.After(works, o.Once)},
		})
	})
}

// publish writes where control planes are, for hosts that have to find another one.
func (o SharedOptions) publish(ctx context.Context, config *rest.Config, known *planeNodes) error {
	client, err := kubernetes.NewForConfig(kube.Restrict(config, LeasesRole, publishRights()))
	if err != nil {
		return fmt.Errorf("client of the addresses of control planes: %w", err)
	}
	to := client.CoreV1().ConfigMaps(metav1.NamespacePublic)
	return known.follow(ctx, o.Log, func(nodes []*corev1.Node) error { return publish(ctx, to, planes.Published(nodes)) })
}

// publish writes the data of volume.ConfigPlanes.
func publish(ctx context.Context, to typedcorev1.ConfigMapInterface, data map[string]string) error {
	now, err := to.Get(ctx, volume.ConfigPlanes, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = to.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: volume.ConfigPlanes}, Data: data},
			metav1.CreateOptions{})
	case err == nil && !maps.Equal(now.Data, data):
		now.Data = data
		_, err = to.Update(ctx, now, metav1.UpdateOptions{})
	}
	return err
}

// wholeCluster returns the names of the controllers of which there is one in a cluster.
func wholeCluster() []string {
	var out []string
	for _, d := range Declarations() {
		if !slices.Contains(DriverControllers(), d.Name) && !onDemand(d.Name) {
			out = append(out, d.Name)
		}
	}
	return out
}

// callDrivers runs the controllers that call drivers. They start again when this control plane becomes the first one,
// and when it no longer is.
func (o SharedOptions) callDrivers(
	ctx context.Context, config *rest.Config, known *planeNodes, ready func(),
) error {
	for ctx.Err() == nil {
		// Without any first one, the node agent has not created its Node yet.
		node, ok := known.wait(ctx, func(node string) bool { return node != "" })
		if !ok {
			return nil
		}
		first := node == o.Node
		as, end := context.WithCancel(ctx)
		go func() {
			defer end()
			_, _ = known.wait(as, func(now string) bool { return now != "" && (now == o.Node) != first })
		}()
		err := o.callDriversAs(as, config, first, ready)
		if end(); err != nil {
			return err
		}
	}
	return nil
}

// callDriversAs is callDrivers until ctx ends. The first control plane also has the volumes of node-local drivers that
// belong to no node. They do not go from host to host with a lease, because a driver that does not have a volume says
// that it has deleted it.
func (o SharedOptions) callDriversAs(ctx context.Context, config *rest.Config, first bool, ready func()) error {
	drivers := o.ControlPlaneOptions
	drivers.Roles, drivers.Scope = DriverControllers(), volume.Scope{Node: o.Node, Rest: first}
	drivers.Intents = provisioner.OnHost(o.Node)
	if first {
		all := provisioner.Standalone()
		drivers.Intents.Inherited, drivers.Intents.ReadsAll = []kube.LogPlace{all.Own}, all.ReadsAll
	}
	leases, err := driverLeases(config, o.Identity, o.Reached, o.Drivers, o.Log)
	if err != nil {
		return err
	}
	leases.Leases.Former = onlyPlane
	leases.Assign = func(driver map[string]string) planes.Assignment {
		return planes.OfControlPlane(driver, drivers.Scope, false)
	}
	return lifecycle.Run(ctx, o.Log, []lifecycle.Part{
		{Name: "leases of drivers", Run: leases.Run},
		{Name: "controllers", Run: func(ctx context.Context) error { return ControlPlane(ctx, drivers, ready) }},
		{Name: "changed blocks", Run: func(ctx context.Context) error { return o.Beside(ctx, o.Drivers) }},
	})
}

// planeNodes knows the control planes by their Nodes.
type planeNodes struct {
	nodes *kube.Cache[*corev1.Node]
	// changed is sent when the planeState of a Node has changed.
	changed kube.Signal
}

func readPlanes(ctx context.Context, config *rest.Config) (*planeNodes, error) {
	client, err := kubernetes.NewForConfig(kube.Restrict(config, LeasesRole, kube.Read("", "nodes")))
	if err != nil {
		return nil, fmt.Errorf("client of the nodes: %w", err)
	}
	caches := kube.NewCaches(client)
	p := &planeNodes{nodes: caches.Nodes()}
	p.nodes.Watch(func(before, after *corev1.Node) {
		if planeState(before) != planeState(after) {
			p.changed.Send()
		}
	})
	if err := caches.Start(ctx); err != nil {
		return nil, fmt.Errorf("read Nodes: %w", err)
	}
	return p, nil
}

// planeState returns what planeNodes watches of a Node: where a control plane runs, and whether it is out of service.
// It is "" if there is no Node.
func planeState(n *corev1.Node) string {
	if n == nil {
		return ""
	}
	return fmt.Sprint(n.Annotations[volume.AnnControlPlane], nodelife.OutOfService(n))
}

// wait waits until the node of the first control plane is a wanted one, and returns its name; "" if no control plane
// has a Node. It is not ok if ctx has ended before.
func (p *planeNodes) wait(ctx context.Context, wanted func(node string) bool) (node string, ok bool) {
	for {
		changed := p.changed.Wait()
		if node := planes.First(p.nodes.List()); wanted(node) {
			return node, true
		}
		select {
		case <-ctx.Done():
			return "", false
		case <-changed:
		}
	}
}

// writePause is the pause after an attempt to write addresses that has failed.
const writePause = 10 * time.Second

// follow has the addresses in the Nodes written, and again when the planeState of one has changed, until ctx ends.
func (p *planeNodes) follow(ctx context.Context, log *slog.Logger, write func([]*corev1.Node) error) error {
	for ctx.Err() == nil {
		changed := p.changed.Wait()
		var again <-chan time.Time
		if err := write(p.nodes.List()); err != nil && ctx.Err() == nil {
			log.Warn("the addresses of control planes are not written; will be retried", "err", err)
			again = time.After(writePause)
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-again:
		}
	}
	return nil
}
