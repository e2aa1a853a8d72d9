package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/volume"
)

type mountOptions struct {
	node    string
	timeout time.Duration
	// allow is what files may do there that they may not otherwise.
	allow string
}

func (s *shell) mountCommand() *cobra.Command {
	var m mountOptions
	c := &cobra.Command{
		Use:   "mount CLAIM DIR",
		Short: "Mount a claim at a path of a node",
		Long: `Mount a claim at a path of a node. It makes a Pod that stands for this use of
the claim; the node agent mounts the volume for it. The same command may be
repeated; 'volplane umount DIR' undoes it. Programs of the volume do not run as
another user there, and its devices cannot be opened (nosuid, nodev), unless -o
suid,dev asks for it. All that is mounted below the volume is there as well.`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: s.completeClaim,
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.mount(cmd.Context(), m,
				strings.TrimPrefix(strings.TrimPrefix(args[0], "pvc/"), "persistentvolumeclaim/"), args[1])
		},
	}
	m.register(c)
	c.Flags().StringVarP(&m.allow, "options", "o", "", "what is allowed there: suid, dev, or both with a comma")
	return c
}

func (m *mountOptions) register(c *cobra.Command) {
	c.Flags().StringVar(&m.node, "node", "", "node to mount on (default this host's, or the only one)")
	c.Flags().DurationVar(&m.timeout, "timeout", 2*time.Minute, "how long to wait; 0 without limit")
}

func (s *shell) mount(ctx context.Context, m mountOptions, claim, dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("find directory %s: %w", dir, err)
	}
	if _, err := mount.HostOptions(m.allow); err != nil {
		return err
	}
	client, ns, err := s.client()
	if err != nil {
		return err
	}
	if _, err := client.CoreV1().PersistentVolumeClaims(ns).Get(ctx, claim,
		metav1.GetOptions{}); apierrors.IsNotFound(err) {
		return fmt.Errorf("there is no claim %s in namespace %s: make one with 'volplane apply', see 'volplane get pvc -A'",
			claim, ns)
	} else if err != nil {
		return fmt.Errorf("get claim %s: %w", claim, err)
	}
	node, err := pickNode(ctx, client, m.node)
	if err != nil {
		return err
	}
	ctx, cancel := within(ctx, m.timeout)
	defer cancel()
	pod := mountPod(ns, claim, dir, node, m.allow)
	why := func(ctx context.Context) string { return s.answer(ctx, client, ns, pod.Name) }
	err = progress(ctx, s.Err, why, func(ctx context.Context) error { return mountWith(ctx, client, pod) })
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("claim %s is not mounted after %s: %s\nThe request stays; undo it with 'volplane umount %s'", claim,
			m.timeout, why(context.WithoutCancel(ctx)), dir)
	}
	if err != nil {
		return fmt.Errorf("mount claim %s: %w", claim, err)
	}
	fmt.Fprintf(s.Out, "persistentvolumeclaim/%s mounted at %s on node %s\n", claim, dir, node)
	return nil
}

// mountWith makes the Pod, unless it is there, and waits until its volumes are
// mounted. A Pod of the same name that is going away is waited out.
func mountWith(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod) error {
	return follow(ctx, podSource(client, pod.Namespace), pod.Name, func(now *corev1.Pod) (bool, error) {
		if now == nil {
			_, err := client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{FieldManager: fieldManager})
			return false, unless(apierrors.IsAlreadyExists(err), err)
		}
		if now.DeletionTimestamp == nil && now.Spec.NodeName != pod.Spec.NodeName {
			return false, fmt.Errorf("it is mounted there on node %s already (pod %s)", now.Spec.NodeName, now.Name)
		}
		if has := now.Annotations[volume.AnnMountOptions]; now.DeletionTimestamp == nil &&
			has != pod.Annotations[volume.AnnMountOptions] {
			return false, fmt.Errorf("it is mounted there already with the options %q (pod %s): undo that with 'volplane "+
				"umount' first", has, now.Name)
		}
		return now.DeletionTimestamp == nil && mounted(now), nil
	})
}

func mounted(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == volume.ConditionVolumesMounted {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// mountPod returns the Pod that stands for the use of a claim at dir. It is
// never run, but the API asks for a container.
func mountPod(ns, claim, dir, node, allow string) *corev1.Pod {
	hash := sha256.Sum256([]byte(claim + "\x00" + dir))
	annotations := map[string]string{volume.AnnMountAt: dir}
	if allow != "" {
		annotations[volume.AnnMountOptions] = allow
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "mount-" + hex.EncodeToString(hash[:5]), Annotations: annotations},
		Spec: corev1.PodSpec{
			NodeName:   node,
			Containers: []corev1.Container{{Name: "none", Image: "none"}},
			Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}}},
		},
	}
}

// pickNode returns the node that is meant: the one named, this host's, or the
// only one.
func pickNode(ctx context.Context, client kubernetes.Interface, name string) (string, error) {
	if name != "" {
		return name, nil
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", fmt.Errorf("list nodes: %w", err)
	}
	names := make([]string, 0, len(nodes.Items))
	for _, n := range nodes.Items {
		if n.Name == hostName() {
			return n.Name, nil
		}
		names = append(names, n.Name)
	}
	switch len(names) {
	case 0:
		return "", fmt.Errorf("no node has joined: start one with 'volplane up' or 'volplane node --join'")
	case 1:
		return names[0], nil
	}
	return "", fmt.Errorf("none of the nodes %s is this host: name one with --node", strings.Join(names, ", "))
}

// hostName returns the host's name as a Node name.
func hostName() string {
	name, err := os.Hostname()
	if err != nil {
		return "localhost"
	}
	return strings.ToLower(name)
}

func (s *shell) umountCommand() *cobra.Command {
	var m mountOptions
	c := &cobra.Command{
		Use:   "umount DIR",
		Short: "Undo what mount did, and wait until it is undone",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.umount(cmd.Context(), m, args[0])
		},
	}
	m.register(c)
	return c
}

func (s *shell) umount(ctx context.Context, m mountOptions, dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("find directory %s: %w", dir, err)
	}
	client, _, err := s.client()
	if err != nil {
		return err
	}
	pod, err := podAt(ctx, client, m.node, dir)
	if err != nil {
		return err
	}
	ctx, cancel := within(ctx, m.timeout)
	defer cancel()
	claim := claimOf(pod)
	why := func(ctx context.Context) string { return s.answer(ctx, client, pod.Namespace, pod.Name) }
	err = progress(ctx, s.Err, why, func(ctx context.Context) error { return deletePod(ctx, client, pod) })
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s is still mounted after %s: %s", dir, m.timeout, why(context.WithoutCancel(ctx)))
	}
	if err != nil {
		return fmt.Errorf("unmount %s: %w", dir, err)
	}
	fmt.Fprintf(s.Out, "persistentvolumeclaim/%s unmounted from %s on node %s\n", claim, dir, pod.Spec.NodeName)
	return nil
}

// podAt returns the Pod that mounts at dir. When several nodes have one, node
// says which; else this host is meant.
func podAt(ctx context.Context, client kubernetes.Interface, node, dir string) (*corev1.Pod, error) {
	pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	var found []*corev1.Pod
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.Annotations[volume.AnnMountAt] == dir && (node == "" || node == p.Spec.NodeName) {
			found = append(found, p)
		}
	}
	switch {
	case len(found) == 0:
		return nil, fmt.Errorf("nothing was mounted at %s by 'volplane mount'", dir)
	case len(found) == 1:
		return found[0], nil
	}
	for _, p := range found {
		if p.Spec.NodeName == hostName() {
			return p, nil
		}
	}
	return nil, fmt.Errorf("several nodes have a mount at %s: name one with --node", dir)
}

func claimOf(p *corev1.Pod) string {
	for _, v := range p.Spec.Volumes {
		if v.PersistentVolumeClaim != nil {
			return v.PersistentVolumeClaim.ClaimName
		}
	}
	return ""
}

// deletePod deletes the Pod and waits until it is gone.
func deletePod(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod) error {
	err := client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, *metav1.NewPreconditionDeleteOptions(string(pod.UID)))
	if err != nil {
		return unless(notFound(err), err)
	}
	return follow(ctx, podSource(client, pod.Namespace), pod.Name, func(now *corev1.Pod) (bool, error) {
		return now == nil || now.UID != pod.UID, nil
	})
}

func notFound(err error) bool { return apierrors.IsNotFound(err) }

// unless returns err if not expected.
func unless(expected bool, err error) error {
	if expected {
		return nil
	}
	return err
}
