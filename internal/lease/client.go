package lease

import (
	"fmt"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	typedcoordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/kube"
)

// Client reads and writes the leases of a namespace for one process.
type Client struct {
	// Former is the name of a holder that cannot work while this process does, or "". Its leases are taken without
	// waiting.
	Former string

	namespace string
	// identity is the holder's name for this process.
	identity string
	// labels are set on a lease when it is written.
	labels map[string]string
	// asleep returns how long the host has been suspended.
	asleep func() time.Duration
	watcher
}

// NewClient returns a client of the leases in a namespace, whose configuration must allow Rights. The labels are set on
// each lease. There is no client-side rate limit, because a process may hold the leases of many drivers, and because a
// renewal that waits for other requests may come too late.
func NewClient(config *rest.Config, namespace, identity string, labels map[string]string) (*Client, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.RateLimiter = -1, nil
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of the leases: %w", err)
	}
	return newClient(client.CoordinationV1().Leases(namespace), namespace, identity, labels), nil
}

func newClient(
	leases typedcoordinationv1.LeaseInterface, namespace, identity string, labels map[string]string,
) *Client {
	return &Client{
		namespace: namespace, identity: identity, labels: labels, asleep: asleep,
		watcher: watcher{leases: leases, followers: map[*follower]bool{}},
	}
}

// ProcessIdentity returns the holder's name for this process: two processes on one host need different ones.
func ProcessIdentity() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("name of this host: %w", err)
	}
	return host + "_" + string(uuid.NewUUID()), nil
}

// Rights returns the rights that holding leases needs; without names, those on every lease of the namespace. The
// names do not restrict the watch: one of the whole namespace costs the API server less than one for each lease.
func Rights(namespace string, names []string) []kube.Access {
	const group, resource = "coordination.k8s.io", "leases"
	return []kube.Access{
		{Group: group, Resource: resource, Namespace: namespace, Verbs: []string{"create", "watch"}},
		{Group: group, Resource: resource, Namespace: namespace, Names: names, Verbs: []string{"get", "update"}},
	}
}
