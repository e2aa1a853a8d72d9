package shell

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"volplane.dev/volplane/internal/process/options"
	"volplane.dev/volplane/internal/sidecar"
)

// ErrNoServer says that no API server is configured.
var ErrNoServer = errors.New("no API server is configured: start one with 'volplane up', or set --kubeconfig or " +
	"$KUBECONFIG")

// Flags are the flags that every command takes.
type Flags struct {
	Kubeconfig, context, Namespace, DataDir string
	Verbosity                               int
	// LogFormat is "json" for a log of JSON objects.
	LogFormat string
	// Named says whether --data-dir was given, which names a control plane.
	Named func() bool
	// Kubectl are the flags of a plugin of kubectl, which finds its server as kubectl does; nil elsewhere.
	Kubectl *Kubectl
}

// Register adds the flags to all commands below one.
func (f *Flags) Register(c *cobra.Command) {
	p := c.PersistentFlags()
	p.StringVar(&f.Kubeconfig, "kubeconfig", "",
		"path of the kubeconfig (default that of --data-dir, else $KUBECONFIG, else that of the control plane on this "+
			"host, else ~/.kube/config)")
	p.StringVar(&f.context, "context", "", "context of the kubeconfig to use")
	p.StringVarP(&f.Namespace, "namespace", "n", "", "namespace of the request")
	p.StringVar(&f.DataDir, "data-dir", options.DataDir(),
		"data directory of the control plane on this host; set $VOLPLANE_DATA_DIR to change the default")
	named := p.Lookup("data-dir")
	f.Named = func() bool { return named.Changed }
	p.IntVarP(&f.Verbosity, "verbosity", "v", 0, sidecar.VerbosityUsage)
	p.StringVar(&f.LogFormat, "logging-format", "text", sidecar.LogFormatUsage)
}

// loader returns the reader of the kubeconfig: the one of --kubeconfig, else of the control plane in --data-dir, else
// of $KUBECONFIG, else of the control plane on this host, else the user's own.
func (f *Flags) loader() clientcmd.ClientConfig {
	if f.Kubectl != nil {
		return f.Kubectl.loader()
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.WarnIfAllMissing = false
	rules.ExplicitPath = f.Explicit()
	overrides := &clientcmd.ConfigOverrides{CurrentContext: f.context}
	overrides.Context.Namespace = f.Namespace
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
}

// Explicit is the path of the kubeconfig that is meant whatever the usual ones say; empty if those are read.
func (f *Flags) Explicit() string {
	switch {
	case f.Kubeconfig != "":
		return f.Kubeconfig
	case f.Named() || os.Getenv(clientcmd.RecommendedConfigPathEnvVar) == "" && readable(f.Plane()):
		return f.Plane()
	}
	return ""
}

// File returns the absolute path of the kubeconfig that loader reads; empty if there are several, or none.
func (f *Flags) File() string {
	path := f.Explicit()
	if path == "" {
		all := slices.DeleteFunc(clientcmd.NewDefaultClientConfigLoadingRules().Precedence, func(path string) bool {
			return !readable(path)
		})
		if len(all) != 1 {
			return ""
		}
		path = all[0]
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return ""
	}
	return path
}

// Plane is the path of the kubeconfig of the control plane on this host.
func (f *Flags) Plane() string { return filepath.Join(f.DataDir, "admin.kubeconfig") }

// check refuses what would reach another API server than the one that is meant, or none, and says what is wrong.
func (f *Flags) check() error {
	env := os.Getenv(clientcmd.RecommendedConfigPathEnvVar)
	switch _, err := os.Stat(f.Plane()); {
	case f.Kubectl != nil || f.Kubeconfig != "":
		return nil
	case f.Named() && errors.Is(err, os.ErrNotExist):
		return &noServerError{fmt.Sprintf("there is no control plane in %s: start it with 'volplane up --data-dir %s', "+
			"or name another one with --kubeconfig", f.DataDir, f.DataDir)}
	case f.Named() || env == "":
		if errors.Is(err, os.ErrPermission) || err == nil && !readable(f.Plane()) {
			return &noServerError{fmt.Sprintf("the files of the control plane in %s may not be read: use sudo, or name a "+
				"file that you may read with --kubeconfig or $KUBECONFIG", f.DataDir)}
		}
		return nil
	}
	for _, path := range filepath.SplitList(env) {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			return nil
		}
	}
	return &noServerError{fmt.Sprintf("$KUBECONFIG names %s, which does not exist", env)}
}

// noServerError says why no API server is configured.
type noServerError struct{ text string }

func (e *noServerError) Error() string { return e.text }

// Is makes it an ErrNoServer, for commands that can do without.
func (e *noServerError) Is(other error) bool { return other == ErrNoServer }

func readable(path string) bool {
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	_ = file.Close()
	return true
}

// Config returns the client configuration, without a client-side rate limit.
func (s *Shell) Config() (*rest.Config, error) {
	if err := s.Flags.check(); err != nil {
		return nil, err
	}
	config, err := s.Flags.loader().ClientConfig()
	if clientcmd.IsEmptyConfig(err) && s.Flags.Kubectl != nil {
		return nil, errNoKubeconfig
	}
	if clientcmd.IsEmptyConfig(err) {
		return nil, ErrNoServer
	}
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	config.QPS, config.UserAgent = -1, "volplane/"+s.Version
	if s.Reach != nil {
		s.Reach(config)
	}
	return config, nil
}

// Namespace returns the namespace of the request.
func (s *Shell) Namespace() (string, error) {
	ns, _, err := s.Flags.loader().Namespace()
	if err != nil {
		return "", fmt.Errorf("read kubeconfig: %w", err)
	}
	return ns, nil
}

// Client returns a typed client and the namespace of the request.
func (s *Shell) Client() (kubernetes.Interface, string, error) {
	config, err := s.Config()
	if err != nil {
		return nil, "", err
	}
	ns, err := s.Namespace()
	if err != nil {
		return nil, "", err
	}
	// Protobuf is decoded several times as fast as JSON.
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf,
		runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, "", fmt.Errorf("client: %w", err)
	}
	return client, ns, nil
}

// Explain adds the next step to errors whose own text does not name it.
func (s *Shell) Explain(err error) string {
	var server *url.Error
	var dial *net.OpError
	switch {
	case errors.Is(err, context.Canceled):
		return "interrupted"
	case errors.As(err, &server) && errors.As(err, &dial) && dial.Op == "dial":
		host := server.URL
		if u, bad := url.Parse(server.URL); bad == nil {
			host = u.Host
		}
		text := fmt.Sprintf("no API server answers at %s: %v", host, dial.Err)
		if s.Flags.Kubectl != nil {
			return text
		}
		return text + "; is the control plane running ('volplane up')?"
	case apierrors.IsUnauthorized(err):
		return err.Error() + "; the kubeconfig is not valid for this server, or not any more: use another one"
	}
	return err.Error()
}

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
