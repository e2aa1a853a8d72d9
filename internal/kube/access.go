package kube

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

// Access is the right to use verbs on one resource. Resource may name a subresource
// ("pods/status"). Verbs are those of RBAC. Namespace, if set, limits the right to that namespace,
// and Names to the objects of these names; a right with Names cannot include "create".
type Access struct {
	Group, Resource string
	Verbs           []string
	Namespace       string
	Names           []string
	// Fields are all fields that these verbs change in an existing object. Clients do not enforce it: tests do.
	Fields []Field
}

// Field is a field of objects with all that is below it. An entry of a list or map is a field of its own:
// "metadata.finalizers[NAME]", "metadata.annotations[KEY]", "status.conditions[TYPE]"; a name that ends in * means all
// names with that prefix.
type Field struct {
	Path string
	// Shared says why several writers of a field do not work against each other; a field without it has one writer.
	Shared string
}

// Only returns the right to change only these fields, which no other writer changes.
func (a Access) Only(paths ...string) Access { return a.Shared("", paths...) }

// Shared returns the right to change these fields, too, which others also change, and why that is safe.
func (a Access) Shared(why string, paths ...string) Access {
	a.Fields = slices.Clone(a.Fields)
	for _, path := range paths {
		a.Fields = append(a.Fields, Field{Path: path, Shared: why})
	}
	return a
}

// Annotation returns the path of one annotation.
func Annotation(key string) string { return "metadata.annotations[" + key + "]" }

// Finalizer returns the path of one finalizer.
func Finalizer(name string) string { return "metadata.finalizers[" + name + "]" }

// Condition returns the path of the condition of a type.
func Condition[T ~string](kind T) string { return "status.conditions[" + string(kind) + "]" }

// Read returns the rights to get, list and watch resources of a group.
func Read(group string, resources ...string) []Access {
	return access(group, resources, "get", "list", "watch")
}

// Write returns the right to use verbs on one resource of group.
func Write(group, resource string, verbs ...string) Access {
	return Access{Group: group, Resource: resource, Verbs: verbs}
}

func access(group string, resources []string, verbs ...string) []Access {
	out := make([]Access, 0, len(resources))
	for _, r := range resources {
		out = append(out, Access{Group: group, Resource: r, Verbs: verbs})
	}
	return out
}

// Events returns the right to record events; every component has it.
func Events() Access {
	return Write("", "events", "create", "patch", "update")
}

// Restrict returns a copy of config that refuses each request that rights do not allow, before it leaves the process.
// So a component has only the rights it declares, even where several components share one identity.
func Restrict(config *rest.Config, component string, rights []Access) *rest.Config {
	c := rest.CopyConfig(config)
	c.UserAgent = "volplane/" + component
	c.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &restricted{next: next, component: component, rights: rights}
	})
	return c
}

type restricted struct {
	next      http.RoundTripper
	component string
	rights    []Access
}

// RoundTrip refuses a request that the component has not declared.
func (r *restricted) RoundTrip(req *http.Request) (*http.Response, error) {
	q, ok := parseRequest(req)
	if ok && !r.allows(q) {
		return nil, fmt.Errorf("%s may not %s %s in group %q: not declared by this component", r.component, q.verb,
			q.resource, q.group)
	}
	return r.next.RoundTrip(req)
}

func (r *restricted) allows(q request) bool {
	for _, a := range r.rights {
		if a.Group == q.group && a.Resource == q.resource && slices.Contains(a.Verbs, q.verb) &&
			(a.Namespace == "" || a.Namespace == q.namespace) && (len(a.Names) == 0 || slices.Contains(a.Names, q.name)) {
			return true
		}
	}
	return false
}

type request struct{ group, resource, namespace, name, verb string }

// parseRequest returns the target of a request of the Kubernetes API. The resource includes its subresource; the name
// is also set for a watch of one object. ok is false for requests that name no resource, such as discovery.
func parseRequest(req *http.Request) (q request, ok bool) {
	parts := strings.Split(strings.Trim(req.URL.Path, "/"), "/")
	switch {
	case len(parts) >= 3 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) >= 4 && parts[0] == "apis":
		q.group, parts = parts[1], parts[3:]
	default:
		return q, false
	}
	if len(parts) >= 3 && parts[0] == "namespaces" && !namespaceSubresource(parts[2]) {
		q.namespace, parts = parts[1], parts[2:]
	}
	q.resource, q.verb = parts[0], requestVerb(req, len(parts) >= 2)
	if len(parts) >= 2 {
		q.name = parts[1]
	} else if name, ok := strings.CutPrefix(req.URL.Query().Get("fieldSelector"), "metadata.name="); ok {
		q.name = name
	}
	if len(parts) >= 3 {
		q.resource += "/" + parts[2]
	}
	return q, true
}

func namespaceSubresource(s string) bool {
	return s == "status" || s == "finalize"
}

func requestVerb(req *http.Request, named bool) string {
	watch := req.URL.Query().Get("watch")
	switch {
	case req.Method == http.MethodPost:
		return "create"
	case req.Method == http.MethodPut:
		return "update"
	case req.Method == http.MethodPatch:
		return "patch"
	case req.Method == http.MethodDelete && named:
		return "delete"
	case req.Method == http.MethodDelete:
		return "deletecollection"
	case watch == "true" || watch == "1":
		return "watch"
	case named:
		return "get"
	default:
		return "list"
	}
}

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
