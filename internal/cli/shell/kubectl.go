package shell

import (
	"errors"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/clientcmd"
)

var errNoKubeconfig = errors.New("no API server is configured: set --kubeconfig or $KUBECONFIG, as for kubectl")

// Kubectl are those by which kubectl finds a server, and a user for it.
type Kubectl struct {
	kubeconfig string
	overrides  clientcmd.ConfigOverrides
	// extra are KEY=VALUE of the user to be.
	extra []string
}

// Register adds the flags.
func (k *Kubectl) Register(f *pflag.FlagSet) {
	names := clientcmd.RecommendedConfigOverrideFlags("")
	names.ClusterOverrideFlags.APIServer.ShortName, names.ContextOverrideFlags.Namespace.ShortName = "s", "n"
	clientcmd.BindOverrideFlags(&k.overrides, f, names)
	f.StringVar(&k.kubeconfig, clientcmd.RecommendedConfigPathFlag, "", "path of the kubeconfig")
	f.StringArrayVar(&k.extra, "as-user-extra", nil, "KEY=VALUE of the user to impersonate; repeat it for more of them")
	f.String("cache-dir", "", "has no effect: nothing is cached")
}

// loader returns the reader of the kubeconfig: that of --kubeconfig, else of $KUBECONFIG, else the user's own.
func (k *Kubectl) loader() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath, rules.WarnIfAllMissing = k.kubeconfig, false
	overrides := k.overrides
	for _, e := range k.extra {
		if key, value, ok := strings.Cut(e, "="); ok {
			if overrides.AuthInfo.ImpersonateUserExtra == nil {
				overrides.AuthInfo.ImpersonateUserExtra = map[string][]string{}
			}
			key = strings.ToLower(key)
			overrides.AuthInfo.ImpersonateUserExtra[key] = append(overrides.AuthInfo.ImpersonateUserExtra[key], value)
		}
	}
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &overrides)
}
