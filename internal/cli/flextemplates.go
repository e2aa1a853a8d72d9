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
	var dir, language string
	var attach bool
	c := &cobra.Command{
		Use:   "init NAME",
		Short: "Write a driver to start from, and its test",
		Long: `Write a working driver and its test into a directory. Change the driver so that
it mounts your storage, and test it with 'sh test.sh'. With --attach the driver
attaches a volume to one node at a time, and mounts it once for the node.

A driver in Go is built by its test.`,
		Example: `  volplane flex init example.com/files
  volplane flex init example.com/files --language python --attach`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			paths, err := flex.Skeleton(args[0], dir, language, attach)
			if err != nil {
				return err
			}
			fmt.Fprintf(s.Out, "wrote %s\ntry it, as root: sh %s\n", strings.Join(paths, " and "),
				paths[len(paths)-1])
			return nil
		},
	}
	c.Flags().StringVar(&dir, "dir", "", "directory to write to (default the name of the driver)")
	f := c.Flags()
	f.StringVar(&language, "language", flex.Languages()[0],
		"language of the driver: "+strings.Join(flex.Languages(), ", "))
	f.BoolVar(&attach, "attach", false, "write a driver that attaches")
	_ = c.MarkFlagDirname("dir")
	_ = c.RegisterFlagCompletionFunc("language",
		cobra.FixedCompletions(flex.Languages(), cobra.ShellCompDirectiveNoFileComp))
	return c
}

func (s *shell) flexManifestCommand() *cobra.Command {
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
		RunE: func(_ *cobra.Command, args []string) error { return s.flexManifest(args[0], m) },
	}
	f := c.Flags()
	f.StringVar(&m.Image, "image", "", "image with the driver, and with this program in its PATH")
	f.StringVar(&m.Source, "source", "", "path of the driver in the image (default /DRIVER)")
	f.StringVar(&m.Dir, "dir", flex.Dir, "plugin directory on the nodes")
	f.StringVar(&m.PayloadDir, "payload-dir", "", "directory on the nodes for drivers of several files")
	f.StringVar(&m.SELinuxType, "selinux-type", "", "SELinux type of the container, such as spc_t")
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
	// A DaemonSet that runs as root on nodes does not belong in a user's namespace.
	m.Namespace = cmp.Or(s.flags.namespace, "kube-system")
	objects, err := manifest.FlexObjects(m)
	if err != nil {
		return err
	}
	return s.printYAML(objects)
}
