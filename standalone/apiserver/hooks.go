package apiserver

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/kubernetes/pkg/controller/namespace"
	"k8s.io/kubernetes/pkg/controlplane/controller/systemnamespaces"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"
)

// hooks are what the server does itself once it serves: the roles that every
// cluster has, the namespaces that always exist, and the end of namespaces.
func (a *assembly) hooks(server *genericapiserver.GenericAPIServer) error {
	client, err := kubernetes.NewForConfig(a.config.LoopbackClientConfig)
	if err != nil {
		return fmt.Errorf("loopback client: %w", err)
	}
	objects, err := metadata.NewForConfig(a.config.LoopbackClientConfig)
	if err != nil {
		return fmt.Errorf("loopback client: %w", err)
	}
	name, bootstrap, err := rbacrest.RESTStorageProvider{Authorizer: a.config.Authorization.Authorizer}.PostStartHook()
	if err != nil {
		return fmt.Errorf("roles of every cluster: %w", err)
	}
	server.AddPostStartHookOrDie(name, bootstrap)
	server.AddPostStartHookOrDie("namespaces", func(h genericapiserver.PostStartHookContext) error {
		all := a.informers.Core().V1().Namespaces()
		always := []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease}
		go systemnamespaces.NewController(always, client, all).Run(h.Done())
		ends := namespace.NewNamespaceController(h, client, objects, client.Discovery().ServerPreferredNamespacedResources,
			all, 5*time.Minute, corev1.FinalizerKubernetes)
		go ends.Run(h, 1)
		return nil
	})
	return nil
}

// ensureRBAC makes the roles and bindings what they should be.
func ensureRBAC(ctx context.Context, client kubernetes.Interface, objects []runtime.Object) error {
	for _, o := range objects {
		var err error
		switch want := o.(type) {
		case *rbacv1.ClusterRole:
			err = ensureRole(ctx, client, want)
		case *rbacv1.ClusterRoleBinding:
			err = ensureBinding(ctx, client, want)
		default:
			err = fmt.Errorf("%T is neither a ClusterRole nor a ClusterRoleBinding", o)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func ensureRole(ctx context.Context, client kubernetes.Interface, want *rbacv1.ClusterRole) error {
	roles := client.RbacV1().ClusterRoles()
	_, err := roles.Create(ctx, want, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = roles.Update(ctx, want, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("ensure role %s: %w", want.Name, err)
	}
	return nil
}

// ensureBinding makes the binding what it should be. Whom it gives a role may
// change, the role itself not: then it is made anew.
func ensureBinding(ctx context.Context, client kubernetes.Interface, want *rbacv1.ClusterRoleBinding) error {
	bindings := client.RbacV1().ClusterRoleBindings()
	_, err := bindings.Create(ctx, want, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = bindings.Update(ctx, want, metav1.UpdateOptions{})
	}
	if apierrors.IsInvalid(err) {
		if err = bindings.Delete(ctx, want.Name, metav1.DeleteOptions{}); err == nil || apierrors.IsNotFound(err) {
			_, err = bindings.Create(ctx, want, metav1.CreateOptions{})
		}
	}
	if err != nil {
		return fmt.Errorf("ensure binding %s: %w", want.Name, err)
	}
	return nil
}
