package kube

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// TestRoles: a rule for each resource with all declared verbs, and a role for each
// namespace to which rights are limited.
func TestRoles(t *testing.T) {
	got := Roles("r", []Access{
		Write("", "pods", "update"),
		{Resource: "leases", Namespace: "n", Verbs: []string{"create"}},
		{Resource: "leases", Namespace: "n", Names: []string{"a", "b"}, Verbs: []string{"get"}},
		{Resource: "leases", Namespace: "n", Names: []string{"a"}, Verbs: []string{"get"}},
		{Resource: "leases", Namespace: "n", Names: []string{"a", "b"}, Verbs: []string{"update"}},
		Write("apps", "pods", "get"), Write("", "pods", "get", "update"), Write("", "nodes", "list"),
	}, ServiceAccount("m", "s"))
	rule := func(group, resource string, names []string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{
			APIGroups: []string{group}, Resources: []string{resource}, ResourceNames: names, Verbs: verbs,
		}
	}
	to := []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "m", Name: "s"}}
	want := []runtime.Object{
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Rules: []rbacv1.PolicyRule{
			rule("", "nodes", nil, "list"), rule("", "pods", nil, "get", "update"), rule("apps", "pods", nil, "get"),
		}},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "r"}, Subjects: to,
			RoleRef: rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: "r"},
		},
		&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "r"}, Rules: []rbacv1.PolicyRule{
			rule("", "leases", nil, "create"), rule("", "leases", []string{"a", "b"}, "get", "update"),
			rule("", "leases", []string{"a"}, "get"),
		}},
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "r"}, Subjects: to,
			RoleRef: rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "Role", Name: "r"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("roles (-want +got):\n%s", diff)
	}
}
