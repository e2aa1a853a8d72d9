package apiserver

import (
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/emicklei/go-restful/v3"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	extensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	extensionsoptions "k8s.io/apiextensions-apiserver/pkg/cmd/server/options"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	genericfilters "k8s.io/apiserver/pkg/endpoints/filters"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/filters"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/util/notfoundhandler"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/common/restfuladapter"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"volplane.dev/volplane/internal/decide/room"
	"volplane.dev/volplane/standalone/apiserver/membership"
	"volplane.dev/volplane/standalone/apiserver/openapi"
	"volplane.dev/volplane/standalone/apiserver/spare"
	"volplane.dev/volplane/standalone/etcd"
	"volplane.dev/volplane/standalone/pki"
)

// resync is the resync period of the server's own informers; nothing depends on it.
const resync = 10 * time.Hour

// assemble builds the server without starting it. The channel ready is closed when the
// authorizer has read the roles.
func assemble(
	ca *pki.Authority, l net.Listener, db *etcd.Server, sealing string, o Options, ready <-chan struct{},
) (*assembly, *genericapiserver.GenericAPIServer, error) {
	a := &assembly{ca: ca, config: genericapiserver.NewConfig(legacyscheme.Codecs)}
	c := a.config
	c.MergedResourceConfig = served()
	c.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	c.FeatureGate = utilfeature.DefaultFeatureGate
	c.EnableProfiling = false
	c.LongRunningFunc = filters.BasicLongRunningRequestCheck(sets.NewString("watch"), sets.NewString())
	c.AggregatedDiscoveryGroupManager = aggregated.NewResourceManager("apis")
	if err := serve(c, ca, l, o.Names); err != nil {
		return nil, nil, err
	}
	client, err := kubernetes.NewForConfig(c.LoopbackClientConfig)
	if err != nil {
		return nil, nil, fmt.Errorf("loopback client: %w", err)
	}
	a.informers = informers.NewSharedInformerFactory(client, resync)
	if a.etcd, a.factory, err = store(c,
		place{endpoint: db.Endpoint(), sealing: sealing, collects: o.Collects}); err != nil {
		return nil, nil, err
	}
	a.members = membership.New(ca, client)
	if a.identities, err = authenticate(c, ca, a.informers, a.members); err != nil {
		return nil, nil, err
	}
	if err := authorize(c, a.informers, a.members, ready); err != nil {
		return nil, nil, err
	}
	c.BuildHandlerChainFunc = func(h http.Handler, c *genericapiserver.Config) http.Handler {
		return genericapiserver.DefaultBuildHandlerChain(a.members.Guard(h), c)
	}
	a.bulk = spare.NewBulk(registryPrefix)
	if err := admit(c, client, a.informers, func() room.Plan { _, p := db.Room(); return p }, a.bulk); err != nil {
		return nil, nil, err
	}
	namer := openapinamer.NewDefinitionNamer(legacyscheme.Scheme, extensions.Scheme)
	c.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(openapi.GetOpenAPIDefinitions, namer)
	c.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(openapi.GetOpenAPIDefinitions, namer)
	return a.complete()
}

func (a *assembly) complete() (*assembly, *genericapiserver.GenericAPIServer, error) {
	var err error
	if a.crds, err = a.extensions(); err != nil {
		return nil, nil, err
	}
	server, err := a.config.Complete(a.informers).New("volplane", a.crds.GenericAPIServer)
	if err != nil {
		return nil, nil, fmt.Errorf("assemble server: %w", err)
	}
	return a, server, a.install(server)
}

// serve configures the listener, the certificate and the loopback client of the server.
func serve(c *genericapiserver.Config, ca *pki.Authority, l net.Listener, more []string) error {
	address, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return fmt.Errorf("listener at %s is not a TCP listener", l.Addr())
	}
	hosts, err := names(address.IP)
	if err != nil {
		return err
	}
	// The server's own client knows it by a name of its own.
	leaf, err := ca.Server(append(hosts, append(more, genericapiserver.LoopbackClientServerNameOverride)...)...)
	if err != nil {
		return err
	}
	cert, err := dynamiccertificates.NewStaticCertKeyContent("serving", leaf.Cert, leaf.Key)
	if err != nil {
		return fmt.Errorf("serving certificate: %w", err)
	}
	o := genericoptions.NewSecureServingOptions()
	o.BindAddress, o.BindPort, o.Listener = address.IP, address.Port, l
	o.ServerCert.GeneratedCert = cert
	o.CipherSuites = cipherSuites()
	c.PublicAddress, c.ExternalAddress = address.IP, address.String()
	if err := o.ApplyTo(&c.SecureServing); err != nil {
		return fmt.Errorf("serving at %s: %w", address, err)
	}
	// Kubernetes makes an authority with RSA keys for this client at every start, which takes longer than all else.
	if c.LoopbackClientConfig, err = c.SecureServing.NewLoopbackClientConfig(rand.Text(), ca.CertPEM()); err != nil {
		return fmt.Errorf("loopback client: %w", err)
	}
	c.LoopbackClientConfig.ContentType = mediaType
	c.LoopbackClientConfig.DisableCompression = true
	return nil
}

// cipherSuites returns the suites of TLS 1.2 and 1.3 that authenticate what they encrypt: those of Go have four of CBC
// with SHA-1, which scanners report.
func cipherSuites() (all []string) {
	for _, s := range tls.CipherSuites() {
		if !strings.Contains(s.Name, "_CBC_") {
			all = append(all, s.Name)
		}
	}
	return all
}

// names returns the names for the certificate of a server that listens at ip. For a
// server that listens at all addresses, they include the host's name and addresses.
func names(ip net.IP) ([]string, error) {
	all := []string{"localhost", "kubernetes", "kubernetes.default.svc", "127.0.0.1", "::1", ip.String()}
	if !ip.IsUnspecified() {
		return all, nil
	}
	if name, err := os.Hostname(); err == nil {
		all = append(all, strings.ToLower(name))
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("addresses of this host: %w", err)
	}
	for _, a := range own {
		if n, ok := a.(*net.IPNet); ok {
			all = append(all, n.IP.String())
		}
	}
	return all, nil
}

// describe adds CustomResourceDefinitions and their resources to the server's
// /openapi/v3. Each of the two servers describes only its own groups, and there is no
// aggregator that would merge the descriptions. Call describe after PrepareRun, which
// creates the descriptions, and before the hooks run.
func (a *assembly) describe(server *genericapiserver.GenericAPIServer) error {
	crds := a.crds.GenericAPIServer
	for _, ws := range crds.Handler.GoRestfulContainer.RegisteredWebServices() {
		path := strings.TrimPrefix(ws.RootPath(), "/")
		if path != "apis/"+apiextensionsv1.SchemeGroupVersion.String() {
			continue
		}
		spec, err := builder3.BuildOpenAPISpecFromRoutes(restfuladapter.AdaptWebServices([]*restful.WebService{ws}),
			a.config.OpenAPIV3Config)
		if err != nil {
			return fmt.Errorf("describe custom resources: %w", err)
		}
		server.OpenAPIV3VersionedService.UpdateGroupVersion(path, spec)
	}
	crds.OpenAPIV3VersionedService = server.OpenAPIV3VersionedService
	// Its OpenAPI v2 description is not reachable.
	crds.OpenAPIVersionedService = nil
	return nil
}

// extensions returns the server of CustomResourceDefinitions, to which the main server
// delegates.
func (a *assembly) extensions() (*extensions.CustomResourceDefinitions, error) {
	c := *a.config
	c.PostStartHooks = map[string]genericapiserver.PostStartHookConfigEntry{}
	c.RESTOptionsGetter = nil
	etcd := *a.etcd
	version := apiextensionsv1.SchemeGroupVersion
	etcd.StorageConfig.Codec = extensions.Codecs.LegacyCodec(version)
	etcd.StorageConfig.EncodeVersioner = runtime.NewMultiGroupVersioner(version, schema.GroupKind{Group: version.Group})
	etcd.SkipHealthEndpoints = true
	if err := etcd.ApplyTo(&c); err != nil {
		return nil, fmt.Errorf("storage of custom resources: %w", err)
	}
	c.MergedResourceConfig = extensions.DefaultAPIResourceConfigSource()
	config := &extensions.Config{
		GenericConfig: &genericapiserver.RecommendedConfig{Config: c, SharedInformerFactory: a.informers},
		ExtraConfig: extensions.ExtraConfig{
			CRDRESTOptionsGetter: extensionsoptions.NewCRDRESTOptionsGetter(etcd, c.ResourceTransformers,
				c.StorageObjectCountTracker),
			MasterCount:         1,
			AuthResolverWrapper: webhook.NewDefaultAuthenticationInfoResolverWrapper(nil, nil, c.LoopbackClientConfig, nil),
			ServiceResolver:     webhook.NewDefaultServiceResolver(),
		},
	}
	notFound := notfoundhandler.New(c.Serializer, genericfilters.NoMuxAndDiscoveryIncompleteKey)
	s, err := config.Complete().New(genericapiserver.NewEmptyDelegateWithCustomHandler(notFound))
	if err != nil {
		return nil, fmt.Errorf("serve custom resources: %w", err)
	}
	return s, nil
}
