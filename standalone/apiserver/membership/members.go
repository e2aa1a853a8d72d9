package membership

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"volplane.dev/volplane/internal/decide/identity"
	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/standalone/pki"
)

// Revoked is the ConfigMap in kube-system with the epoch of each node, which the last revocation has started.
const Revoked = "volplane-revoked-nodes"

// Plane is what a host needs to become a control plane of the same objects.
type Plane struct {
	// Prefix begins the keys of the objects in an etcd that others run; "" if no other host can reach them.
	Prefix string
	// Keys returns the keys.
	Keys func() (identity.Keys, error)
}

// Members manages the identities of nodes, and the invitations of control planes. It is safe for concurrent use.
type Members struct {
	ca     *pki.Authority
	plane  Plane
	client kubernetes.Interface
	// epochs are valid after synced is closed.
	source informers.SharedInformerFactory
	cache  cache.SharedIndexInformer
	epochs corelisters.ConfigMapNamespaceLister
	synced chan struct{}

	mu sync.Mutex
	// inFlight are the requests of each node.
	inFlight map[string]map[*visit]struct{}
	// own is the admission of this process, and changed is closed when the revocations have changed.
	own     admission
	changed chan struct{}
}

// New returns the members of an authority. The client needs all rights.
func New(ca *pki.Authority, plane Plane, client kubernetes.Interface) *Members {
	source := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(volume.NamespaceSystem),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, Revoked).String()
		}))
	maps := source.Core().V1().ConfigMaps()
	return &Members{
		ca: ca, plane: plane, client: client, source: source, cache: maps.Informer(),
		epochs: maps.Lister().ConfigMaps(volume.NamespaceSystem),
		synced: make(chan struct{}), changed: make(chan struct{}), inFlight: map[string]map[*visit]struct{}{},
	}
}

// Run watches the revocations until ctx ends. Requests of nodes wait for its first read.
func (d *Members) Run(ctx context.Context) error {
	// Users may change the object too.
	_, err := d.cache.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { d.change() }, UpdateFunc: func(any, any) { d.change() },
	})
	if err != nil {
		return fmt.Errorf("watch the revocations of nodes: %w", err)
	}
	d.source.Start(ctx.Done())
	go func() {
		if cache.WaitForCacheSync(ctx.Done(), d.cache.HasSynced) {
			close(d.synced)
		}
	}()
	return nil
}

// change acts on changed revocations.
func (d *Members) change() {
	d.mu.Lock()
	close(d.changed)
	d.changed = make(chan struct{})
	d.mu.Unlock()
	d.sweep()
}

// changes returns a channel that is closed when the revocations have changed.
func (d *Members) changes() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.changed
}

// Install adds the handlers for invitations, certificates, control planes and revocations.
func (d *Members) Install(m *mux.PathRecorderMux) {
	for path, answer := range map[string]answerer{
		identity.PathCertificate: d.certificate, identity.PathInvitation: d.invite, identity.PathRevocation: d.revoke,
		identity.PathControlPlane: d.controlPlane,
	} {
		m.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) { serve(w, r, answer) })
	}
}

// present returns the epoch at a key of Revoked, which is the name of a node or its lostKey.
func (d *Members) present(ctx context.Context, key string) (identity.Epoch, error) {
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
	return epochIn(all, key)
}

func epochIn(all *corev1.ConfigMap, key string) (identity.Epoch, error) {
	text, ok := all.Data[key]
	if !ok {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("ConfigMap %s/%s: the epoch of %s is not a number: %w",
			volume.NamespaceSystem, Revoked, key, err)
	}
	return identity.Epoch(n), nil
}

// syncLimit is how long a revocation waits until it is effective for every request.
const syncLimit = 30 * time.Second

// find removes the mark from everything that was given up with a node that is invited again: its host calls the drivers
// for that from now on, so nothing of it may be deleted without them any more. It may be repeated.
func (d *Members) find(ctx context.Context, node string) error {
	for _, path := range []string{
		"/api/v1/persistentvolumes", "/apis/storage.k8s.io/v1/volumeattachments",
		"/apis/" + volume.GroupSnapshot + "/v1/" + volume.ResourceSnapshotContents,
		"/apis/" + volume.GroupGroupSnapshot + "/v1/" + volume.ResourceGroupContents,
	} {
		if err := d.unmark(ctx, path, node); err != nil {
			return fmt.Errorf("take the annotation %s=%s from what has it: %w", volume.AnnLostWith, node, err)
		}
	}
	return nil
}

func (d *Members) unmark(ctx context.Context, path, node string) error {
	client := d.client.Discovery().RESTClient()
	said, err := client.Get().AbsPath(path).SetHeader("Accept", "application/json").Do(ctx).Raw()
	if apierrors.IsNotFound(err) {
		return nil
	}
	var all struct {
		Items []metav1.PartialObjectMetadata `json:"items"`
	}
	if err == nil {
		err = json.Unmarshal(said, &all)
	}
	if err != nil {
		return fmt.Errorf("list %s: %w", path, err)
	}
	for _, o := range all.Items {
		if o.Annotations[volume.AnnLostWith] != node {
			continue
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"uid": o.UID, "annotations": map[string]any{volume.AnnLostWith: nil},
		}})
		if err == nil {
			err = client.Patch(types.MergePatchType).AbsPath(path, o.Name).Body(patch).Do(ctx).Error()
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("%s/%s: %w", path, o.Name, err)
		}
	}
	return nil
}
