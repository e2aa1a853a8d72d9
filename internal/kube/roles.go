package kube

import (
	"maps"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Roles returns RBAC objects, all called name, that grant exactly rights to a subject: a
// ClusterRole for the rights without a namespace, a Role for each namespace, and their bindings.
func Roles(name string, rights []Access, to rbacv1.Subject) []runtime.Object {
	in := map[string][]Access{}
	for _, a := range rights {
		in[a.Namespace] = append(in[a.Namespace], a)
	}
	var out []runtime.Object
	for _, namespace := range slices.Sorted(maps.Keys(in)) {
		meta := metav1.ObjectMeta{Namespace: namespace, Name: name}
		ref, to := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Name: name}, []rbacv1.Subject{to}
		if namespace == "" {
			ref.Kind = "ClusterRole"
			out = append(out, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules(in[namespace])},
				&rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: to})
			continue
		}
		ref.Kind = "Role"
		out = append(out, &rbacv1.Role{ObjectMeta: meta, Rules: rules(in[namespace])},
			&rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: to})
	}
	return out
}

// rules returns one rule for each resource and set of object names.
func rules(rights []Access) []rbacv1.PolicyRule {
	var out []rbacv1.PolicyRule
	for _, a := range rights {
		i := slices.IndexFunc(out, func(r rbacv1.PolicyRule) bool {
			return r.APIGroups[0] == a.Group && r.Resources[0] == a.Resource && slices.Equal(r.ResourceNames, a.Names)
		})
		if i < 0 {
			i = len(out)
			out = append(out, rbacv1.PolicyRule{
				APIGroups: []string{a.Group}, Resources: []string{a.Resource}, ResourceNames: a.Names,
			})
		}
		out[i].Verbs = append(out[i].Verbs, a.Verbs...)
	}
	for i := range out {
		slices.Sort(out[i].Verbs)
		out[i].Verbs = slices.Compact(out[i].Verbs)
	}
	slices.SortStableFunc(out, func(a, b rbacv1.PolicyRule) int {
		return strings.Compare(a.APIGroups[0]+" "+a.Resources[0], b.APIGroups[0]+" "+b.Resources[0])
	})
	return out
}

// User returns the subject of a user.
func User(name string) rbacv1.Subject {
	return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}
}

// Group returns the subject of a group of users.
func Group(name string) rbacv1.Subject {
	return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: name}
}

// ServiceAccount returns the subject of a ServiceAccount.
func ServiceAccount(namespace, name string) rbacv1.Subject {
	return rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}
}
