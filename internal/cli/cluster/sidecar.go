package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/flowcontrol"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/process/options"
	"volplane.dev/volplane/internal/sidecar"
)

// RunSidecar runs the program in place of one of upstream's, with upstream's flags and exit codes.
func RunSidecar(ctx context.Context, s *shell.Shell, r sidecar.Role, name string, args []string) int {
	o, without, err := r.Parse(name, args, os.Getenv)
	if errors.Is(err, sidecar.ErrHelp) {
		fmt.Fprint(s.Out, r.Help(name))
		return shell.ExitOK
	}
	if err == nil && o.Version {
		fmt.Fprintln(s.Out, name, s.Version)
		return shell.ExitOK
	}
	if err == nil && !o.ProbeOnly {
		s.Flags.Verbosity, s.Flags.LogFormat = o.Verbosity, o.LogFormat
		if len(without) > 0 {
			s.Log().Warn("some flags have no effect", "flags", strings.Join(without, ", "))
		}
		err = runRole(ctx, s, r, o)
	}
	if err == nil {
		return shell.ExitOK
	}
	fmt.Fprintf(s.Err, "error: %s\n", s.Explain(err))
	var usage *sidecar.UsageError
	if errors.As(err, &usage) {
		return shell.ExitProblem
	}
	return shell.ExitError
}

// runRole runs a role until ctx ends.
func runRole(ctx context.Context, s *shell.Shell, r sidecar.Role, o sidecar.Options) error {
	switch r {
	case sidecar.Registrar:
		return registrar(ctx, s, o.Registrar)
	case sidecar.Liveness:
		return liveness(ctx, s, o.Liveness)
	}
	config, err := sidecarConfig(o)
	if err != nil {
		return err
	}
	config.UserAgent = r.String() + "/volplane-" + s.Version
	if r == sidecar.SnapshotMetadata {
		return snapshotMetadata(ctx, s, o.SnapshotMetadata, config)
	}
	controllers := options.ControllersOptions{
		ControllersOptions: o.ControllersOptions, Config: config, Version: s.Version, Log: s.Log(),
	}
	controllers.Namespace = cmp.Or(o.Namespace, podNamespace(), "default")
	return s.Programs.Controllers(ctx, controllers)
}

// sidecarConfig returns the configuration of a client: that of the flags, or else the Pod's, and never that of a person
// or of a control plane that happens to be on the host.
func sidecarConfig(o sidecar.Options) (*rest.Config, error) {
	var config *rest.Config
	var err error
	if o.Kubeconfig == "" && o.Master == "" {
		if config, err = rest.InClusterConfig(); errors.Is(err, rest.ErrNotInCluster) {
			return nil, errors.New("no API server is known: this process does not run in a Pod; set --kubeconfig")
		}
	} else {
		config, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
			&clientcmd.ClientConfigLoadingRules{ExplicitPath: o.Kubeconfig},
			&clientcmd.ConfigOverrides{ClusterInfo: clientcmdapi.Cluster{Server: o.Master}}).ClientConfig()
	}
	if err != nil {
		return nil, fmt.Errorf("configuration of the client: %w", err)
	}
	limit(config, o)
	return config, nil
}

// limit sets the requested limits of requests to the API server. The API server has its own limits. All clients
// that are created from the configuration share one limiter, so that the numbers apply to the process.
func limit(config *rest.Config, o sidecar.Options) {
	config.QPS = -1
	if o.QPS > 0 || o.QPS == 0 && o.Burst > 0 {
		config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(cmp.Or(o.QPS, rest.DefaultQPS),
			cmp.Or(max(o.Burst, 0), rest.DefaultBurst))
	}
}

// podNamespace returns the namespace of the Pod in which this process runs; empty outside of one.
func podNamespace() string {
	text, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}
