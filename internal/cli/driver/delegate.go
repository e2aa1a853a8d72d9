package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"volplane.dev/volplane/internal/cli/objects"
	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/doors"
	"volplane.dev/volplane/internal/hosting/driverfile"
	"volplane.dev/volplane/internal/volume"
)

func delegateCommand(s *shell.Shell) *cobra.Command {
	var none bool
	c := &cobra.Command{
		Use:   "delegate NAME NODE...",
		Short: "Let the hosts of nodes call the controller of a CSI driver",
		Long: `Let the hosts of nodes call the controller of a CSI driver whose storage all hosts
reach: they make, attach, grow and delete volumes of any node. One host at a time
does so, the control plane's or one of these; if it ends, another one goes on.
Each of them must have the driver's controller: see 'volplane driver add'.

Trust these hosts as you trust the driver: whoever is root there can answer in
its place for all its volumes. The nodes that are named replace those that were
named before; --none leaves the control plane's host alone.

Without this, a driver is called on the control plane's host only.`,
		Example: `  volplane driver delegate nfs.csi.k8s.io two three
  volplane driver delegate nfs.csi.k8s.io --none`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return errors.New("name a driver")
			case none != (len(args) == 1):
				return errors.New("name the nodes whose hosts may call the driver, or use --none")
			}
			return csi.CheckName(args[0])
		},
		ValidArgsFunction: completeDelegate(s),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, _, err := s.Client()
			if err != nil {
				return err
			}
			return delegate(cmd.Context(), s, client, args[0], args[1:])
		},
	}
	c.Flags().BoolVar(&none, "none", false, "no host but the control plane's")
	return c
}

func completeDelegate(s *shell.Shell) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		kind := "nodes"
		if len(args) == 0 {
			kind = "csidrivers"
		}
		return objects.Names(c.Context(), s, kind), cobra.ShellCompDirectiveNoFileComp
	}
}

func delegate(ctx context.Context, s *shell.Shell, client kubernetes.Interface, driver string, nodes []string) error {
	for _, n := range nodes {
		if _, err := client.CoreV1().Nodes().Get(ctx, n, metav1.GetOptions{}); err != nil {
			return fmt.Errorf("get node %s: %w", n, err)
		}
	}
	slices.Sort(nodes)
	nodes = slices.Compact(nodes)
	all, value := client.StorageV1().CSIDrivers(), volume.Delegation(nodes)
	done := "delegated to " + strings.Join(nodes, ", ")
	if value == "" {
		done = "called by the control plane only"
	}
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		d, err := all.Get(ctx, driver, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err) && value != "":
			// How the driver attaches is not known here. Requiring it is right for every driver.
			d = driverfile.Driver{Name: driver}.CSIDriver(csi.ControllerCapabilities{PublishUnpublish: true})
			metav1.SetMetaDataAnnotation(&d.ObjectMeta, volume.AnnControllers, value)
			_, err = all.Create(ctx, d, metav1.CreateOptions{FieldManager: doors.FieldManager})
			return err
		case err != nil:
			return err
		case volume.IsNodeLocal(d.Annotations):
			return fmt.Errorf("it is node-local: the host of each node calls its own instance already (annotation %s=%s)",
				volume.AnnControllers, volume.ControllersOnNodes)
		}
		return setDelegation(ctx, client, d, value)
	})
	if err != nil {
		return fmt.Errorf("delegate driver %s: %w", driver, err)
	}
	fmt.Fprintf(s.Out, "csidriver/%s %s\n", driver, done)
	return nil
}

func setDelegation(ctx context.Context, client kubernetes.Interface, d *storagev1.CSIDriver, value string) error {
	if d.Annotations[volume.AnnControllers] == value {
		return nil
	}
	metav1.SetMetaDataAnnotation(&d.ObjectMeta, volume.AnnControllers, value)
	if value == "" {
		delete(d.Annotations, volume.AnnControllers)
	}
	_, err := client.StorageV1().CSIDrivers().Update(ctx, d, metav1.UpdateOptions{FieldManager: doors.FieldManager})
	return err
}
