package app

import (
	"fmt"
	"os"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	typedcoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/controller/attacher"
	"volplane.dev/volplane/internal/controller/capacity"
	"volplane.dev/volplane/internal/controller/groupsnapshotter"
	"volplane.dev/volplane/internal/controller/health"
	"volplane.dev/volplane/internal/controller/modifier"
	"volplane.dev/volplane/internal/controller/provisioner"
	"volplane.dev/volplane/internal/controller/resizer"
	"volplane.dev/volplane/internal/controller/snapshotter"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

// leases makes the locks of one process. The leases are those that the CSI sidecars hold for the same work, so that a
// sidecar and this process never call a driver at the same time.
type leases struct {
	namespace, identity string
	labels              map[string]string
	// renewed has a time limit for each request, and watched has none.
	renewed, watched typedcoordinationv1.LeaseInterface
}

// newLeases returns the leases in a namespace. The configuration must allow leaseRights; deadline is the Term's.
// There is no client-side rate limit, because a process may hold the leases of many drivers, and because a renewal that
// waits for other requests may come too late.
func newLeases(config *rest.Config, namespace, identity string, deadline time.Duration) (leases, error) {
	l := leases{namespace: namespace, identity: identity}
	config = rest.CopyConfig(config)
	config.QPS, config.RateLimiter = -1, nil
	watched, err := kubernetes.NewForConfig(config)
	if err != nil {
		return l, fmt.Errorf("client of the leases: %w", err)
	}
	l.watched = watched.CoordinationV1().Leases(namespace)
	// A request that hangs must leave time for one more before the deadline.
	config.Timeout = max(deadline/2, time.Second)
	renewed, err := kubernetes.NewForConfig(config)
	if err != nil {
		return l, fmt.Errorf("client of the leases: %w", err)
	}
	l.renewed = renewed.CoordinationV1().Leases(namespace)
	return l, nil
}

// locks returns the locks of the leases with these names.
func (l leases) locks(names []string) []WatchedLock {
	out := make([]WatchedLock, 0, len(names))
	for _, name := range names {
		out = append(out, WatchedLock{
			Namespace: l.namespace, Name: name, Identity: l.identity, Labels: l.labels, Renewed: l.renewed, Leases: l.watched,
		})
	}
	return out
}

// processIdentity returns the holder's name for this process: two processes on one host need different ones.
func processIdentity() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("name of this host: %w", err)
	}
	return host + "_" + string(uuid.NewUUID()), nil
}

// leaseNames returns the names of the leases for controllers of one driver. Their order
// is always the same, so that processes that acquire several cannot deadlock.
func leaseNames(roles []string, driver string) []string {
	var out []string
	for _, l := range []struct{ role, name string }{
		{provisioner.Declaration().Name, volume.ProvisionerLease(driver)},
		{capacity.Declaration().Name, volume.ProvisionerLease(driver)},
		{attacher.Declaration().Name, volume.AttacherLease(driver)},
		{resizer.Declaration().Name, volume.ResizerLease(driver)},
		{modifier.Declaration().Name, volume.ResizerLease(driver)},
		{snapshotter.Declaration().Name, volume.SnapshotterLease(driver)},
		{health.Declaration().Name, volume.HealthLease(driver)},
		{groupsnapshotter.Declaration().Name, volume.SnapshotterLease(driver)},
		{snapshotter.BindingDeclaration().Name, volume.SnapshotControllerLease},
	} {
		if slices.Contains(roles, l.role) && !slices.Contains(out, l.name) {
			out = append(out, l.name)
		}
	}
	return out
}

// leaseRights returns the rights that holding leases needs; without names, those on every lease of the namespace. The
// names do not restrict the watch: one of the whole namespace costs the API server less than one for each lease.
func leaseRights(namespace string, names []string) []kube.Access {
	const group, resource = "coordination.k8s.io", "leases"
	return []kube.Access{
		{Group: group, Resource: resource, Namespace: namespace, Verbs: []string{"create", "watch"}},
		{Group: group, Resource: resource, Namespace: namespace, Names: names, Verbs: []string{"get", "update"}},
	}
}
