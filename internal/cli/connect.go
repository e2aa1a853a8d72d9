package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"volplane.dev/volplane/internal/program"
)

var errNoServer = errors.New("no API server is configured: start one with 'volplane up', or set --kubeconfig or " +
	"$KUBECONFIG")

// flags are the flags that every command takes.
type flags struct {
	kubeconfig, context, namespace, dataDir string
	verbosity                               int
}

func (f *flags) register(c *cobra.Command) {
	p := c.PersistentFlags()
	p.StringVar(&f.kubeconfig, "kubeconfig", "",
		"path of the kubeconfig (default $KUBECONFIG, else that of the control plane on this host, else ~/.kube/config)")
	p.StringVar(&f.context, "context", "", "context of the kubeconfig to use")
	p.StringVarP(&f.namespace, "namespace", "n", "", "namespace of the request")
	p.StringVar(&f.dataDir, "data-dir", program.DataDir(),
		"data directory of the control plane on this host; set $VOLPLANE_DATA_DIR to change the default")
	p.IntVarP(&f.verbosity, "verbosity", "v", 0,
		"log verbosity: from 0 (errors and important events) to 9 (every request)")
}

// loader returns the reader of the kubeconfig: the one of --kubeconfig, else of
// $KUBECONFIG, else of the control plane on this host, else the user's own.
func (f *flags) loader() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.WarnIfAllMissing = false
	plane := filepath.Join(f.dataDir, "admin.kubeconfig")
	switch {
	case f.kubeconfig != "":
		rules.ExplicitPath = f.kubeconfig
	case os.Getenv(clientcmd.RecommendedConfigPathEnvVar) == "" && readable(plane):
		rules.ExplicitPath = plane
	}
	overrides := &clientcmd.ConfigOverrides{CurrentContext: f.context}
	overrides.Context.Namespace = f.namespace
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
}

func readable(path string) bool {
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	_ = file.Close()
	return true
}

// config returns the client configuration, without a client-side rate limit.
func (s *shell) config() (*rest.Config, error) {
	config, err := s.flags.loader().ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, errNoServer
	}
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	config.QPS, config.UserAgent = -1, "volplane/"+s.version
	return config, nil
}

// namespace returns the namespace of the request.
func (s *shell) namespace() (string, error) {
	ns, _, err := s.flags.loader().Namespace()
	if err != nil {
		return "", fmt.Errorf("read kubeconfig: %w", err)
	}
	return ns, nil
}

// client returns a typed client and the namespace of the request.
func (s *shell) client() (kubernetes.Interface, string, error) {
	config, err := s.config()
	if err != nil {
		return nil, "", err
	}
	ns, err := s.namespace()
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

// explain adds the next step to errors whose own text does not name it.
func (s *shell) explain(err error) string {
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
		return fmt.Sprintf("no API server answers at %s: %v; is the control plane running ('volplane up')?", host, dial.Err)
	case apierrors.IsUnauthorized(err):
		return err.Error() + "; the kubeconfig is not valid for this server, or not any more: use another one"
	}
	return err.Error()
}
