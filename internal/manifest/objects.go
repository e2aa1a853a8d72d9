package manifest

import (
	"maps"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Parts of the deployment.
const (
	partController = "controller"
	partNode       = "node"
)

// enforce is the label of a namespace with the Pod Security Standard of its Pods.
const enforce = "pod-security.kubernetes.io/enforce"

// Objects returns all objects that a driver needs in a cluster, in the order of their creation:
// namespace, accounts, roles, CSIDriver, and workloads.
func Objects(o Options) ([]runtime.Object, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	var out []runtime.Object
	if o.owned() {
		// The Pods on the nodes are privileged: without that the host sees no
		// mount of theirs.
		out = append(out, &corev1.Namespace{
			ObjectMeta: metav1.ObjectMeta{Name: o.Namespace, Labels: map[string]string{enforce: "privileged"}},
		})
	}
	if o.Shape != DaemonSet {
		out = append(out, &corev1.ServiceAccount{ObjectMeta: o.meta(o.controller(), partController)})
	}
	node := &corev1.ServiceAccount{ObjectMeta: o.meta(o.node(), partNode)}
	out = append(append(out, node), o.RBAC...)
	out = append(out, &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: o.Driver},
		Spec:       o.csiDriver(),
	})
	switch o.Shape {
	case Deployment:
		out = append(out, &appsv1.Deployment{
			ObjectMeta: o.meta(o.controller(), partController),
			Spec: appsv1.DeploymentSpec{
				Replicas: &o.Replicas, Selector: o.selector(partController), Template: o.controllerPod(),
			},
		})
	case StatefulSet:
		out = append(out, &appsv1.StatefulSet{
			ObjectMeta: o.meta(o.controller(), partController),
			Spec: appsv1.StatefulSetSpec{
				Replicas: &o.Replicas, Selector: o.selector(partController), Template: o.controllerPod(),
			},
		})
	}
	out = append(out, &appsv1.DaemonSet{
		ObjectMeta: o.meta(o.node(), partNode),
		Spec:       appsv1.DaemonSetSpec{Selector: o.selector(partNode), Template: o.nodePod()},
	})
	for _, object := range out {
		if err := o.label(object); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (o Options) csiDriver() storagev1.CSIDriverSpec {
	spec := storagev1.CSIDriverSpec{AttachRequired: &o.Attaches, StorageCapacity: &o.TracksRoom}
	if o.SELinuxMount {
		spec.SELinuxMount = &o.SELinuxMount
	}
	return spec
}

func (o Options) meta(name, part string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: o.Namespace, Name: name, Labels: o.labels(part)}
}

func (o Options) selector(part string) *metav1.LabelSelector {
	labels := o.labels(part)
	delete(labels, "app.kubernetes.io/managed-by")
	return &metav1.LabelSelector{MatchLabels: labels}
}

// label adds the common labels to an object.
func (o Options) label(object runtime.Object) error {
	m, err := meta.Accessor(object)
	if err != nil {
		return err
	}
	labels := o.labels("")
	maps.Copy(labels, m.GetLabels())
	m.SetLabels(labels)
	return nil
}
