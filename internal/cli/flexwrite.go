package cli

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	decide "volplane.dev/volplane/internal/decide/flex"
	"volplane.dev/volplane/internal/flex"
	"volplane.dev/volplane/internal/manifest"
)

func (s *shell) flexInitCommand() *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use:   "init NAME",
		Short: "Write a driver to begin with, and its test",
		Long: `Write a driver to begin with, which works, and its test into a directory. Then
make it mount your storage, and try it with 'sh test.sh'.`,
		Example: `  volplane flex init example.com/files`,
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			paths, err := flex.Skeleton(args[0], dir)
			if err != nil {
				return err
			}
			fmt.Fprintf(s.Out, "wrote %s\ntry it, as root: sh %s\n", strings.Join(paths, " and "), paths[len(paths)-1])
			return nil
		},
	}
	c.Flags().StringVar(&dir, "dir", "", "where to (default a directory of the driver's name)")
	_ = c.MarkFlagDirname("dir")
	return c
}

func (s *shell) flexManifestCommand() *cobra.Command {
	var m manifest.Flex
	c := &cobra.Command{
		Use:   "manifest NAME --image IMAGE",
		Short: "Print a DaemonSet that installs a driver on each node of a cluster",
		Long: `Print a DaemonSet that installs a driver on each node of a Kubernetes cluster
and keeps it there. The image holds the driver, and this program in its PATH; the
plugin directory is the one in which the kubelets of the nodes look.`,
		Example: `  volplane flex manifest example.com/lofs --image registry.example.com/lofs:1 | kubectl apply -f -
  volplane flex manifest example.com/lofs --image lofs:1 --dir /etc/kubernetes/volumeplugins -n storage`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return s.flexManifest(args[0], m) },
	}
	f := c.Flags()
	f.StringVar(&m.Image, "image", "", "image that holds the driver, and this program in its PATH")
	f.StringVar(&m.Source, "source", "", "driver in the image (default /DRIVER)")
	f.StringVar(&m.Dir, "dir", flex.Dir, "plugin directory of the nodes")
	f.StringVar(&m.PayloadDir, "payload-dir", "", "directory of the nodes for drivers of several files")
	f.StringVar(&m.SELinuxType, "selinux-type", "", "type that the container runs as where SELinux is enforced, as spc_t")
	_ = c.MarkFlagRequired("image")
	return c
}

func (s *shell) flexManifest(driver string, m manifest.Flex) error {
	name, err := decide.ParseName(driver)
	if err != nil {
		return fmt.Errorf("driver %q: want VENDOR/DRIVER, as example.com/lofs: %w", driver, err)
	}
	if m.CSI, err = name.CSI(); err != nil {
		return err
	}
	m.Driver, m.Source = name.String(), cmp.Or(m.Source, "/"+name.Driver)
	// The namespace of claims is none for what runs as root on nodes.
	m.Namespace = cmp.Or(s.flags.namespace, "kube-system")
	objects, err := manifest.FlexObjects(m)
	if err != nil {
		return err
	}
	return s.printYAML(objects)
}
