//go:build linux

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/flowcontrol"

	"volplane.dev/volplane/internal/door/mount8"
	"volplane.dev/volplane/internal/program"
	"volplane.dev/volplane/internal/sidecar"
)

// Run runs the program that was started under the name in argv[0]: one of upstream's sidecars, a helper of
// mount(8), a plugin of kubectl, or Main.
func Run(ctx context.Context, argv []string, s Streams, version string, p Programs) int {
	switch name := filepath.Base(argv[0]); {
	case slices.Contains(sidecar.Programs(), name):
		return Main(ctx, append([]string{name}, argv[1:]...), s, version, p)
	case name == PluginProgram:
		return WhyVolume(ctx, argv[1:], s, version)
	case name == mount8.MountProgram, name == mount8.UmountProgram:
		return mount8.Run(ctx, mountHost(s, version), name, argv[1:])
	case name == "csi-sidecars":
		return Main(ctx, append([]string{"controller"}, argv[1:]...), s, version, p)
	}
	return Main(ctx, argv[1:], s, version, p)
}

// sidecar runs the program in place of one of upstream's, with upstream's flags and exit codes.
func (s *shell) sidecar(ctx context.Context, r sidecar.Role, name string, args []string) int {
	o, without, err := r.Parse(name, args, os.Getenv)
	if errors.Is(err, sidecar.ErrHelp) {
		fmt.Fprint(s.Out, r.Help(name))
		return exitOK
	}
	if err == nil && o.Version {
		fmt.Fprintln(s.Out, name, s.version)
		return exitOK
	}
	if err == nil && !o.ProbeOnly {
		s.flags.verbosity, s.flags.logFormat = o.Verbosity, o.LogFormat
		if len(without) > 0 {
			s.log().Warn("some flags have no effect", "flags", strings.Join(without, ", "))
		}
		err = s.runSidecar(ctx, r, o)
	}
	if err == nil {
		return exitOK
	}
	fmt.Fprintf(s.Err, "error: %s\n", s.explain(err))
	var usage *sidecar.UsageError
	if errors.As(err, &usage) {
		return exitProblem
	}
	return exitError
}

// runSidecar runs a role until ctx ends.
func (s *shell) runSidecar(ctx context.Context, r sidecar.Role, o sidecar.Options) error {
	switch r {
	case sidecar.Registrar:
		return s.registrar(ctx, o.Registrar)
	case sidecar.Liveness:
		return s.liveness(ctx, o.Liveness)
	}
	config, err := sidecarConfig(o)
	if err != nil {
		return err
	}
	config.UserAgent = r.String() + "/volplane-" + s.version
	if r == sidecar.SnapshotMetadata {
		return s.snapshotMetadata(ctx, o.SnapshotMetadata, config)
	}
	controllers := program.ControllersOptions{
		ControllersOptions: o.ControllersOptions, Config: config, Version: s.version, Log: s.log(),
	}
	controllers.Namespace = cmp.Or(o.Namespace, podNamespace(), "default")
	return s.programs.Controllers(ctx, controllers)
}

// sidecarConfig returns the configuration of a client: that of the flags, or else the Pod's, and never that of a person
// or of a control plane that happens to be on the host.
func sidecarConfig(o sidecar.Options) (*rest.Config, error) {
	var config *rest.Config
	var err error
	if o.Kubeconfig == "" && o.Master == "" {
		if config, err = rest.InClusterConfig(); errors.Is(err, rest.ErrNotInCluster) {
			return nil, errors.New("no API server is known: this is no Pod of a cluster; give --kubeconfig")
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
