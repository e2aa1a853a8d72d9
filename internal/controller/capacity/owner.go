package capacity

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	decide "volplane.dev/volplane/internal/decide/capacity"
	"volplane.dev/volplane/internal/kube"
)

// Owner is what owns the objects of a process, which are deleted with it.
type Owner struct {
	// Namespace and Pod name the Pod of this process.
	Namespace, Pod string
	// Level is -1 for no owner, so that only the namespace is used, 0 for the Pod, 1 for its StatefulSet, DaemonSet or
	// ReplicaSet, and 2 for the Deployment.
	Level int
}

// errNoOwner says that the objects would be left behind when the driver is removed.
var errNoOwner = errors.New("has no controller, which is to own the capacity objects: choose a lower level")

// rights are those that finding the owner needs.
func (o Owner) rights() []kube.Access {
	in := func(group, resource string) kube.Access {
		a := kube.Write(group, resource, "get")
		a.Namespace = o.Namespace
		return a
	}
	return []kube.Access{in("", "pods"), in("apps", "replicasets")}
}

// Home finds out where the objects of a process are, and whose they are.
func (o Owner) Home(ctx context.Context, config *rest.Config) (decide.Home, error) {
	home := decide.Home{Namespace: o.Namespace}
	if o.Level < 0 {
		return home, nil
	}
	client, err := kubernetes.NewForConfig(kube.Restrict(config, "capacity-owner", o.rights()))
	if err != nil {
		return home, fmt.Errorf("client for the owner of the capacity objects: %w", err)
	}
	home.Owner, err = o.find(ctx, client)
	return home, err
}

// find returns the Pod of the process, its controller, or that of its ReplicaSet.
func (o Owner) find(ctx context.Context, client kubernetes.Interface) (*metav1.OwnerReference, error) {
	pod, err := client.CoreV1().Pods(o.Namespace).Get(ctx, o.Pod, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("own Pod %s/%s: %w", o.Namespace, o.Pod, err)
	}
	if o.Level == 0 {
		return metav1.NewControllerRef(pod, corev1.SchemeGroupVersion.WithKind("Pod")), nil
	}
	owner := decide.ControllerOf(pod)
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
	if owner = decide.ControllerOf(set); owner == nil {
		return nil, fmt.Errorf("%s %w", what, errNoOwner)
	}
	return owner, nil
}
