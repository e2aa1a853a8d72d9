package app

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedcoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"volplane.dev/volplane/internal/decide/election"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/program"
)

// others looks for processes that hold the leases of a driver where this one does not compete for them. A process that
// competes looks when it holds its own leases: of two that start at the same time, at least one then sees the other.
type others struct {
	client typedcoordinationv1.LeasesGetter
	driver string
	// names are those of the leases, and namespace is where this process keeps its own.
	names     []string
	namespace string
	// elects says that this process competes for those of its namespace.
	elects bool
	// every is the pause between two looks.
	every time.Duration
	log   *slog.Logger
	// seen holds what was seen of each lease, by namespace and name.
	seen map[[2]string]sighting
}

// sighting is a lease as it was seen first, and since when it has been seen as it is.
type sighting struct {
	holder  string
	renewed metav1.MicroTime
	since   time.Time
}

// newOthers returns those beside a process with these options; nil if it is told to start beside any.
func newOthers(o program.ControllersOptions, driver string) (*others, error) {
	if o.BesideOthers {
		return nil, nil
	}
	names := leaseNames(o.Roles, driver)
	client, err := kubernetes.NewForConfig(
		kube.Restrict(o.Config, "leader-election", append(leaseRights(o.Namespace, names), besideRight())))
	if err != nil {
		return nil, fmt.Errorf("client of the leases: %w", err)
	}
	return &others{
		client: client.CoordinationV1(), driver: driver, names: names, namespace: o.Namespace,
		// The leases of a node have other names.
		elects: o.Elects && o.Provisioner.OnNode.Node == "",
		every:  time.Second, log: o.Log, seen: map[[2]string]sighting{},
	}, nil
}

// besideRight is the right that looking for others needs.
func besideRight() kube.Access {
	return kube.Access{Group: "coordination.k8s.io", Resource: "leases", Verbs: []string{"list"}}
}

// refuse returns an error if others call the driver, and nil if none does, or if that cannot be known. It returns when
// it knows.
func (b *others) refuse(ctx context.Context) error {
	if b == nil {
		return nil
	}
	waits := newNotice(b.log.With("driver", b.driver), "waiting to know whether others call the driver")
	defer waits.stop()
	for {
		all, err := b.look(ctx)
		pause := b.every
		switch {
		case ctx.Err() != nil:
			return nil
		case apierrors.IsForbidden(err):
			b.log.Info("whether others call the driver is not known: this process may not list leases", "err", err)
			return nil
		case err != nil:
			waits.tell(err.Error())
		default:
			start := election.Beside(all)
			if start.Refuse != "" {
				return fmt.Errorf("driver %s has another controller: %s. Both would do the same work, and call the driver "+
					"twice. End the other one, or run this one in its namespace and with leader election, or start it with "+
					"--beside-others", b.driver, start.Refuse)
			}
			if start.Wait <= 0 {
				waits.over()
				return nil
			}
			waits.tell(start.For)
			pause = min(pause, start.Wait)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// look returns the leases of the driver for which this process does not compete.
func (b *others) look(ctx context.Context) ([]election.Elsewhere, error) {
	list, err := b.client.Leases("").List(ctx, metav1.ListOptions{
		// Those of the nodes are many.
		FieldSelector: "metadata.namespace!=" + corev1.NamespaceNodeLease,
	})
	if apierrors.IsForbidden(err) && !b.elects {
		b.log.Info("whether others call the driver from other namespaces is not known: this process may not list leases",
			"err", err)
		list, err = b.own(ctx)
	}
	if err != nil {
		return nil, err
	}
	var out []election.Elsewhere
	for _, l := range list.Items {
		if slices.Contains(b.names, l.Name) && (!b.elects || l.Namespace != b.namespace) {
			out = append(out, b.see(l))
		}
	}
	return out, nil
}

// own returns the leases of this process's namespace.
func (b *others) own(ctx context.Context) (*coordinationv1.LeaseList, error) {
	var list coordinationv1.LeaseList
	for _, name := range b.names {
		l, err := b.client.Leases(b.namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return nil, err
		default:
			list.Items = append(list.Items, *l)
		}
	}
	return &list, nil
}

// see compares a lease with what was seen of it before.
func (b *others) see(l coordinationv1.Lease) election.Elsewhere {
	key, now := [2]string{l.Namespace, l.Name}, sighting{since: time.Now()}
	out := election.Elsewhere{Namespace: l.Namespace, Name: l.Name}
	out.Holder, out.Duration = held(&l)
	now.holder = out.Holder
	if l.Spec.RenewTime != nil {
		now.renewed = *l.Spec.RenewTime
	}
	before, known := b.seen[key]
	if known && before.holder == now.holder && before.renewed.Equal(&now.renewed) {
		out.Unchanged = time.Since(before.since)
		return out
	}
	out.Renewed = known
	b.seen[key] = now
	return out
}
