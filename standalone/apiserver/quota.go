package apiserver

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/resourcequota"
	"k8s.io/kubernetes/pkg/quota/v1/evaluator/core"
	"k8s.io/kubernetes/pkg/quota/v1/install"
)

const (
	// recount is the interval at which usage is recounted, as in Kubernetes: a failed
	// creation leaves the reservation of admission.
	recount = 5 * time.Minute
	// rediscover is the interval at which new custom resources are discovered.
	rediscover = 30 * time.Second
	// counters is how many quotas are counted at the same time.
	counters = 2
)

// keepQuotas keeps the usage of quotas up to date, also after deletions, which admission
// does not see. Objects are cached only after the first quota is created, because most
// control planes have none.
func (a *assembly) keepQuotas(
	server *genericapiserver.GenericAPIServer, client kubernetes.Interface, objects metadata.Interface,
) error {
	first := make(chan struct{})
	once := sync.OnceFunc(func() { close(first) })
	_, err := a.informers.Core().V1().ResourceQuotas().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { once() },
	})
	if err != nil {
		return fmt.Errorf("quotas: %w", err)
	}
	server.AddPostStartHookOrDie("quotas", func(h genericapiserver.PostStartHookContext) error {
		go func() {
			select {
			case <-first:
				a.countQuotas(h, client, objects)
			case <-h.Done():
			}
		}()
		return nil
	})
	return nil
}

// countQuotas runs Kubernetes' own controller of quotas until ctx ends.
func (a *assembly) countQuotas(ctx context.Context, client kubernetes.Interface, objects metadata.Interface) {
	what := counted{SharedInformerFactory: a.informers, others: metadatainformer.NewSharedInformerFactory(objects, resync)}
	evaluators, err := what.evaluators()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Quotas are not counted")
		return
	}
	started := make(chan struct{})
	close(started)
	discover := client.Discovery().ServerPreferredNamespacedResources
	c, err := resourcequota.NewController(ctx, &resourcequota.ControllerOptions{
		QuotaClient: client.CoreV1(), ResourceQuotaInformer: a.informers.Core().V1().ResourceQuotas(),
		ResyncPeriod:              func() time.Duration { return recount },
		ReplenishmentResyncPeriod: func() time.Duration { return resync },
		InformerFactory:           what, InformersStarted: started,
		DiscoveryFunc: discover, IgnoredResourcesFunc: install.DefaultIgnoredResources,
		Registry: generic.NewRegistry(evaluators), UpdateFilter: install.DefaultUpdateFilter(),
	})
	if err != nil {
		klog.FromContext(ctx).Error(err, "Quotas are not counted")
		return
	}
	what.Start(ctx.Done())
	go c.Sync(ctx, discover, rediscover)
	c.Run(ctx, counters)
}

// counted caches the objects that quotas count: claims and Pods completely, and the
// metadata of all others.
type counted struct {
	informers.SharedInformerFactory
	others metadatainformer.SharedInformerFactory
}

// ForResource returns the cache of a resource.
func (c counted) ForResource(r schema.GroupVersionResource) (informers.GenericInformer, error) {
	if whole(r) || r.Resource == "resourcequotas" {
		return c.SharedInformerFactory.ForResource(r)
	}
	return c.others.ForResource(r), nil
}

// Start starts the requested caches.
func (c counted) Start(stop <-chan struct{}) {
	c.SharedInformerFactory.Start(stop)
	c.others.Start(stop)
}

// whole says whether quotas need the complete objects of a resource.
func whole(r schema.GroupVersionResource) bool {
	return r == corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims") ||
		r == corev1.SchemeGroupVersion.WithResource("pods")
}

// evaluators returns the functions that compute the usage of objects.
func (c counted) evaluators() ([]quota.Evaluator, error) {
	all, err := core.NewEvaluators(generic.ListerFuncForResourceFunc(c.ForResource), c, whole)
	if err != nil {
		return nil, fmt.Errorf("what quotas count: %w", err)
	}
	return slices.DeleteFunc(all, func(e quota.Evaluator) bool {
		return e.GroupResource().Resource == "replicationcontrollers"
	}), nil
}
