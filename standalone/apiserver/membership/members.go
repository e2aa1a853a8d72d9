package membership

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"volplane.dev/volplane/internal/decide/identity"
	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/standalone/pki"
)

// Revoked is the ConfigMap in kube-system that has, by node, the epoch that began
// when what the node had was last taken back.
const Revoked = "volplane-revoked-nodes"

// Members lets nodes in and out. It is safe for concurrent use.
type Members struct {
	ca     *pki.Authority
	client kubernetes.Interface
	// epochs are known as soon as synced is closed.
	source informers.SharedInformerFactory
	cache  cache.SharedIndexInformer
	epochs corelisters.ConfigMapNamespaceLister
	synced chan struct{}

	mu sync.Mutex
	// underWay are the requests of each node.
	underWay map[string]map[*visit]struct{}
}

// New returns the members of an authority. Client is the server's own, with all
// rights.
func New(ca *pki.Authority, client kubernetes.Interface) *Members {
	source := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(volume.NamespaceSystem),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, Revoked).String()
		}))
	maps := source.Core().V1().ConfigMaps()
	return &Members{
		ca: ca, client: client, source: source, cache: maps.Informer(),
		epochs: maps.Lister().ConfigMaps(volume.NamespaceSystem),
		synced: make(chan struct{}), underWay: map[string]map[*visit]struct{}{},
	}
}

// Run learns what was taken back, until ctx ends. Nodes wait for it.
func (d *Members) Run(ctx context.Context) error {
	// The object may also be changed by hand.
	_, err := d.cache.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { d.sweep() }, UpdateFunc: func(any, any) { d.sweep() },
	})
	if err != nil {
		return fmt.Errorf("follow what is taken back of nodes: %w", err)
	}
	d.source.Start(ctx.Done())
	go func() {
		if cache.WaitForCacheSync(ctx.Done(), d.cache.HasSynced) {
			close(d.synced)
		}
	}()
	return nil
}

// Install serves the paths at which identities are asked for and taken back.
func (d *Members) Install(m *mux.PathRecorderMux) {
	for path, answer := range map[string]answerer{
		identity.PathCertificate: d.certificate, identity.PathInvitation: d.invite, identity.PathRevocation: d.revoke,
	} {
		m.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) { serve(w, r, answer) })
	}
}

// present returns the epoch of a node.
func (d *Members) present(ctx context.Context, node string) (identity.Epoch, error) {
	select {
	case <-d.synced:
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	all, err := d.epochs.Get(Revoked)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return epochIn(all, node)
}

func epochIn(all *corev1.ConfigMap, node string) (identity.Epoch, error) {
	text, ok := all.Data[node]
	if !ok {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("ConfigMap %s/%s does not say by a number what was taken back of node %s: %w",
			volume.NamespaceSystem, Revoked, node, err)
	}
	return identity.Epoch(n), nil
}

// patience is how long a change waits until every request sees it.
const patience = 30 * time.Second
