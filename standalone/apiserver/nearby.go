package apiserver

import (
	"fmt"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/feature"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// nearby reads and writes objects through the clients of the store. Those of the etcd in this process call it, because
// a connection costs as much processor time as etcd itself; those of another one share their connections. Everything
// else is as in Kubernetes' own factory of storages, each of which has its own connection.
type nearby struct {
	store     store
	compactor compactor
}

type compactor interface {
	etcd3.Compactor
	Stop()
}

// near begins to compact the store, until the compactor is stopped. API servers of the same etcd agree on which one
// does.
func near(db store) nearby {
	client := db.Client()
	// A storage checks the endpoints of its client for this feature, and this client has no endpoints.
	feature.DefaultFeatureSupportChecker.CheckClient(client.Ctx(), named{client, db.transport().ServerList},
		storage.RequestWatchProgress)
	return nearby{db, etcd3.NewCompactor(client, storagebackend.DefaultCompactInterval, clock.RealClock{},
		func() { _ = client.Close() })}
}

// named is a client with endpoints.
type named struct {
	*clientv3.Client
	names []string
}

// Endpoints returns the names.
func (n named) Endpoints() []string { return n.names }

// options returns the options of other with storages that are nearby.
func (n nearby) options(other generic.RESTOptionsGetter) generic.RESTOptionsGetter {
	return nearbyOptions{other, n}
}

type nearbyOptions struct {
	generic.RESTOptionsGetter
	nearby nearby
}

// GetRESTOptions returns the options of a resource.
func (n nearbyOptions) GetRESTOptions(r schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	o, err := n.RESTOptionsGetter.GetRESTOptions(r, example)
	o.Decorator = n.nearby.cached
	return o, err
}

// cached returns the storage of a resource behind a watch cache.
func (n nearby) cached(
	c *storagebackend.ConfigForResource, prefix string, key func(runtime.Object) (string, error),
	newOne, newList func() runtime.Object, attributes storage.AttrFunc, triggers storage.IndexerFuncs,
	indexers *cache.Indexers,
) (storage.Interface, factory.DestroyFunc, error) {
	raw, destroy, err := n.raw(c, prefix, newOne, newList)
	if err != nil {
		return nil, nil, fmt.Errorf("storage of %s: %w", c.GroupResource, err)
	}
	cached, err := cacher.NewCacherFromConfig(cacher.Config{
		Storage: raw, Versioner: storage.APIObjectVersioner{}, GroupResource: c.GroupResource,
		EventsHistoryWindow: c.EventsHistoryWindow, ResourcePrefix: prefix, KeyFunc: key, NewFunc: newOne,
		NewListFunc: newList, GetAttrsFunc: attributes, IndexerFuncs: triggers, Indexers: indexers, Codec: c.Codec,
	})
	if err != nil {
		destroy()
		return nil, nil, fmt.Errorf("watch cache of %s: %w", c.GroupResource, err)
	}
	d := cacher.NewCacheDelegator(cached, unmanaged{raw})
	// A storage is destroyed once for each of its subresources.
	return d, sync.OnceFunc(func() {
		d.Stop()
		cached.Stop()
		destroy()
	}), nil
}

// raw returns the storage of a resource, with a client of its own because a client's watches share one stream.
func (n nearby) raw(
	c *storagebackend.ConfigForResource, prefix string, newOne, newList func() runtime.Object,
) (storage.Interface, func(), error) {
	client := &kubernetes.Client{Client: n.store.Client()}
	client.Kubernetes, client.KV = client, etcd3.NewETCDLatencyTracker(client.KV)
	transformer := c.Transformer
	if transformer == nil {
		transformer = identity.NewEncryptCheckTransformer()
	}
	decoder := etcd3.NewDefaultDecoder(c.Codec, storage.APIObjectVersioner{})
	deletable := utilfeature.DefaultFeatureGate.Enabled(features.AllowUnsafeMalformedObjectDeletion)
	if deletable {
		transformer = etcd3.WithCorruptObjErrorHandlingTransformer(transformer)
		decoder = etcd3.WithCorruptObjErrorHandlingDecoder(decoder)
	}
	s, err := etcd3.New(client, n.compactor, c.Codec, newOne, newList, c.Prefix, prefix, c.GroupResource, transformer,
		c.LeaseManagerConfig, decoder, storage.APIObjectVersioner{})
	if err != nil {
		_ = client.Close()
		return nil, nil, err
	}
	destroy := func() {
		s.Close()
		_ = client.Close()
	}
	if deletable {
		return etcd3.NewStoreWithUnsafeCorruptObjectDeletion(s, c.GroupResource), destroy, nil
	}
	return s, destroy, nil
}
