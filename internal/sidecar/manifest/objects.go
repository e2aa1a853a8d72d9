package manifest

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

// Parts of the deployment.
const (
	partController = "controller"
	partNode       = "node"
)

// enforce is the label of a namespace with the Pod Security Standard of its Pods.
const enforce = "pod-security.kubernetes.io/enforce"

// Objects returns all objects that a driver needs in a cluster, in the order of their creation:
// namespace, accounts, roles, CSIDriver, workloads, and the service of changed blocks.
func Objects(o Options) ([]runtime.Object, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	var out []runtime.Object
	if o.OwnNamespace {
		// The Pods on the nodes are privileged: without that the host sees no mount of theirs.
		out = append(out, &corev1.Namespace{
			ObjectMeta: metav1.ObjectMeta{Name: o.Namespace, Labels: map[string]string{enforce: "privileged"}},
		})
	}
	out = append(out, o.accounts()...)
	if !o.WithoutRBAC {
		out = append(out, o.RBAC...)
	}
	if !o.WithoutCSIDriver {
		out = append(out, o.csiDriver())
	}
	out = append(out, o.workloads()...)
	if o.Blocks != nil {
		out = append(out, o.blocksObjects()...)
	}
	for _, object := range out {
		if err := o.label(object); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// accounts returns the service accounts of the workloads.
func (o Options) accounts() []runtime.Object {
	if o.WithoutAccounts {
		return nil
	}
	var out []runtime.Object
	if o.Shape != DaemonSet {
		out = append(out, &corev1.ServiceAccount{ObjectMeta: o.meta(o.controllerAccount(), partController)})
	}
	if !o.WithoutNodes {
		out = append(out, &corev1.ServiceAccount{ObjectMeta: o.meta(o.nodeAccount(), partNode)})
	}
	return out
}

// csiDriver returns the CSIDriver, in which the fields that the API server requires are always set.
func (o Options) csiDriver() *storagev1.CSIDriver {
	spec := *o.CSIDriver.DeepCopy()
	spec.AttachRequired = cmp.Or(spec.AttachRequired, ptr.To(slices.Contains(o.Controllers, "attacher")))
	if spec.StorageCapacity == nil {
		spec.StorageCapacity = ptr.To(slices.Contains(o.Controllers, "capacity"))
	}
	return &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{
			Name: o.Driver, Labels: maps.Clone(o.DriverMeta.Labels), Annotations: o.DriverMeta.Annotations,
		},
		Spec: spec,
	}
}

// workloads returns what runs, and how much of it may be away.
func (o Options) workloads() []runtime.Object {
	var out []runtime.Object
	one := intstr.FromInt32(1)
	switch o.Shape {
	case Deployment:
		if o.Budget {
			out = append(out, &policyv1.PodDisruptionBudget{
				ObjectMeta: o.meta(o.controller(), partController),
				Spec: policyv1.PodDisruptionBudgetSpec{
					MaxUnavailable: &one, Selector: o.selector(partController),
					// A Pod that does not work must not keep its node from being drained.
					UnhealthyPodEvictionPolicy: ptr.To(policyv1.AlwaysAllow),
				},
			})
		}
		out = append(out, &appsv1.Deployment{
			ObjectMeta: o.meta(o.controller(), partController),
			Spec: appsv1.DeploymentSpec{
				Replicas: &o.Replicas, Selector: o.selector(partController), Template: o.controllerPod(),
				Strategy: appsv1.DeploymentStrategy{
					Type:          appsv1.RollingUpdateDeploymentStrategyType,
					RollingUpdate: &appsv1.RollingUpdateDeployment{MaxUnavailable: &one},
				},
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
	if o.WithoutNodes {
		return out
	}
	return append(out, &appsv1.DaemonSet{
		ObjectMeta: o.meta(o.node(), partNode),
		Spec: appsv1.DaemonSetSpec{
			Selector: o.selector(partNode), Template: o.nodePod(), UpdateStrategy: o.NodeUpdates,
		},
	})
}

func (o Options) meta(name, part string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: o.Namespace, Name: name, Labels: o.labels(part)}
}

func (o Options) selector(part string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: o.selecting(part)}
}

// label adds the common labels to an object.
func (o Options) label(object runtime.Object) error {
	m, err := meta.Accessor(object)
	if err != nil {
		return err
	}
	labels := o.labels("")
	maps.Copy(labels, m.GetLabels())
	maps.Copy(labels, o.selecting(""))
	m.SetLabels(labels)
	return nil
}

// YAML returns objects as YAML documents for kubectl, without empty fields.
func YAML(objects []runtime.Object) ([]byte, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		appsv1.AddToScheme, corev1.AddToScheme, policyv1.AddToScheme, rbacv1.AddToScheme,
		storagev1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("print manifests: %w", err)
		}
	}
	var out bytes.Buffer
	for _, o := range objects {
		document, err := document(scheme, o)
		if err != nil {
			return nil, fmt.Errorf("print manifests: %w", err)
		}
		out.WriteString("---\n")
		out.Write(document)
	}
	return out.Bytes(), nil
}

func document(scheme *runtime.Scheme, o runtime.Object) ([]byte, error) {
	kinds, _, err := scheme.ObjectKinds(o)
	if err != nil {
		return nil, err
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, err
	}
	fields["apiVersion"], fields["kind"] = kinds[0].GroupVersion().String(), kinds[0].Kind
	delete(fields, "status")
	prune(fields)
	return yaml.Marshal(fields)
}

// prune removes empty fields, which Go prints although they have no meaning. An emptyDir has a
// meaning although it is empty.
func prune(v any) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			prune(e)
		}
	case map[string]any:
		for name, e := range v {
			prune(e)
			if m, ok := e.(map[string]any); e == nil || e == "" || ok && len(m) == 0 && name != "emptyDir" {
				delete(v, name)
			}
		}
	}
}
