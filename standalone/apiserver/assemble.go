package apiserver

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/emicklei/go-restful/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	extensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	extensionsoptions "k8s.io/apiextensions-apiserver/pkg/cmd/server/options"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	genericfilters "k8s.io/apiserver/pkg/endpoints/filters"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/server/mux"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/util/notfoundhandler"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/kube-openapi/pkg/builder"
	"k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/cached"
	"k8s.io/kube-openapi/pkg/common/restfuladapter"
	"k8s.io/kube-openapi/pkg/handler"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	kubeadmission "k8s.io/kubernetes/pkg/controlplane/apiserver/admission"
	"k8s.io/kubernetes/pkg/quota/v1/install"
	"k8s.io/kubernetes/plugin/pkg/admission/limitranger"
	"k8s.io/kubernetes/plugin/pkg/admission/noderestriction"
	"k8s.io/kubernetes/plugin/pkg/admission/storage/persistentvolume/resize"
	"k8s.io/kubernetes/plugin/pkg/admission/storage/storageclass/setdefault"
	"k8s.io/kubernetes/plugin/pkg/admission/storage/storageobjectinuseprotection"

	"volplane.dev/volplane/internal/decide/diskspace"
	"volplane.dev/volplane/standalone/apiserver/account"
	"volplane.dev/volplane/standalone/apiserver/guard"
	"volplane.dev/volplane/standalone/apiserver/hosts"
	"volplane.dev/volplane/standalone/apiserver/membership"
	"volplane.dev/volplane/standalone/apiserver/openapi"
	"volplane.dev/volplane/standalone/apiserver/spare"
	"volplane.dev/volplane/standalone/pki"
)

// resync is the resync period of the server's own informers; nothing depends on it.
const resync = 10 * time.Hour

// assemble builds the server without starting it.
func (s *Server) assemble(
	l net.Listener, sealing string, o Options,
) (*assembly, *genericapiserver.GenericAPIServer, error) {
	a := &assembly{ca: s.ca, near: s.near, config: genericapiserver.NewConfig(legacyscheme.Codecs)}
	c := a.config
	c.MergedResourceConfig = served()
	c.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	c.FeatureGate = utilfeature.DefaultFeatureGate
	c.EnableProfiling = false
	c.LongRunningFunc = filters.BasicLongRunningRequestCheck(sets.NewString("watch"), sets.NewString())
	c.AggregatedDiscoveryGroupManager = aggregated.NewResourceManager("apis")
	if err := serve(c, s.ca, l, o.Names); err != nil {
		return nil, nil, err
	}
	c.LoopbackClientConfig = s.ClientConfig(user.APIServerUser, user.SystemPrivilegedGroup)
	client, err := kubernetes.NewForConfig(c.LoopbackClientConfig)
	if err != nil {
		return nil, nil, fmt.Errorf("loopback client: %w", err)
	}
	a.informers = informers.NewSharedInformerFactoryWithOptions(client, resync, informers.WithTransform(o.Transform))
	if a.etcd, a.factory, err = configure(c, place{near: s.near, sealing: sealing, collects: o.Collects}); err != nil {
		return nil, nil, err
	}
	a.members = membership.New(s.ca, s.plane(o, sealing), client)
	if a.identities, err = authenticate(c, s.ca, a.informers, a.members); err != nil {
		return nil, nil, err
	}
	if err := authorize(c, a.informers, a.members, s.ready); err != nil {
		return nil, nil, err
	}
	c.BuildHandlerChainFunc = func(h http.Handler, c *genericapiserver.Config) http.Handler {
		return before(o.Services, genericapiserver.DefaultBuildHandlerChain(a.members.Guard(s.refuse(h)), c))
	}
	a.bulk = spare.NewBulk(s.store.prefix())
	if err := admit(c, client, a.informers, s.store.plan, a.bulk); err != nil {
		return nil, nil, err
	}
	namer := openapinamer.NewDefinitionNamer(legacyscheme.Scheme, extensions.Scheme)
	c.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(openapi.GetOpenAPIDefinitions, namer)
	c.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(openapi.GetOpenAPIDefinitions, namer)
	c.SkipOpenAPIInstallation = true // describe does it
	return a.complete()
}

// before returns a handler of the services and, for all other paths, of what is behind them.
func before(services map[string]http.Handler, behind http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for path, service := range services {
			if strings.HasPrefix(r.URL.Path, path) {
				service.ServeHTTP(w, r)
				return
			}
		}
		behind.ServeHTTP(w, r)
	})
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

// serve configures the listener and the certificate of the server.
func serve(c *genericapiserver.Config, ca *pki.Authority, l net.Listener, more []string) error {
	address, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return fmt.Errorf("listener at %s is not a TCP listener", l.Addr())
	}
	hosts, err := names(address.IP)
	if err != nil {
		return err
	}
	leaf, err := ca.Server(append(hosts, more...)...)
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
	return nil
}

// cipherSuites returns the suites of TLS 1.2 and 1.3 with authenticated encryption: Go's defaults include four with CBC
// and SHA-1, which scanners report.
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

// describe serves the descriptions at /openapi/v2, which is built on the first request because that takes long and
// kubectl uses v3, and at /openapi/v3, with CustomResourceDefinitions and their resources. Each of the two servers
// describes only its own groups, and there is no aggregator that would merge the descriptions. Call describe before the
// hooks run.
func (a *assembly) describe(server *genericapiserver.GenericAPIServer) error {
	container, paths := server.Handler.GoRestfulContainer, server.Handler.NonGoRestfulMux
	handler.NewOpenAPIServiceLazy(cached.Once(cached.Func(func() (*spec.Swagger, string, error) {
		all, err := builder.BuildOpenAPISpecFromRoutes(restfuladapter.AdaptWebServices(container.RegisteredWebServices()),
			a.config.OpenAPIConfig)
		if err != nil {
			return nil, "", fmt.Errorf("describe resources: %w", err)
		}
		all.Definitions = handler.PruneDefaults(all.Definitions)
		return all, "the only one", nil
	}))).RegisterOpenAPIVersionedService("/openapi/v2", paths)
	v3 := routes.OpenAPI{V3Config: a.config.OpenAPIV3Config}.InstallV3(container, paths)
	crds := a.crds.GenericAPIServer
	for _, ws := range crds.Handler.GoRestfulContainer.RegisteredWebServices() {
		path := strings.TrimPrefix(ws.RootPath(), "/")
		if path != "apis/"+apiextensionsv1.SchemeGroupVersion.String() {
			continue
		}
		described, err := builder3.BuildOpenAPISpecFromRoutes(restfuladapter.AdaptWebServices([]*restful.WebService{ws}),
			a.config.OpenAPIV3Config)
		if err != nil {
			return fmt.Errorf("describe custom resources: %w", err)
		}
		v3.UpdateGroupVersion(path, described)
	}
	// With these two it adds custom resources to v3. Its OpenAPI v2 description would not be reachable.
	crds.OpenAPIV3VersionedService, crds.StaticOpenAPISpec = v3, &spec.Swagger{}
	return nil
}

// extensions returns the server of CustomResourceDefinitions, to which the main server delegates.
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
	c.RESTOptionsGetter = a.near.options(c.RESTOptionsGetter)
	c.MergedResourceConfig = extensions.DefaultAPIResourceConfigSource()
	config := &extensions.Config{
		GenericConfig: &genericapiserver.RecommendedConfig{Config: c, SharedInformerFactory: a.informers},
		ExtraConfig: extensions.ExtraConfig{
			CRDRESTOptionsGetter: a.near.options(extensionsoptions.NewCRDRESTOptionsGetter(etcd, c.ResourceTransformers,
				c.StorageObjectCountTracker)),
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

// metricsPath is also where Kubernetes' API server has its metrics. Reading them requires a right to this path.
const metricsPath = "/metrics"

// scrapes is how many requests for metrics are answered at the same time.
const scrapes = 4

// serveMetrics serves other metrics together with those of the API server. A failure of one of them hides no other.
func serveMetrics(paths *mux.PathRecorderMux, others prometheus.Gatherer) {
	paths.Unregister(metricsPath)
	paths.Handle(metricsPath, promhttp.HandlerFor(prometheus.Gatherers{legacyregistry.DefaultGatherer, others},
		promhttp.HandlerOpts{
			ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: scrapes, EnableOpenMetrics: true,
		}))
}

// admit returns the chain of admission plugins, in the order in which they get a request.
func admit(
	c *genericapiserver.Config, client kubernetes.Interface, inf informers.SharedInformerFactory,
	left func() diskspace.Plan, bulk *spare.Bulk,
) error {
	plugins := admission.NewPlugins()
	lifecycle.Register(plugins)
	limitranger.Register(plugins)
	noderestriction.Register(plugins)
	setdefault.Register(plugins)
	storageobjectinuseprotection.Register(plugins)
	resize.Register(plugins)
	account.Register(plugins)
	guard.Register(plugins)
	hosts.Register(plugins)
	spare.Register(plugins, left, bulk, own)
	guard.RegisterData(plugins)
	resourcequota.Register(plugins)
	quotas, err := install.NewQuotaConfigurationForAdmission(inf, served())
	if err != nil {
		return fmt.Errorf("what quotas count: %w", err)
	}
	facts := admission.PluginInitializers{
		initializer.New(client, nil, inf, c.Authorization.Authorizer, utilfeature.DefaultFeatureGate, c.EffectiveVersion,
			c.DrainedNotify(), nil),
		kubeadmission.NewPluginInitializer(quotas, nil),
	}
	var chain []admission.Interface
	for _, name := range []string{
		lifecycle.PluginName, limitranger.PluginName, noderestriction.PluginName, setdefault.PluginName,
		storageobjectinuseprotection.PluginName, resize.PluginName, account.PluginName, guard.PluginName,
		hosts.PluginName, guard.DataPluginName, spare.PluginName,
		// Quota is last, because it counts an admitted object as used.
		resourcequota.PluginName,
	} {
		p, err := plugins.InitPlugin(name, nil, facts)
		if err != nil {
			return fmt.Errorf("admission plugin %s: %w", name, err)
		}
		chain = append(chain, p)
	}
	c.AdmissionControl = admission.NewChainHandler(chain...)
	return nil
}
