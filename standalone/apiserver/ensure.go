package apiserver

import (
	"context"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	extensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	extensionstyped "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/standalone/apiserver/crds"
)

// version is that of this program. It is written to what each start ensures, so that a control plane of an older
// version, which starts during an upgrade, leaves that as a newer one wants it.
type version string

// stamp writes the version to an object.
func (v version) stamp(o metav1.Object) {
	notes := o.GetAnnotations()
	if notes == nil {
		notes = map[string]string{}
	}
	notes[volume.AnnVersion] = string(v)
	o.SetAnnotations(notes)
}

// isOlder says whether a newer version has written an object. A version that is not a release is of any age.
func (v version) isOlder(have metav1.Object) bool {
	theirs, err := utilversion.ParseSemantic(have.GetAnnotations()[volume.AnnVersion])
	if err != nil {
		return false
	}
	ours, err := utilversion.ParseSemantic(string(v))
	return err == nil && ours.LessThan(theirs)
}

// retryWrite repeats a function that reads and then writes, because another control plane may do so at the same time.
func retryWrite(readAndWrite func() error) error {
	return retry.OnError(retry.DefaultBackoff, func(err error) bool {
		return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err)
	}, readAndWrite)
}

// ensureRBAC creates or updates the roles and bindings.
func ensureRBAC(ctx context.Context, client kubernetes.Interface, objects []runtime.Object, v version) error {
	return retryWrite(func() error { return tryRBAC(ctx, client, objects, v) })
}

func tryRBAC(ctx context.Context, client kubernetes.Interface, objects []runtime.Object, v version) error {
	rbac, all := client.RbacV1(), metav1.ListOptions{}
	clusterRoles, err := rbac.ClusterRoles().List(ctx, all)
	if err != nil {
		return fmt.Errorf("list roles: %w", err)
	}
	clusterBindings, err := rbac.ClusterRoleBindings().List(ctx, all)
	if err != nil {
		return fmt.Errorf("list bindings of roles: %w", err)
	}
	roles, err := rbac.Roles(metav1.NamespaceAll).List(ctx, all)
	if err != nil {
		return fmt.Errorf("list roles of namespaces: %w", err)
	}
	bindings, err := rbac.RoleBindings(metav1.NamespaceAll).List(ctx, all)
	if err != nil {
		return fmt.Errorf("list bindings of roles of namespaces: %w", err)
	}
	for _, o := range objects {
		var err error
		switch want := o.(type) {
		case *rbacv1.ClusterRole:
			err = ensure(ctx, rbac.ClusterRoles(), v, want, clusterRoles.Items)
		case *rbacv1.ClusterRoleBinding:
			err = ensure(ctx, rbac.ClusterRoleBindings(), v, want, clusterBindings.Items)
		case *rbacv1.Role:
			err = ensure(ctx, rbac.Roles(want.Namespace), v, want, roles.Items)
		case *rbacv1.RoleBinding:
			err = ensure(ctx, rbac.RoleBindings(want.Namespace), v, want, bindings.Items)
		default:
			err = fmt.Errorf("%T is neither a role nor a binding", o)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

type object[T any] interface {
	*T
	metav1.Object
}

// same says whether an object is as wanted, apart from what the server adds and from the version that has written it.
func same(want, have metav1.Object) bool {
	have.SetUID("")
	have.SetResourceVersion(want.GetResourceVersion())
	have.SetCreationTimestamp(metav1.Time{})
	have.SetManagedFields(nil)
	version(want.GetAnnotations()[volume.AnnVersion]).stamp(have)
	return equality.Semantic.DeepEqual(want, have)
}

type resource[T metav1.Object] interface {
	Create(ctx context.Context, o T, opts metav1.CreateOptions) (T, error)
	Update(ctx context.Context, o T, opts metav1.UpdateOptions) (T, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

// ensure creates or updates an object, unless the list has it in the wanted form or that of a newer version. The role
// of a binding is immutable, so a binding with another role is deleted and created again.
func ensure[T any, P object[T]](ctx context.Context, client resource[P], v version, want P, list []T) error {
	v.stamp(want)
	for i := range list {
		have := P(&list[i])
		if have.GetName() != want.GetName() || have.GetNamespace() != want.GetNamespace() {
			continue
		}
		at := have.GetResourceVersion()
		if v.isOlder(have) || same(want, have) {
			return nil
		}
		want.SetResourceVersion(at)
	}
	err := write(ctx, client, want)
	if err != nil {
		return fmt.Errorf("ensure role or binding %s: %w", want.GetName(), err)
	}
	return nil
}

// write creates an object that has no resource version, and updates it otherwise.
func write[T metav1.Object](ctx context.Context, client resource[T], want T) error {
	var err error
	if want.GetResourceVersion() != "" {
		_, err = client.Update(ctx, want, metav1.UpdateOptions{})
		want.SetResourceVersion("")
		if !apierrors.IsInvalid(err) {
			return err
		}
		if err = client.Delete(ctx, want.GetName(), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	_, err = client.Create(ctx, want, metav1.CreateOptions{})
	return err
}

// ensureCRDs creates or updates the custom resources of this program. Other custom resources stay as they are.
func ensureCRDs(ctx context.Context, config *rest.Config, v version) error {
	client, err := extensionsclient.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("client of custom resources: %w", err)
	}
	all, err := crds.All()
	if err != nil {
		return err
	}
	definitions := client.ApiextensionsV1().CustomResourceDefinitions()
	for _, want := range all {
		if err := retryWrite(func() error { return ensureCRD(ctx, definitions, v, want) }); err != nil {
			return fmt.Errorf("ensure custom resource %s: %w", want.Name, err)
		}
	}
	return nil
}

// ensureCRD reads before it writes: to refuse the creation of an existing one, the server would first compile its
// rules.
func ensureCRD(
	ctx context.Context, definitions extensionstyped.CustomResourceDefinitionInterface, v version,
	want *apiextensionsv1.CustomResourceDefinition,
) error {
	v.stamp(want)
	have, err := definitions.Get(ctx, want.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		_, err = definitions.Create(ctx, want, metav1.CreateOptions{})
	case err == nil && !v.isOlder(have) && !equality.Semantic.DeepDerivative(want.Spec, have.Spec):
		have.Spec, have.Annotations = want.Spec, want.Annotations
		_, err = definitions.Update(ctx, have, metav1.UpdateOptions{})
	}
	return err
}
