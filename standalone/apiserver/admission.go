package apiserver

import (
	"fmt"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	genericapiserver "k8s.io/apiserver/pkg/server"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	kubeadmission "k8s.io/kubernetes/pkg/controlplane/apiserver/admission"
	"k8s.io/kubernetes/pkg/quota/v1/install"
	"k8s.io/kubernetes/plugin/pkg/admission/limitranger"
	"k8s.io/kubernetes/plugin/pkg/admission/noderestriction"
	"k8s.io/kubernetes/plugin/pkg/admission/storage/persistentvolume/resize"
	"k8s.io/kubernetes/plugin/pkg/admission/storage/storageclass/setdefault"
	"k8s.io/kubernetes/plugin/pkg/admission/storage/storageobjectinuseprotection"

	"volplane.dev/volplane/internal/decide/room"
	"volplane.dev/volplane/standalone/apiserver/account"
	"volplane.dev/volplane/standalone/apiserver/guard"
	"volplane.dev/volplane/standalone/apiserver/hosts"
	"volplane.dev/volplane/standalone/apiserver/spare"
)

// admit returns the chain of admission plugins, in the order in which they get a request.
func admit(
	c *genericapiserver.Config, client kubernetes.Interface, inf informers.SharedInformerFactory, left func() room.Plan,
	bulk *spare.Bulk,
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
