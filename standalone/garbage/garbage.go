package garbage

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
)

// User is the user name of the collector.
const User = "system:volplane:garbage"

const (
	// workers is how many objects are processed at the same time.
	workers = 4
	// discoveryPause is the interval at which new kinds of objects are discovered, as in Kubernetes.
	discoveryPause = 30 * time.Second
	// readLimit is how long the first read of all objects may take. Kubernetes allows a discoveryPause, which is too short
	// for 30,000 objects on a busy host.
	readLimit = 10 * time.Minute
)

// RBAC returns the rights of the collector, which may have to delete any object with an
// owner.
func RBAC() []runtime.Object {
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: User}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{
			"get", "list", "watch", "patch", "update", "delete",
		}},
		{APIGroups: []string{corev1.GroupName}, Resources: []string{"events"}, Verbs: []string{"create"}},
		{NonResourceURLs: []string{"/api", "/api/*", "/apis", "/apis/*"}, Verbs: []string{"get"}},
	}}
	return []runtime.Object{role, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: User},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: User}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: User},
	}}
}

// Run collects garbage until ctx ends.
func Run(ctx context.Context, config *rest.Config) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("client of the garbage collector: %w", err)
	}
	objects, err := metadata.NewForConfig(metadata.ConfigFor(config))
	if err != nil {
		return fmt.Errorf("client of the garbage collector: %w", err)
	}
	kinds, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fmt.Errorf("client of the garbage collector: %w", err)
	}
	begun := make(chan struct{})
	ignored := garbagecollector.DefaultIgnoredResources()
	seen := owners{metadatainformer.NewSharedInformerFactoryWithOptions(objects, 0, metadatainformer.WithTransform(owned))}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(kinds))
	collector, err := garbagecollector.NewGarbageCollector(ctx, client, objects, mapper,
		ignored, seen, begun)
	if err != nil {
		return fmt.Errorf("garbage collector: %w", err)
	}
	close(begun)
	seen.read(ctx, kinds, ignored)
	var running sync.WaitGroup
	running.Go(func() { collector.Sync(ctx, kinds, discoveryPause) })
	running.Go(func() { collector.Run(ctx, workers, discoveryPause) })
	running.Wait()
	seen.Shutdown()
	return nil
}

// owners caches only the owner references of objects, because other caches hold the
// objects themselves.
type owners struct {
	metadatainformer.SharedInformerFactory
}

// ForResource returns an informer of metadata.
func (o owners) ForResource(r schema.GroupVersionResource) (informers.GenericInformer, error) {
	return o.SharedInformerFactory.ForResource(r), nil
}

// read reads all objects, because the collector waits for them no longer than a discoveryPause. It finds the rest
// later.
func (o owners) read(ctx context.Context, from discovery.DiscoveryInterface, but map[schema.GroupResource]struct{}) {
	limited, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	kinds, _ := garbagecollector.GetDeletableResources(limited, discovery.ToServerResourcesInterfaceWithContext(from))
	for kind := range kinds {
		if _, ignored := but[kind.GroupResource()]; !ignored {
			o.SharedInformerFactory.ForResource(kind).Informer()
		}
	}
	o.Start(ctx.Done())
	o.WaitForCacheSync(limited.Done())
}

var errKind = errors.New("not object metadata")

// owned removes the metadata that does not concern owners, and shares texts that many objects have.
func owned(o any) (any, error) {
	m, ok := o.(*metav1.PartialObjectMetadata)
	if !ok {
		return nil, fmt.Errorf("%w: %T", errKind, o)
	}
	m.TypeMeta, m.Labels, m.Annotations, m.ManagedFields = metav1.TypeMeta{}, nil, nil, nil
	m.Namespace = unique.Make(m.Namespace).Value()
	for i, f := range m.Finalizers {
		m.Finalizers[i] = unique.Make(f).Value()
	}
	return m, nil
}
