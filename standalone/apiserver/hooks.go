package apiserver

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/clusterroleaggregation"
	"k8s.io/kubernetes/pkg/controller/namespace"
	"k8s.io/kubernetes/pkg/controller/serviceaccount"
	"k8s.io/kubernetes/pkg/controlplane/controller/systemnamespaces"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"

	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/standalone/backup"
)

// hooks adds the work of the server itself after its start: the roles and namespaces of every cluster, the rules of
// aggregated roles, the default service account of each namespace, the deletion of namespaces, and the usage of quotas.
func (a *assembly) hooks(server *genericapiserver.GenericAPIServer) error {
	client, err := kubernetes.NewForConfig(a.config.LoopbackClientConfig)
	if err != nil {
		return fmt.Errorf("loopback client: %w", err)
	}
	objects, err := metadata.NewForConfig(a.config.LoopbackClientConfig)
	if err != nil {
		return fmt.Errorf("loopback client: %w", err)
	}
	// Kubernetes has as many roles and bindings again for its own controllers, which do not run here.
	policy := rbacrest.PolicyData{
		ClusterRoles: bootstrappolicy.ClusterRoles(), ClusterRoleBindings: bootstrappolicy.ClusterRoleBindings(),
		Roles: bootstrappolicy.NamespaceRoles(), RoleBindings: bootstrappolicy.NamespaceRoleBindings(),
	}
	server.AddPostStartHookOrDie(rbacrest.PostStartHookName, policy.EnsureRBACPolicy())
	accounts, err := serviceaccount.NewServiceAccountsController(klog.Background(),
		a.informers.Core().V1().ServiceAccounts(), a.informers.Core().V1().Namespaces(),
		client, serviceaccount.DefaultServiceAccountsControllerOptions())
	if err != nil {
		return fmt.Errorf("service accounts of every namespace: %w", err)
	}
	server.AddPostStartHookOrDie("service-accounts", func(h genericapiserver.PostStartHookContext) error {
		go accounts.Run(h, 1)
		return nil
	})
	roles := clusterroleaggregation.NewClusterRoleAggregation(a.informers.Rbac().V1().ClusterRoles(), client.RbacV1())
	server.AddPostStartHookOrDie("aggregated-roles", func(h genericapiserver.PostStartHookContext) error {
		go roles.Run(h, 1)
		return nil
	})
	server.AddPostStartHookOrDie("namespaces", func(h genericapiserver.PostStartHookContext) error {
		all := a.informers.Core().V1().Namespaces()
		always := []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease}
		go systemnamespaces.NewController(always, client, all).Run(h.Done())
		ends := namespace.NewNamespaceController(h, client, objects, client.Discovery().ServerPreferredNamespacedResources,
			all, 5*time.Minute, corev1.FinalizerKubernetes)
		go ends.Run(h, 1)
		return nil
	})
	server.AddPostStartHookOrDie("membership",
		func(h genericapiserver.PostStartHookContext) error { return a.members.Run(h) })
	return a.keepQuotas(server, client, objects)
}

// markRestored records in the API that it was restored from a backup, or that its store was replaced by an older one,
// before other requests are served. Nodes and controllers check this record before they unmount, detach or delete.
func (s *Server) markRestored(ctx context.Context, client kubernetes.Interface) error {
	r, pending, err := backup.Pending(s.dir.Path)
	if err != nil || !pending {
		return err
	}
	said := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: volume.NamespaceSystem, Name: volume.ConfigRestored},
		Data: map[string]string{
			volume.RestoredMade: r.Made.Format(time.RFC3339), "file": filepath.Base(r.From), "version": r.Version,
		},
	}
	if at := r.Recorded.At; !at.IsZero() {
		said.Data[volume.RestoredLacks] = at.Format(time.RFC3339)
	}
	if err := ensureNamespace(ctx, client, volume.NamespaceSystem); err != nil {
		return err
	}
	maps := client.CoreV1().ConfigMaps(said.Namespace)
	_, err = maps.Create(ctx, said, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		// The object is from an earlier restore or part of the backup.
		_, err = maps.Update(ctx, said, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("record that the API was restored: %w", err)
	}
	return backup.Settle(s.dir.Path)
}

// ensureNamespace creates a namespace that the server itself creates a moment later.
func ensureNamespace(ctx context.Context, client kubernetes.Interface, name string) error {
	_, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
		metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("namespace %s: %w", name, err)
	}
	return nil
}
