package plane

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/volume"
)

// Claim returns a claim of the default class.
func Claim(name, size string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)},
			},
		},
	}
}

// GrowingClass ensures a class whose volumes grow while they are mounted, wherever the tests run: the kernel lets ext4
// do so only with CAP_SYS_RESOURCE.
func GrowingClass(ctx context.Context, client kubernetes.Interface) (string, error) {
	class := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "growing"}, Provisioner: "local.volplane.dev",
		Parameters:           map[string]string{"csi.storage.k8s.io/fstype": "xfs"},
		AllowVolumeExpansion: ptr.To(true), VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
	}
	_, err := client.StorageV1().StorageClasses().Create(ctx, class, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		err = nil
	}
	return class.Name, err
}

// Pod returns a Pod that uses the claim; node may be empty.
func Pod(name, claim, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: corev1.PodSpec{
			NodeName:   node,
			Containers: []corev1.Container{{Name: "none", Image: "none"}},
			Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}}},
		},
	}
}

// Mounted says whether all volumes of the Pod are mounted, and the condition's
// message.
func Mounted(pod *corev1.Pod) (bool, string) {
	for _, c := range pod.Status.Conditions {
		if c.Type == "volplane.dev/VolumesMounted" {
			return c.Status == corev1.ConditionTrue, c.Message
		}
	}
	return false, "no condition yet"
}

var errWatchEnded = errors.New("the server has ended the watch of the pods")

// WaitPods watches the Pods of the default namespace until done returns true.
func WaitPods(ctx context.Context, client kubernetes.Interface, done func(watch.EventType, *corev1.Pod) bool) error {
	pods := client.CoreV1().Pods("default")
	list, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range list.Items {
		if done(watch.Added, &list.Items[i]) {
			return nil
		}
	}
	w, err := pods.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		return err
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		if e.Type == watch.Error {
			return fmt.Errorf("watch pods: %w", apierrors.FromObject(e.Object))
		}
		if pod, ok := e.Object.(*corev1.Pod); ok && done(e.Type, pod) {
			return nil
		}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("watch pods: %w", context.Cause(ctx))
	}
	return errWatchEnded
}

// Leader returns which of the control planes with these names runs the controllers of the cluster.
func Leader(ctx context.Context, client kubernetes.Interface, names iter.Seq[string]) (string, error) {
	leases := client.CoordinationV1().Leases(volume.NamespaceSystem)
	l, err := leases.Get(ctx, volume.ControlPlaneLease, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	for name := range names {
		if Holds(l, name) {
			return name, nil
		}
	}
	return "", fmt.Errorf("the lease is held by %q", ptr.Deref(l.Spec.HolderIdentity, ""))
}

// Holds says whether one of several control planes, by its name, holds a lease.
func Holds(l *coordinationv1.Lease, name string) bool {
	return strings.HasPrefix(ptr.Deref(l.Spec.HolderIdentity, ""), "volplane-up_"+name+"_")
}
