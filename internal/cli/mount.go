package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/program"
	"volplane.dev/volplane/internal/volume"
)

type mountOptions struct {
	node    string
	timeout time.Duration
	// allow are the mount options that the mount is allowed to have: suid, dev.
	allow string
}

func (s *shell) mountCommand() *cobra.Command {
	var m mountOptions
	c := &cobra.Command{
		Use:   "mount CLAIM DIR",
		Short: "Mount a claim at a path of a node",
		Long: `Mount a claim at a path of a node. The command creates a Pod that represents
this use of the claim, and the node agent mounts the volume for the Pod. The
command may be repeated; 'volplane umount DIR' undoes it. The volume is mounted
with nosuid and nodev unless -o suid,dev allows otherwise. The mount includes
everything that is mounted below the volume.`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: s.completeClaim,
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.mount(cmd.Context(), m,
				strings.TrimPrefix(strings.TrimPrefix(args[0], "pvc/"), "persistentvolumeclaim/"), args[1])
		},
	}
	m.register(c)
	c.Flags().StringVarP(&m.allow, "options", "o", "", "allowed mount options: suid, dev or suid,dev")
	return c
}

func (m *mountOptions) register(c *cobra.Command) {
	c.Flags().StringVar(&m.node, "node", "", "node to mount on (default this host, or the only node)")
	c.Flags().DurationVar(&m.timeout, "timeout", 2*time.Minute, "how long to wait; 0 for no limit")
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
		return fmt.Errorf("claim %s does not exist in namespace %s: create it with 'volplane apply', or "+
			"see 'volplane get pvc -A'",
			claim, ns)
	} else if err != nil {
		return fmt.Errorf("get claim %s: %w", claim, err)
	}
	node, err := pickNode(ctx, client, m.node)
	if err != nil {
		return err
	}
	ctx, cancel := withTimeout(ctx, m.timeout)
	defer cancel()
	pod := mountPod(ns, claim, dir, node, m.allow)
	why := func(ctx context.Context) string { return s.answer(ctx, client, ns, pod.Name) }
	err = progress(ctx, s.Err, why, func(ctx context.Context) error { return mountWith(ctx, client, pod) })
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("claim %s is not mounted after %s: %s\nThe Pod still requests the mount; undo it with "+
			"'volplane umount %s'", claim,
			m.timeout, why(context.WithoutCancel(ctx)), dir)
	}
	if err != nil {
		return fmt.Errorf("mount claim %s: %w", claim, err)
	}
	fmt.Fprintf(s.Out, "persistentvolumeclaim/%s mounted at %s on node %s\n", claim, dir, node)
	return nil
}

// mountWith creates the Pod unless it exists, and waits until its volumes are
// mounted. If a Pod with the same name is being deleted, it first waits for that.
func mountWith(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod) error {
	return follow(ctx, podSource(client, pod.Namespace), pod.Name, func(now *corev1.Pod) (bool, error) {
		if now == nil {
			_, err := client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{FieldManager: fieldManager})
			return false, unlessExpected(apierrors.IsAlreadyExists(err), err)
		}
		if now.DeletionTimestamp == nil && now.Spec.NodeName != pod.Spec.NodeName {
			return false, fmt.Errorf("it is already mounted there on node %s (pod %s)", now.Spec.NodeName, now.Name)
		}
		if has := now.Annotations[volume.AnnMountOptions]; now.DeletionTimestamp == nil &&
			has != pod.Annotations[volume.AnnMountOptions] {
			return false, fmt.Errorf("it is already mounted there with the options %q (pod %s): undo that with 'volplane "+
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

// mountPod returns the Pod that represents the use of a claim at dir.
func mountPod(ns, claim, dir, node, allow string) *corev1.Pod {
	hash := sha256.Sum256([]byte(claim + "\x00" + dir))
	annotations := map[string]string{volume.AnnMountAt: dir}
	if allow != "" {
		annotations[volume.AnnMountOptions] = allow
	}
	name := "mount-" + hex.EncodeToString(hash[:5])
	return claimPod(metav1.ObjectMeta{Namespace: ns, Name: name, Annotations: annotations}, claim, node)
}

// claimPod returns a Pod that uses a claim. Its container is never run, but the API
// requires one.
func claimPod(meta metav1.ObjectMeta, claim, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: meta,
		Spec: corev1.PodSpec{
			NodeName:   node,
			Containers: []corev1.Container{{Name: "none", Image: "none"}},
			Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}}},
		},
	}
}

// pickNode returns the node to mount on: the named one, else the one of this host,
// else the only one.
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
		if n.Name == program.HostName() {
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
	return "", fmt.Errorf("none of the nodes %s is this host: choose one with --node", strings.Join(names, ", "))
}

func (s *shell) umountCommand() *cobra.Command {
	var m mountOptions
	c := &cobra.Command{
		Use:   "umount DIR",
		Short: "Unmount what 'volplane mount' mounted, and wait until it is unmounted",
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
	ctx, cancel := withTimeout(ctx, m.timeout)
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

// podAt returns the Pod that mounts at dir, on the named node if there is one in
// node. If several nodes have such a Pod, it returns the one of this host.
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
		if p.Spec.NodeName == program.HostName() {
			return p, nil
		}
	}
	return nil, fmt.Errorf("several nodes have a mount at %s: choose one with --node", dir)
}

func claimOf(p *corev1.Pod) string {
	for _, v := range p.Spec.Volumes {
		if v.PersistentVolumeClaim != nil {
			return v.PersistentVolumeClaim.ClaimName
		}
	}
	return ""
}

// deletePod deletes the Pod and waits until it is removed.
func deletePod(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod) error {
	err := client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, *metav1.NewPreconditionDeleteOptions(string(pod.UID)))
	if err != nil {
		return unlessExpected(notFound(err), err)
	}
	return follow(ctx, podSource(client, pod.Namespace), pod.Name, func(now *corev1.Pod) (bool, error) {
		return now == nil || now.UID != pod.UID, nil
	})
}

func notFound(err error) bool { return apierrors.IsNotFound(err) }

// unlessExpected returns nil if the error is expected, or else err.
func unlessExpected(expected bool, err error) error {
	if expected {
		return nil
	}
	return err
}
