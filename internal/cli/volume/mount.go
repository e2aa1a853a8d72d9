package volume

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"volplane.dev/volplane/internal/cli/objects"
	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/doors"
	"volplane.dev/volplane/internal/doors/mount8"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/process/options"
	"volplane.dev/volplane/internal/volume"
)

type mountOptions struct {
	node    string
	timeout time.Duration
	// options are the options of the mount, such as suid and dev, which it otherwise may not have.
	options string
	// create says that the claim is created as requested unless it exists.
	create   bool
	readOnly bool
	claimRequest
}

func mountCommand(s *shell.Shell) *cobra.Command {
	var m mountOptions
	c := &cobra.Command{
		Use:   "mount CLAIM DIR",
		Short: "Mount a claim at a path of a node",
		Long: `Mount a claim at a path of a node. The command creates a Pod that represents
this use of the claim, and the node agent mounts the volume for the Pod. The
command may be repeated; 'volplane umount DIR' undoes it. The volume is mounted
with nosuid and nodev unless -o suid,dev allows otherwise. The mount includes
everything that is mounted below the volume.

DIR is made if it is missing on this host. If the command is interrupted before
the volume is mounted, it takes back what it has begun, and says what stays.`,
		Example: `  volplane mount data /srv/data
  volplane mount data /srv/data --create --size 10Gi
  volplane mount data /srv/data-to-read --ro`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: objects.CompleteClaim(s),
		RunE: func(cmd *cobra.Command, args []string) error {
			if m.claimRequest != (claimRequest{}) && !m.create {
				return errors.New("size, class and the like are those of a new claim: add --create")
			}
			return mountAt(cmd.Context(), s, m, claimName(args[0]), args[1])
		},
	}
	m.register(c, s)
	m.claimRequest.register(c, s)
	f := c.Flags()
	f.StringVarP(&m.options, "options", "o", "", "mount options, such as suid,dev")
	f.BoolVar(&m.create, "create", false, "create the claim unless it exists, as 'volplane create' does")
	f.BoolVar(&m.readOnly, "ro", false, "mount it read-only, as -o ro does")
	return c
}

func (m *mountOptions) register(c *cobra.Command, s *shell.Shell) {
	c.Flags().StringVar(&m.node, "node", "", "node to mount on (default this host, or the only node)")
	c.Flags().DurationVar(&m.timeout, "timeout", 2*time.Minute, "how long to wait; 0 for no limit")
	_ = c.RegisterFlagCompletionFunc("node", objects.CompleteNames(s, "node"))
}

func mountAt(ctx context.Context, s *shell.Shell, m mountOptions, claim, dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("find directory %s: %w", dir, err)
	}
	if dir == "/" {
		return errors.New("a volume cannot be mounted at /: name another directory")
	}
	options, err := mount.HostOptions(m.options)
	if err != nil {
		return err
	}
	options.ReadOnly = options.ReadOnly || m.readOnly
	client, ns, err := s.Client()
	if err != nil {
		return err
	}
	node, err := s.NodeOf(ctx, client, m.node)
	if err != nil {
		return err
	}
	b := begun{Shell: s, client: client, node: node, dir: dir}
	if err := b.claimFor(ctx, ns, claim, m); err != nil {
		return err
	}
	if err := b.directory(m.node); err != nil {
		return b.takenBack(err)
	}
	b.pod = doors.PodAtPath(ns, claim, dir, node, options)
	if err := b.mount(ctx, m); err != nil {
		return err
	}
	fmt.Fprintf(s.Out, "persistentvolumeclaim/%s mounted at %s on node %s\n", claim, dir, node)
	return nil
}

func umountCommand(s *shell.Shell) *cobra.Command {
	var m mountOptions
	c := &cobra.Command{
		Use:   "umount DIR",
		Short: "Unmount what 'volplane mount' mounted, and wait until it is unmounted",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return umount(cmd.Context(), s, m, args[0])
		},
	}
	m.register(c, s)
	return c
}

func umount(ctx context.Context, s *shell.Shell, m mountOptions, dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("find directory %s: %w", dir, err)
	}
	client, ns, err := s.Client()
	if err != nil {
		return err
	}
	node := m.node
	if own, err := s.NodeOf(ctx, client, node); err == nil {
		node = own
	}
	pod, err := doors.PodAt(ctx, client, ns, node, dir)
	if err != nil {
		return err
	}
	if err := checkShown(s, pod, dir, m.node); err != nil {
		return err
	}
	return unmount(ctx, s, client, pod, dir, m.timeout)
}

// unmount deletes a Pod that mounts at a directory, and waits until nothing is mounted there. After a restore that is
// not accepted yet it refuses to begin, because the Pod would wait forever.
func unmount(
	ctx context.Context, s *shell.Shell, client kubernetes.Interface, pod *corev1.Pod, dir string, timeout time.Duration,
) error {
	if err := kube.CheckHeld(ctx, client); errors.Is(err, kube.ErrHeld) {
		return err
	}
	ctx, cancel := shell.WithTimeout(ctx, timeout)
	defer cancel()
	claim := doors.ClaimOf(pod)
	why := func(ctx context.Context) string { return shell.Answer(ctx, client, pod.Namespace, pod.Name) }
	err := shell.Progress(ctx, s.Err, why, func(ctx context.Context) error { return doors.Unmount(ctx, client, pod) })
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s is still mounted after %s: %s", dir, timeout, why(context.WithoutCancel(ctx)))
	}
	if err != nil {
		return fmt.Errorf("unmount %s: %w", dir, err)
	}
	fmt.Fprintf(s.Out, "persistentvolumeclaim/%s unmounted from %s on node %s\n", claim, dir, pod.Spec.NodeName)
	return nil
}

// checkShown fails if mount.volplane has mounted a volume where an automount waits: the node agent does not take that
// mount away, and the volume would be kept by it.
func checkShown(s *shell.Shell, pod *corev1.Pod, dir, asked string) error {
	at := pod.Annotations[volume.AnnMountAt]
	if dir == at {
		dir = volume.AskedPath(pod.Annotations)
	}
	if dir == at || !here(s, pod.Spec.NodeName, asked) {
		return nil
	}
	_, mounted, err := mount8.OfHost().At(dir)
	if err == nil && mounted {
		err = fmt.Errorf("an automount has mounted it at %s: use 'umount %s'", dir, dir)
	}
	return err
}

// MountHost returns what a helper of mount(8) needs of this program. It finds its server as all commands do.
func MountHost(s shell.Streams, version string) mount8.Host {
	klog.SetLogger(logr.Discard())
	sh := shell.New(context.Background(), s, version, shell.Programs{})
	sh.Reach = sh.ReachAny
	sh.Flags.DataDir, sh.Flags.Named = options.DataDir(), func() bool { return false }
	return mount8.Host{
		Err: s.Err, Node: sh.ThisNode(), Why: shell.Answer, Explain: sh.Explain, Mounts: mount8.OfHost(),
		Client: func(kubeconfig string) (kubernetes.Interface, string, error) {
			sh.Flags.Kubeconfig = kubeconfig
			return sh.Client()
		},
		Kubeconfig: func(kubeconfig string) string {
			sh.Flags.Kubeconfig = kubeconfig
			return sh.Flags.File()
		},
	}
}
