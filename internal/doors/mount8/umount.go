package mount8

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/doors"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/volume"
)

// umount ends the use of a claim at a directory. Unless it is forced or lazy, this process unmounts the directory
// first: a busy one stays as it is then, and if this process is killed the node agent finds the unmount and takes it
// as a request.
func (h Host) umount(ctx context.Context, c Call) error {
	noted := h.Mounts.Noted(c.Dir)
	client, _, err := h.Client(noted["kubeconfig"])
	if err != nil {
		return err
	}
	limited, cancel := limit(ctx, c.Timeout)
	defer cancel()
	pod, staged, err := h.podAt(limited, client, noted["node"], c.Dir)
	if err != nil {
		return err
	}
	if pod == nil {
		return h.checkNotMounted(c.Dir)
	}
	// What this program has mounted itself, no node agent unmounts.
	if staged || !c.Lazy && !c.Force && pod.Annotations[volume.AnnUnmountEnds] != "" {
		if err := h.Mounts.Unmount(c.Dir); err != nil {
			return err
		}
	}
	if c.Lazy {
		return doors.Delete(limited, client, pod)
	}
	if err := doors.Unmount(limited, client, pod); err != nil {
		return h.because(ctx, client, pod, err, c.Dir+" is not unmounted yet", "")
	}
	return nil
}

// unmountAlone leaves to the node agent what has mounts below it: it knows which of them are parts of the volume.
func unmountAlone(dir string) error {
	points, err := mount.Below(dir)
	if err != nil || len(points) != 1 {
		return err
	}
	// The path is not accessed: if an automount is being ended there, that would wait for the end of this process.
	if err := unix.Unmount(dir, unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("unmount %s: %w", dir, err)
	}
	return nil
}

// checkNotMounted fails if something is mounted at a directory for which there is no request.
func (h Host) checkNotMounted(dir string) error {
	at, mounted, err := h.Mounts.At(dir)
	if err == nil && mounted {
		err = fmt.Errorf("no Pod has asked for what is mounted at %s (%s): 'umount -i' unmounts it", dir, at.Source)
	}
	return err
}

// podAt returns the Pod that mounts at a directory, or nil, and whether the node agent mounts elsewhere for it. If
// no node is named, it is this host's: the same directory of another host is not meant.
func (h Host) podAt(
	ctx context.Context, client kubernetes.Interface, node, dir string,
) (pod *corev1.Pod, staged bool, err error) {
	if node, err = doors.Node(ctx, client, node, h.Node); err != nil {
		return nil, false, err
	}
	pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(),
	})
	if err != nil {
		return nil, false, fmt.Errorf("list pods: %w", err)
	}
	for _, at := range []string{dir, doors.Stage(dir)} {
		switch found, _ := doors.PodsAt(pods.Items, node, at); {
		case len(found) == 1:
			return found[0], at != dir, nil
		case len(found) > 1:
			return nil, false, fmt.Errorf("several Pods mount at %s: delete those that are not wanted", at)
		}
	}
	return nil, false, nil
}
