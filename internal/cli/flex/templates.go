package flex

import (
	"cmp"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"volplane.dev/volplane/internal/cli/shell"
	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/flex/install"
	"volplane.dev/volplane/internal/sidecar/manifest"
)

func initCommand(s *shell.Shell) *cobra.Command {
	var attach bool
	c := s.InitCommand(install.Languages(), func(name, dir, language string) ([]string, error) {
		return install.Skeleton{Name: name, Language: language, Attach: attach}.Write(dir)
	})
	c.Short = "Write a driver to start from, and its test"
	c.Long = `Write a working driver and its test into a directory. Change the driver so that
it mounts your storage, and test it with 'sh test.sh'. With --attach the driver
attaches a volume to one node at a time, and mounts it once for the node.

A driver in Go is built by its test.`
	c.Example = `  volplane flex init example.com/files
  volplane flex init example.com/files --language python --attach`
	c.Flags().BoolVar(&attach, "attach", false, "write a driver that attaches")
	return c
}

func manifestCommand(s *shell.Shell) *cobra.Command {
	var m manifest.Flex
	c := &cobra.Command{
		Use:   "manifest NAME --image IMAGE",
		Short: "Print a DaemonSet that installs a driver on each node of a cluster",
		Long: `Print a DaemonSet that installs a driver on each node of a Kubernetes cluster
and keeps it installed. The image contains the driver, and this program in its
PATH; the plugin directory is that of the kubelets.`,
		Example: `  volplane flex manifest example.com/lofs --image registry.example.com/lofs:1 | kubectl apply -f -
  volplane flex manifest example.com/lofs --image lofs:1 --dir /etc/kubernetes/volumeplugins -n storage`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return printManifest(s, args[0], m) },
	}
	f := c.Flags()
	f.StringVar(&m.Image, "image", "", "image with the driver, and with this program in its PATH")
	f.StringVar(&m.Source, "source", "", "path of the driver in the image (default /DRIVER)")
	f.StringVar(&m.Dir, "dir", install.Default, "plugin directory on the nodes")
	f.StringVar(&m.PayloadDir, "payload-dir", "", "directory on the nodes for drivers of several files")
	f.StringVar(&m.SELinuxType, "selinux-type", "", "SELinux type of the container, such as spc_t")
	_ = c.MarkFlagRequired("image")
	return c
}

func policyCommand(s *shell.Shell) *cobra.Command {
	return &cobra.Command{
		Use:   "policy",
		Short: "Print the admission policy that says who may name a driver in a Pod",
		Long: `Print a ValidatingAdmissionPolicy for a Kubernetes cluster, with its binding. With it,
a Pod may name a FlexVolume driver, as flexVolume or as the CSI driver that a bridge
serves, only if the user who creates the Pod, or the Pod's service account, has the
verb "use" on flexdrivers/NAME in the API group volplane.dev. 'volplane up' asks for
this right without a policy.`,
		Example: `  volplane flex policy | kubectl apply -f -
  kubectl create role flex --verb use --resource flexdrivers.volplane.dev --resource-name example.com/lofs -n web`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := io.WriteString(s.Out, manifest.FlexPolicy)
			return err
		},
	}
}

func printManifest(s *shell.Shell, driver string, m manifest.Flex) error {
	name, err := decide.ParseName(driver)
	if err != nil {
		return fmt.Errorf("driver %q: want VENDOR/DRIVER, such as example.com/lofs: %w", driver, err)
	}
	if m.CSI, err = name.CSI(); err != nil {
		return err
	}
	m.Driver, m.Source = name.String(), cmp.Or(m.Source, "/"+name.Driver)
	// A DaemonSet that runs as root on nodes does not belong in a user's namespace.
	m.Namespace = cmp.Or(s.Flags.Namespace, "kube-system")
	objects, err := manifest.FlexObjects(m)
	if err != nil {
		return err
	}
	return s.Print(manifest.YAML(objects))
}
