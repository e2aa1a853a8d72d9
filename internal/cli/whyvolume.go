package cli

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/clientcmd"
)

// PluginProgram is the name by which kubectl finds the program for `kubectl why-volume`.
const PluginProgram = "kubectl-why_volume"

// pluginCommand is what its user types.
const pluginCommand = "kubectl why-volume"

var errNoKubeconfig = errors.New("no API server is configured: set --kubeconfig or $KUBECONFIG, as for kubectl")

// WhyVolume runs `volplane why` as a plugin of kubectl, with all flags by which kubectl finds a server and a user.
func WhyVolume(ctx context.Context, args []string, s Streams, version string) int {
	sh := newShell(ctx, s, version, Programs{})
	return sh.execute(ctx, sh.whyVolumeCommand(), args)
}

// whyVolumeCommand returns the command why as one that stands alone.
func (s *shell) whyVolumeCommand() *cobra.Command {
	c := s.whyCommand()
	typed := strings.NewReplacer("volplane why", pluginCommand, "volplane get", "kubectl get")
	c.Use = strings.Replace(c.Use, "why", "why-volume", 1)
	c.Long, c.Example = typed.Replace(c.Long), typed.Replace(c.Example)
	c.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: pluginCommand}
	c.Version = s.version
	c.SilenceErrors, c.SilenceUsage = true, true
	c.PersistentPreRunE = s.quiet
	s.flags.kubectl = &kubectlFlags{}
	f := c.Flags()
	s.flags.kubectl.register(f)
	f.IntVarP(&s.flags.verbosity, "v", "v", 0, "log verbosity: from 0 (none) to 7 (every request)")
	run := c.RunE
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if err := run(cmd, args); err != nil {
			return s.asTyped(err, typed)
		}
		return nil
	}
	return c
}

// asTyped returns an error whose text names the command that its user has typed.
func (s *shell) asTyped(err error, typed *strings.Replacer) error {
	if text := typed.Replace(err.Error()); text != err.Error() {
		return errors.New(text)
	}
	return err
}

// kubectlFlags are those by which kubectl finds a server, and a user for it.
type kubectlFlags struct {
	kubeconfig string
	overrides  clientcmd.ConfigOverrides
	// extra are KEY=VALUE of the user to be.
	extra []string
}

func (k *kubectlFlags) register(f *pflag.FlagSet) {
	names := clientcmd.RecommendedConfigOverrideFlags("")
	names.ClusterOverrideFlags.APIServer.ShortName, names.ContextOverrideFlags.Namespace.ShortName = "s", "n"
	clientcmd.BindOverrideFlags(&k.overrides, f, names)
	f.StringVar(&k.kubeconfig, clientcmd.RecommendedConfigPathFlag, "", "path of the kubeconfig")
	f.StringArrayVar(&k.extra, "as-user-extra", nil, "KEY=VALUE of the user to impersonate; repeat it for more of them")
	f.String("cache-dir", "", "has no effect: nothing is cached")
}

// loader returns the reader of the kubeconfig: that of --kubeconfig, else of $KUBECONFIG, else the user's own.
func (k *kubectlFlags) loader() clientcmd.ClientConfig {
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
