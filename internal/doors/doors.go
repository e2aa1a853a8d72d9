// Package doors uses claims on this host for clients outside of Kubernetes: a user at a shell, mount(8), a container
// engine. Each use of a claim is one Pod, whose containers are never run; the node agent mounts the volume for it. The
// state of a door is in that Pod, so a door may be killed at any time and called again.
package doors

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	decide "volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

// Mount creates the Pod unless it exists, and waits until its volumes are
// mounted. If a Pod with the same name is being deleted, it first waits for that. The call may be repeated.
func Mount(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod) error {
	var made types.UID
	return kube.Follow(ctx, Pods(client, pod.Namespace), pod.Name, func(now *corev1.Pod) (bool, error) {
		switch {
		case now == nil:
			is, err := Create(ctx, client.CoreV1().Pods(pod.Namespace).Create, pod)
			if err == nil {
				made = is.UID
			}
			return false, kube.Unless(apierrors.IsAlreadyExists(err), err)
		case now.DeletionTimestamp != nil:
			return false, nil
		case CheckNode(now, pod) != nil:
			return false, CheckNode(now, pod)
		case cluster.Finished(now) && now.UID == made:
			return false, fmt.Errorf("pod %s has failed: %s", now.Name, now.Status.Message)
		case cluster.Finished(now):
			// It has failed before and is not retried; its successor may succeed.
			return false, Delete(ctx, client, now)
		case !SameOptions(now, pod):
			return false, fmt.Errorf("it is already mounted there with the options %q (pod %s): undo that with 'volplane "+
				"umount' first", now.Annotations[volume.AnnMountOptions], now.Name)
		}
		return cluster.Mounted(now), nil
	})
}

// createLimit is how long the API server may take to create an object.
const createLimit = 10 * time.Second

// ErrUnanswered says that it is not known whether an object was created.
var ErrUnanswered = errors.New("the API server does not answer: it may be there nevertheless")

// Create creates an object with a client's function. An interrupt does not end the request: a caller could not
// undo what the server creates after the caller has stopped waiting.
func Create[T any](
	ctx context.Context, create func(context.Context, T, metav1.CreateOptions) (T, error), object T,
) (T, error) {
	end := time.Now().Add(createLimit)
	if callers, has := ctx.Deadline(); has && callers.Before(end) {
		end = callers
	}
	limited, cancel := context.WithDeadline(context.WithoutCancel(ctx), end)
	defer cancel()
	made, err := create(limited, object, metav1.CreateOptions{FieldManager: FieldManager})
	if errors.Is(err, context.DeadlineExceeded) && !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = ErrUnanswered
	}
	return made, err
}

// lookPause is the pause between two looks for a mount that the API says is there.
const lookPause = 50 * time.Millisecond

// ErrUnseen says that the node reports a mount that its host does not have.
var ErrUnseen = errors.New("the node says that it is mounted, and this process does not see it")

// MountHere is Mount on the node of this host, and waits until this process sees the mount, too: the state in the API
// may be older than a boot, after which writes to the directory would go below the volume, or older than a manual
// unmount which the node agent has not seen yet. A Pod that ends while it waits is recreated.
func MountHere(
	ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, seen func() (bool, error),
) error {
	look := time.NewTicker(lookPause)
	defer look.Stop()
	for {
		if err := Mount(ctx, client, pod); err != nil {
			return err
		}
		if there, err := seen(); err != nil || there {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: node %s, %w", ErrUnseen, pod.Spec.NodeName, ctx.Err())
		case <-look.C:
		}
	}
}

// CheckNode fails if an existing Pod mounts on another node than the requested one.
func CheckNode(now, asked *corev1.Pod) error {
	if now.DeletionTimestamp == nil && now.Spec.NodeName != asked.Spec.NodeName {
		return fmt.Errorf("it is already mounted there on node %s (pod %s)", now.Spec.NodeName, now.Name)
	}
	return nil
}

// CheckClaim fails if a claim is being deleted: what is written to its volume would be lost with it.
func CheckClaim(c *corev1.PersistentVolumeClaim) error {
	if c.DeletionTimestamp == nil {
		return nil
	}
	return fmt.Errorf("claim %s/%s is being deleted, and its data may go with it: see 'volplane why pvc/%s -n %s', and "+
		"try again when it is gone", c.Namespace, c.Name, c.Name, c.Namespace)
}

// ClaimRequest has the properties that a claim which may exist already must have. An empty field allows any value.
type ClaimRequest struct {
	Size   *resource.Quantity
	Class  string
	Access corev1.PersistentVolumeAccessMode
	Block  bool
	// Source is what its data are a copy of.
	Source *corev1.TypedLocalObjectReference
}

// Mismatch returns an error if a claim does not meet the request. A larger claim has all of a smaller one.
func (w ClaimRequest) Mismatch(c *corev1.PersistentVolumeClaim) error {
	size, class := c.Spec.Resources.Requests.Storage(), ptr.Deref(c.Spec.StorageClassName, "")
	from := ptr.Deref(c.Spec.DataSource, corev1.TypedLocalObjectReference{})
	switch {
	case w.Size != nil && w.Size.Cmp(*size) > 0:
		return fmt.Errorf("asks for %s: 'volplane resize %s %s' makes it larger", size, c.Name, w.Size)
	case w.Class != "" && w.Class != class:
		return fmt.Errorf("is of class %q", class)
	case w.Access != "" && !slices.Contains(c.Spec.AccessModes, w.Access):
		return fmt.Errorf("has the access modes %v", c.Spec.AccessModes)
	case w.Block && ptr.Deref(c.Spec.VolumeMode, corev1.PersistentVolumeFilesystem) != corev1.PersistentVolumeBlock:
		return errors.New("is a filesystem, not a block device")
	case w.Source != nil && (w.Source.Kind != from.Kind || w.Source.Name != from.Name):
		return fmt.Errorf("does not have the data of %s %s", strings.ToLower(w.Source.Kind), w.Source.Name)
	}
	return nil
}

// FieldManager is the name under which a person's commands and doors write objects.
const FieldManager = "volplane"

// Pods are the Pods of a namespace.
func Pods(client kubernetes.Interface, ns string) kube.Source[*corev1.Pod] {
	p := client.CoreV1().Pods(ns)
	return kube.Source[*corev1.Pod]{Get: p.Get, Watch: p.Watch}
}

// leastSize is the smallest plausible size of a volume: a smaller number is one whose unit was left out.
const leastSize = 1 << 20

// ParseSize reads the size of a volume that a person has typed.
func ParseSize(text string) (resource.Quantity, error) {
	size, err := resource.ParseQuantity(text)
	switch {
	case err != nil || size.Sign() <= 0:
		return resource.Quantity{}, fmt.Errorf("%.80q is not a size: use a number with Mi, Gi or Ti, such as 10Gi", text)
	case size.CmpInt64(leastSize) < 0:
		return resource.Quantity{}, fmt.Errorf("%.80q is less than 1Mi, which no volume has: use a number with Mi, Gi or "+
			"Ti, such as 10Gi", text)
	}
	return size, nil
}

// AccessModes are the access modes by the short names that kubectl prints.
func AccessModes() map[string]corev1.PersistentVolumeAccessMode {
	return map[string]corev1.PersistentVolumeAccessMode{
		"RWO": corev1.ReadWriteOnce, "RWX": corev1.ReadWriteMany, "ROX": corev1.ReadOnlyMany, "RWOP": corev1.ReadWriteOncePod,
	}
}

// SameOptions says whether two Pods request the same mount options, in any order and spelling.
func SameOptions(a, b *corev1.Pod) bool {
	is, errIs := decide.HostOptions(a.Annotations[volume.AnnMountOptions])
	other, errOther := decide.HostOptions(b.Annotations[volume.AnnMountOptions])
	return errIs == nil && errOther == nil && is == other
}

// PodAtPath returns the Pod that represents the use of a claim at dir with options of the mount there. A mount that can
// only be read is one for the driver, too. The same directory of another node is another use, and another Pod.
func PodAtPath(ns, claim, dir, node string, options decide.BindOptions) *corev1.Pod {
	hash := sha256.Sum256([]byte(claim + "\x00" + dir + "\x00" + node))
	annotations := map[string]string{volume.AnnMountAt: dir}
	if text := options.String(); text != "" {
		annotations[volume.AnnMountOptions] = text
	}
	name := "mount-" + hex.EncodeToString(hash[:5])
	pod := Pod(metav1.ObjectMeta{Namespace: ns, Name: name, Annotations: annotations}, claim, node)
	pod.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = options.ReadOnly
	return pod
}

// Pod returns a Pod that uses a claim on a node. Its container is never run, but the API requires one.
func Pod(meta metav1.ObjectMeta, claim, node string) *corev1.Pod {
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

// Node returns the node to mount on: the named one, else own, which is this host's, else the only one.
func Node(ctx context.Context, client kubernetes.Interface, name, own string) (string, error) {
	if name != "" {
		return name, nil
	}
	// The server answers from its memory: for the newest state, it may wait for a tenth of a second.
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return "", fmt.Errorf("list nodes: %w", err)
	}
	names := make([]string, 0, len(nodes.Items))
	for _, n := range nodes.Items {
		if n.Name == own {
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

// stages has the directories at which node agents mount in place of those with an automount. It is empty after a boot.
const stages = "/run/volplane-mounts"

// Stage returns the directory at which the node agent mounts what is mounted at a directory with an automount.
func Stage(dir string) string {
	sum := sha256.Sum256([]byte(dir))
	return filepath.Join(stages, hex.EncodeToString(sum[:8]))
}

// PodAt returns the Pod that mounts at dir, or for its automount, on a node. Only a host that is not a node may leave
// the node's name empty, and takes any: elsewhere, the same directory of another host is never meant. For a user who
// may not list the Pods of all namespaces, those of ns are listed.
func PodAt(ctx context.Context, client kubernetes.Interface, ns, node, dir string) (*corev1.Pod, error) {
	pods, err := client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if apierrors.IsForbidden(err) {
		pods, err = client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
	}
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	found, elsewhere := PodsAt(pods.Items, node, dir)
	if len(found) == 0 {
		var others []string
		found, others = PodsAt(pods.Items, node, Stage(dir))
		elsewhere = append(elsewhere, others...)
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return nil, fmt.Errorf("several Pods have a mount at %s: choose a node with --node", dir)
	case len(elsewhere) > 0:
		return nil, fmt.Errorf("nothing was mounted at %s of node %s by 'volplane mount', but of %s: choose it with --node",
			dir, node, strings.Join(elsewhere, ", "))
	}
	return nil, fmt.Errorf("nothing was mounted at %s by 'volplane mount'", dir)
}

// PodsAt returns the Pods that mount at dir on a node, if one is named, and the other nodes with such Pods.
func PodsAt(pods []corev1.Pod, node, dir string) (found []*corev1.Pod, elsewhere []string) {
	for i := range pods {
		switch p := &pods[i]; {
		case p.Annotations[volume.AnnMountAt] != dir:
		case node == "" || node == p.Spec.NodeName:
			found = append(found, p)
		default:
			elsewhere = append(elsewhere, p.Spec.NodeName)
		}
	}
	return found, elsewhere
}

// ClaimOf returns the name of the claim that a Pod of a door uses.
func ClaimOf(p *corev1.Pod) string {
	for _, v := range p.Spec.Volumes {
		if v.PersistentVolumeClaim != nil {
			return v.PersistentVolumeClaim.ClaimName
		}
	}
	return ""
}

// Delete deletes the Pod, and does not wait until its volumes are unmounted. The call may be repeated.
func Delete(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod) error {
	err := client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, *metav1.NewPreconditionDeleteOptions(string(pod.UID)))
	// A conflict says that another Pod has its name.
	return kube.Unless(apierrors.IsNotFound(err) || apierrors.IsConflict(err), err)
}

// Unmount deletes the Pod and waits until it is removed, which it is when its volumes are
// unmounted. The call may be repeated.
func Unmount(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod) error {
	if err := Delete(ctx, client, pod); err != nil {
		return err
	}
	return kube.Follow(ctx, Pods(client, pod.Namespace), pod.Name, func(now *corev1.Pod) (bool, error) {
		return now == nil || now.UID != pod.UID, nil
	})
}
