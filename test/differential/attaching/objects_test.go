package attaching

import (
	"cmp"
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/test/internal/upstream"
)

// theirAttachDetach runs the controller of Kubernetes that decides which volumes are attached to which nodes until the
// test ends, or until the returned function is called. It verifies its attachments every second, the shortest interval
// that it accepts.
func theirAttachDetach(t *testing.T, s side) (stop func()) {
	t.Helper()
	return s.Run(t, "kube-controller-manager", "--leader-elect=false", "--secure-port=0", "--kube-api-qps=5000",
		"--kube-api-burst=5000",
		"--attach-detach-reconcile-sync-period=1s", "--controllers=persistentvolume-attach-detach-controller",
		fmt.Sprintf("--disable-force-detach-on-timeout=%t", s.Patient),
		fmt.Sprint("--max-wait-for-unmount=", cmp.Or(s.MaxUnmount, attach.MaxUnmount)))
}

// theirAttacher runs Kubernetes' attacher for a driver until the test ends, or
// until the returned function is called.
func theirAttacher(t *testing.T, s side, driver *csitest.Driver) (stop func()) {
	t.Helper()
	return s.Run(t, "csi-attacher", append(s.Options, "--csi-address="+driver.Socket, "--kube-api-qps=5000",
		"--kube-api-burst=5000", "--timeout=1m", "--worker-threads=500", "--retry-interval-start=100ms",
		"--retry-interval-max="+upstream.LongestRetry.String())...)
}

// uses sets a node's volumesInUse, as a kubelet does.
func uses(ctx context.Context, s side, node string, all ...corev1.UniqueVolumeName) error {
	if all == nil {
		all = []corev1.UniqueVolumeName{}
	}
	return s.NodeStatus(ctx, node, map[string]any{"volumesInUse": all})
}

// mayMount returns the volumes that the Node says may be mounted.
func mayMount(ctx context.Context, s side, node string) ([]corev1.UniqueVolumeName, error) {
	n, err := s.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	var all []corev1.UniqueVolumeName
	for _, v := range n.Status.VolumesAttached {
		all = append(all, v.Name)
	}
	return all, err
}

// makePod creates a Pod on a node that uses claims.
func makePod(ctx context.Context, s side, space, name, node string, claims ...string) error {
	return createPod(ctx, s, space, metav1.ObjectMeta{Name: name}, node, claims)
}

// makeAnew creates a Pod whose name was used before.
func makeAnew(ctx context.Context, s side, space, name, node string, claims ...string) error {
	return createPod(ctx, s, space,
		metav1.ObjectMeta{Name: name, Annotations: map[string]string{annAnew: "yes"}}, node, claims)
}

func createPod(ctx context.Context, s side, space string, meta metav1.ObjectMeta, node string, claims []string) error {
	pod := &corev1.Pod{
		ObjectMeta: meta, Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}
	for _, c := range claims {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: c, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c},
		}})
	}
	_, err := s.Client.CoreV1().Pods(space).Create(ctx, pod, metav1.CreateOptions{})
	return err
}

// endPod removes a Pod, as its kubelet finally does.
func endPod(ctx context.Context, s side, space, name string) error {
	return s.Client.CoreV1().Pods(space).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
}
