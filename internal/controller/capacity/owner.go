package app

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"volplane.dev/volplane/internal/decide/capacity"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/sidecar"
)

// errNoOwner says that the objects would be left behind when the driver is removed.
var errNoOwner = errors.New("has no controller, which is to own the capacity objects: choose a lower level")

// ownerRights are the rights that finding an owner needs.
func ownerRights(o sidecar.CapacityOwner) []kube.Access {
	in := func(group, resource string) kube.Access {
		a := kube.Write(group, resource, "get")
		a.Namespace = o.Namespace
		return a
	}
	return []kube.Access{in("", "pods"), in("apps", "replicasets")}
}

// capacityHome finds out where the capacity objects of a process are, and whose they are.
func capacityHome(ctx context.Context, config *rest.Config, o *sidecar.CapacityOwner) (capacity.Home, error) {
	if o == nil {
		return capacity.Home{}, nil
	}
	home := capacity.Home{Namespace: o.Namespace}
	if o.Level < 0 {
		return home, nil
	}
	client, err := kubernetes.NewForConfig(kube.Restrict(config, "capacity-owner", ownerRights(*o)))
	if err != nil {
		return home, fmt.Errorf("client for the owner of the capacity objects: %w", err)
	}
	home.Owner, err = ownerOf(ctx, client, *o)
	return home, err
}

// ownerOf returns the Pod of the process, its controller, or that of its ReplicaSet.
func ownerOf(
	ctx context.Context, client kubernetes.Interface, o sidecar.CapacityOwner,
) (*metav1.OwnerReference, error) {
	pod, err := client.CoreV1().Pods(o.Namespace).Get(ctx, o.Pod, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("own Pod %s/%s: %w", o.Namespace, o.Pod, err)
	}
	if o.Level == 0 {
		return metav1.NewControllerRef(pod, corev1.SchemeGroupVersion.WithKind("Pod")), nil
	}
	owner := capacity.ControllerOf(pod)
	if owner == nil {
		return nil, fmt.Errorf("own Pod %s/%s %w", o.Namespace, o.Pod, errNoOwner)
	}
	if o.Level == 1 {
		return owner, nil
	}
	what := fmt.Sprintf("%s %s/%s", owner.Kind, o.Namespace, owner.Name)
	if owner.Kind != "ReplicaSet" || o.Level > 2 {
		return nil, fmt.Errorf("%s %w", what, errNoOwner)
	}
	set, err := client.AppsV1().ReplicaSets(o.Namespace).Get(ctx, owner.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	if owner = capacity.ControllerOf(set); owner == nil {
		return nil, fmt.Errorf("%s %w", what, errNoOwner)
	}
	return owner, nil
}
