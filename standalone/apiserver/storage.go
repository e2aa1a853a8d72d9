package apiserver

import (
	"context"
	"errors"
	"fmt"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	extensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/client-go/informers"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/authentication/install" // registers the group's types
	_ "k8s.io/kubernetes/pkg/apis/authorization/install"  // registers the group's types
	_ "k8s.io/kubernetes/pkg/apis/coordination/install"   // registers the group's types
	_ "k8s.io/kubernetes/pkg/apis/core/install"           // registers the group's types
	_ "k8s.io/kubernetes/pkg/apis/events/install"         // registers the group's types
	_ "k8s.io/kubernetes/pkg/apis/rbac/install"           // registers the group's types
	_ "k8s.io/kubernetes/pkg/apis/storage/install"        // registers the group's types
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"
	authenticationrest "k8s.io/kubernetes/pkg/registry/authentication/rest"
	authorizationrest "k8s.io/kubernetes/pkg/registry/authorization/rest"
	coordinationrest "k8s.io/kubernetes/pkg/registry/coordination/rest"
	limitrangestore "k8s.io/kubernetes/pkg/registry/core/limitrange/storage"
	nodestore "k8s.io/kubernetes/pkg/registry/core/node/storage"
	pvstore "k8s.io/kubernetes/pkg/registry/core/persistentvolume/storage"
	pvcstore "k8s.io/kubernetes/pkg/registry/core/persistentvolumeclaim/storage"
	podstore "k8s.io/kubernetes/pkg/registry/core/pod/storage"
	corerest "k8s.io/kubernetes/pkg/registry/core/rest"
	accountstore "k8s.io/kubernetes/pkg/registry/core/serviceaccount/storage"
	eventsrest "k8s.io/kubernetes/pkg/registry/events/rest"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"
	storagerest "k8s.io/kubernetes/pkg/registry/storage/rest"

	"volplane.dev/volplane/standalone/apiserver/membership"
	"volplane.dev/volplane/standalone/apiserver/spare"
	"volplane.dev/volplane/standalone/pki"
)

const (
	eventLife      = time.Hour
	tokenLife      = 24 * time.Hour
	mediaType      = "application/vnd.kubernetes.protobuf"
	registryPrefix = "/registry"
)

// served returns the groups and versions of the API without custom resources.
func served() *serverstorage.ResourceConfig {
	c := serverstorage.NewResourceConfig()
	for _, group := range []string{
		"", "storage.k8s.io", "coordination.k8s.io", "rbac.authorization.k8s.io",
		"authentication.k8s.io", "authorization.k8s.io", "events.k8s.io",
	} {
		c.EnableVersions(schema.GroupVersion{Group: group, Version: "v1"})
	}
	return c
}

// place describes how the server stores its objects: the store, the configuration of the
// encryption, and, in collects, whether a garbage collector runs.
type place struct {
	near     nearby
	sealing  string
	collects bool
}

// configure configures the storage of the server.
func configure(
	c *genericapiserver.Config, at place,
) (*genericoptions.EtcdOptions, *serverstorage.DefaultStorageFactory, error) {
	o := genericoptions.NewEtcdOptions(storagebackend.NewDefaultConfig(at.near.store.prefix(), nil))
	// Health checks connect to etcd, as backups from other processes do.
	o.StorageConfig.Transport = at.near.store.transport()
	o.EncryptionProviderConfigFilepath = at.sealing
	o.DefaultStorageMediaType = mediaType
	// Without a collector, foreground and orphaning deletions would wait forever.
	o.EnableGarbageCollection = at.collects
	encoding := serverstorage.NewDefaultResourceEncodingConfigForEffectiveVersion(legacyscheme.Scheme, c.EffectiveVersion)
	// Kubernetes stores Nodes under "minions", their first name.
	f := serverstorage.NewDefaultStorageFactory(o.StorageConfig, mediaType, legacyscheme.Codecs, encoding, served(),
		map[schema.GroupResource]string{{Resource: "nodes"}: "minions"})
	f.AddCohabitatingResources(schema.GroupResource{Resource: "events"},
		schema.GroupResource{Group: "events.k8s.io", Resource: "events"})
	f.StorageConfig.StorageObjectCountTracker = c.StorageObjectCountTracker
	if err := o.ApplyWithStorageFactoryTo(f, c); err != nil {
		return nil, nil, fmt.Errorf("storage: %w", err)
	}
	c.RESTOptionsGetter = at.near.options(c.RESTOptionsGetter)
	return o, f, nil
}

// provider creates the storages of one group.
type provider interface {
	GroupName() string
	NewRESTStorage(serverstorage.APIResourceConfigSource, generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error)
}

func (a *assembly) providers() ([]provider, error) {
	tokens, err := tokenIssuer(a.ca.ServiceAccountKey)
	if err != nil {
		return nil, err
	}
	c := a.config
	core := coreProvider{authz: c.Authorization.Authorizer, GenericConfig: &corerest.GenericConfig{
		StorageFactory: a.factory, EventTTL: eventLife, LoopbackClientConfig: c.LoopbackClientConfig,
		ServiceAccountIssuer: tokens, ServiceAccountMaxExpiration: tokenLife, APIAudiences: c.Authentication.APIAudiences,
		Informers: a.informers,
	}}
	return []provider{
		core,
		authenticationrest.RESTStorageProvider{Authenticator: a.identities, APIAudiences: c.Authentication.APIAudiences},
		authorizationrest.RESTStorageProvider{Authorizer: c.Authorization.Authorizer, RuleResolver: c.RuleResolver},
		coordinationrest.RESTStorageProvider{},
		rbacrest.RESTStorageProvider{Authorizer: c.Authorization.Authorizer},
		storagerest.RESTStorageProvider{},
		eventsrest.RESTStorageProvider{TTL: eventLife},
	}, nil
}

// install adds all groups to the server.
func (a *assembly) install(server *genericapiserver.GenericAPIServer) error {
	providers, err := a.providers()
	if err != nil {
		return err
	}
	var named []*genericapiserver.APIGroupInfo
	for _, p := range providers {
		info, err := p.NewRESTStorage(served(), a.config.RESTOptionsGetter)
		if err != nil {
			return fmt.Errorf("storage of group %q: %w", p.GroupName(), err)
		}
		if p.GroupName() != "" {
			named = append(named, &info)
			continue
		}
		if err := server.InstallLegacyAPIGroup(genericapiserver.DefaultLegacyAPIPrefix, &info); err != nil {
			return fmt.Errorf("install core group: %w", err)
		}
	}
	if err := server.InstallAPIGroups(named...); err != nil {
		return fmt.Errorf("install groups: %w", err)
	}
	return nil
}

// coreProvider adds the resources that storage needs to the generic part of the core group: Nodes, Pods, claims,
// volumes and limits. It has no Services and no connections to kubelets.
type coreProvider struct {
	*corerest.GenericConfig
	authz authorizer.Authorizer
}

// NewRESTStorage creates the storages of the core group.
func (p coreProvider) NewRESTStorage(
	enabled serverstorage.APIResourceConfigSource, options generic.RESTOptionsGetter,
) (genericapiserver.APIGroupInfo, error) {
	info, err := p.GenericConfig.NewRESTStorage(enabled, options)
	if err != nil {
		return info, err
	}
	volumes, volumeStatus, err := pvstore.NewREST(options)
	if err != nil {
		return info, err
	}
	claims, claimStatus, err := pvcstore.NewREST(options)
	if err != nil {
		return info, err
	}
	limits, err := limitrangestore.NewREST(options)
	if err != nil {
		return info, err
	}
	nodes, err := nodestore.NewStorage(options, kubeletclient.KubeletClientConfig{}, nil)
	if err != nil {
		return info, err
	}
	pods, err := podstore.NewStorage(options, nodes.KubeletConnectionInfo, nil, nil, p.authz)
	if err != nil {
		return info, err
	}
	s := info.VersionedResourcesStorageMap["v1"]
	if err := p.bindTokens(s, options, nodes.Node, pods.Pod); err != nil {
		return info, err
	}
	s["persistentvolumes"], s["persistentvolumes/status"] = volumes, volumeStatus
	s["persistentvolumeclaims"], s["persistentvolumeclaims/status"] = claims, claimStatus
	s["limitranges"] = limits
	s["nodes"], s["nodes/status"] = nodes.Node, nodes.Status
	s["pods"], s["pods/status"], s["pods/binding"] = pods.Pod, pods.Status, pods.Binding
	return info, nil
}

// bindTokens adds service account tokens that are bound to Pods and Nodes, which the
// generic part of the group does not support. Node agents request tokens for their Pods.
func (p coreProvider) bindTokens(
	s map[string]rest.Storage, options generic.RESTOptionsGetter, nodes, pods rest.Getter,
) error {
	secrets, ok := s["secrets"].(rest.Getter)
	if !ok {
		return errNoSecrets
	}
	accounts, err := accountstore.NewREST(options, p.ServiceAccountIssuer, p.APIAudiences, p.authz,
		p.ServiceAccountMaxExpiration, pods, secrets, nodes,
		none[*admissionregistrationv1.ValidatingWebhookConfiguration]{},
		none[*admissionregistrationv1.MutatingWebhookConfiguration]{}, false, 0)
	if err != nil {
		return err
	}
	for name, storage := range map[string]rest.Storage{
		"serviceaccounts": accounts, "serviceaccounts/token": accounts.Token,
	} {
		if unused, ok := s[name]; ok {
			unused.Destroy()
		}
		s[name] = storage
	}
	return nil
}

var errNoSecrets = errors.New("secrets cannot be read")

// none is an empty list of webhooks.
type none[T any] struct{}

// Get returns a NotFound error.
func (none[T]) Get(_ context.Context, name string, _ metav1.GetOptions) (T, error) {
	var webhook T
	return webhook, apierrors.NewNotFound(admissionregistrationv1.Resource("webhookconfigurations"), name)
}

// assembly is the state that the steps of building the server share.
type assembly struct {
	ca        *pki.Authority
	near      nearby
	config    *genericapiserver.Config
	etcd      *genericoptions.EtcdOptions
	factory   *serverstorage.DefaultStorageFactory
	informers informers.SharedInformerFactory
	crds      *extensions.CustomResourceDefinitions
	// identities authenticates requests and refuses anonymous ones.
	identities authenticator.Request
	// members manages the identities of nodes.
	members *membership.Members
	// bulk knows the large objects.
	bulk *spare.Bulk
}

// unmanaged is a storage that leaves out the managed fields of objects that this process creates: they would be half of
// a volume, and only server-side apply reads them. Kubernetes does not record who writes to an object without them
// until something is applied to it, and then attributes all existing fields to "before-first-apply".
//
// Objects of users keep their managed fields. When kubectl changes from apply to server-side apply, it takes over all
// fields of the manager that wrote its annotation; those of "before-first-apply" would include what controllers wrote,
// such as the claimRef of a volume, and the next apply would remove it.
type unmanaged struct{ storage.Interface }

// Create stores a new object.
func (u unmanaged) Create(ctx context.Context, key string, o, out runtime.Object, ttl uint64) error {
	if own(ctx) {
		if m, err := meta.Accessor(o); err == nil {
			m.SetManagedFields(nil)
		}
	}
	return u.Interface.Create(ctx, key, o, out, ttl)
}
