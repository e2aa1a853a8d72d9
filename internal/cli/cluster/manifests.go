package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/sidecar"
	"volplane.dev/volplane/internal/sidecar/manifest"
	"volplane.dev/volplane/internal/volume"
)

// ManifestsCommand returns the command 'manifests'.
func ManifestsCommand(s *shell.Shell) *cobra.Command {
	m := manifestFlags{Options: manifest.Defaults()}
	c := &cobra.Command{
		Use:   "manifests --driver NAME --driver-image IMAGE --image IMAGE",
		Short: "Print the manifests of a CSI driver for a cluster",
		Long: `Print the manifests with which a CSI driver runs in a Kubernetes cluster: the
driver with 'volplane controller', and on every node the driver with 'volplane
registrar', with exactly the rights that the controllers declare. The driver's
arguments may contain $(CSI_ENDPOINT), the address of its socket, and
$(NODE_NAME).

With --from-cluster they suit a driver that is installed already: its CSIDriver,
namespace and socket directory are kept, and the work of its sidecars with their
arguments; what is not, and what follows, is said on standard error. Without it, the cluster is not asked.`,
		Example: `  volplane manifests --driver csi.example.com --driver-image example.com/driver:1.0 \
      --image example.com/volplane:1.0 | kubectl apply -f -
  volplane manifests --driver csi.example.com --driver-image example.com/driver:1.0 \
      --image example.com/volplane:1.0 --from-cluster >driver.yaml`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			m.given = c.Flags().Changed
			return printManifests(c.Context(), s, m)
		},
	}
	m.register(c, s.Programs.DriverControllers)
	return c
}

func printManifests(ctx context.Context, s *shell.Shell, m manifestFlags) error {
	if err := checkRoles(s, m.Controllers); err != nil {
		return err
	}
	if err := m.parse(); err != nil {
		return err
	}
	m.Namespace = s.Flags.Namespace
	if m.fromCluster {
		if err := takeOver(ctx, s, &m); err != nil {
			return err
		}
	}
	o := m.Options
	if o.Namespace == "" {
		o.Namespace = manifest.Base(o.Driver)
		o.OwnNamespace = true
	}
	if m.given("create-namespace") {
		o.OwnNamespace = m.createNamespace
	}
	if o.Shape != manifest.Deployment && !m.given("replicas") {
		o.Replicas = 1
	}
	rights, err := onlySecrets(slices.Concat(
		s.Programs.Rights(withRights(o), o.Driver, o.Namespace, o.Elects(), o.NodeDeployment), withGates(o)), m.secrets)
	if err != nil {
		return err
	}
	o.RBAC = kube.Roles(o.RoleName(), rights, kube.ServiceAccount(o.Namespace, o.Account()))
	objects, err := manifest.Objects(o)
	if err != nil {
		return err
	}
	return s.Print(manifest.YAML(objects))
}

// withRights returns what needs rights: the controllers, also the one that an argument of another starts, and what
// serves changed blocks.
func withRights(o manifest.Options) []string {
	const flag = "--health-monitor-enable-node-watcher"
	out := slices.Clone(o.Controllers)
	if slices.Contains(o.ControllerArgs, flag) || slices.Contains(o.ControllerArgs, flag+"=true") {
		out = append(out, "nodewatcher")
	}
	if o.Blocks != nil {
		out = append(out, "snapshot-metadata")
	}
	return out
}

// withGates returns the rights that controllers need only if a feature gate is on.
func withGates(o manifest.Options) []kube.Access {
	on := sidecar.GatesIn(o.ControllerArgs)["CrossNamespaceVolumeDataSource"]
	if !on || !slices.Contains(o.Controllers, "provisioner") {
		return nil
	}
	return []kube.Access{kube.Write(volume.GroupGateway, volume.ResourceGrants, "list")}
}

// onlySecrets restricts the right to read Secrets to the named ones.
func onlySecrets(rights []kube.Access, named []string) ([]kube.Access, error) {
	if slices.Equal(named, []string{"*"}) {
		return rights, nil
	}
	in := map[string][]string{}
	for _, n := range named {
		namespace, name, ok := strings.Cut(n, "/")
		if !ok || namespace == "" || name == "" || strings.ContainsAny(n, "*") {
			return nil, fmt.Errorf("--secrets %q: use NAMESPACE/NAME, or * alone", n)
		}
		in[namespace] = append(in[namespace], name)
	}
	var out []kube.Access
	for _, a := range rights {
		if a.Group != "" || a.Resource != "secrets" {
			out = append(out, a)
			continue
		}
		for _, namespace := range slices.Sorted(maps.Keys(in)) {
			out = append(out, kube.Access{Resource: a.Resource, Verbs: a.Verbs, Namespace: namespace, Names: in[namespace]})
		}
	}
	return out, nil
}
