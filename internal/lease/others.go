package lease

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
	typedcoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"

	decide "volplane.dev/volplane/internal/decide/lease"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/process/lifecycle"
)

// Others looks for processes that hold the leases of a driver where this one is no candidate for them. A candidate
// looks when it holds its own leases: of two that start at the same time, at least one then sees the other.
type Others struct {
	Client typedcoordinationv1.LeasesGetter
	Driver string
	// Names are those of the leases, and Namespace is where this process keeps its own.
	Names     []string
	Namespace string
	// Elects says that this process is a candidate for those of its namespace.
	Elects bool
	Log    *slog.Logger

	// seen holds the leases by namespace and name.
	seen map[[2]string]*sighting
}

// OthersRight is the right that looking for others needs.
func OthersRight() kube.Access {
	return kube.Access{Group: "coordination.k8s.io", Resource: "leases", Verbs: []string{"list"}}
}

// Refuse returns an error if others call the driver, and nil if none does, or if that cannot be known. It returns when
// it knows.
func (o *Others) Refuse(ctx context.Context) error {
	o.seen = map[[2]string]*sighting{}
	waits := lifecycle.NewWait(o.Log.With("driver", o.Driver), "waiting to know whether others call the driver")
	defer waits.Stop()
	for {
		all, err := o.look(ctx)
		pause := time.Second
		switch {
		case ctx.Err() != nil:
			return nil
		case apierrors.IsForbidden(err):
			o.Log.Info("whether others call the driver is not known: this process may not list leases", "err", err)
			return nil
		case err != nil:
			waits.For(err.Error())
		default:
			start := decide.Beside(all)
			if start.Refuse != "" {
				return fmt.Errorf("driver %s has another controller: %s. Both would do the same work, and call the driver "+
					"twice. End the other one, or run this one in its namespace and with leader election, or start it with "+
					"--beside-others", o.Driver, start.Refuse)
			}
			if start.Wait <= 0 {
				waits.Over()
				return nil
			}
			waits.For(start.For)
			pause = min(pause, start.Wait)
		}
		if !lifecycle.Sleep(ctx, pause) {
			return nil
		}
	}
}

// look returns the leases of the driver for which this process is no candidate.
func (o *Others) look(ctx context.Context) ([]decide.Elsewhere, error) {
	list, err := o.Client.Leases("").List(ctx, metav1.ListOptions{
		// Those of the nodes are many.
		FieldSelector: "metadata.namespace!=" + corev1.NamespaceNodeLease,
	})
	if apierrors.IsForbidden(err) && !o.Elects {
		o.Log.Info("whether others call the driver from other namespaces is not known: this process may not list leases",
			"err", err)
		list, err = o.own(ctx)
	}
	if err != nil {
		return nil, err
	}
	var out []decide.Elsewhere
	for _, l := range list.Items {
		if slices.Contains(o.Names, l.Name) && (!o.Elects || l.Namespace != o.Namespace) {
			out = append(out, o.see(l))
		}
	}
	return out, nil
}

// own returns the leases of this process's namespace.
func (o *Others) own(ctx context.Context) (*coordinationv1.LeaseList, error) {
	var list coordinationv1.LeaseList
	for _, name := range o.Names {
		l, err := o.Client.Leases(o.Namespace).Get(ctx, name, metav1.GetOptions{})
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
func (o *Others) see(l coordinationv1.Lease) decide.Elsewhere {
	key := [2]string{l.Namespace, l.Name}
	s, known := o.seen[key]
	if !known {
		s = &sighting{}
		o.seen[key] = s
	}
	out := decide.Elsewhere{Namespace: l.Namespace, Name: l.Name, Renewed: s.see(&l) && known}
	out.Holder, out.Duration = holderOf(&l)
	out.Unchanged = time.Since(s.since)
	return out
}
