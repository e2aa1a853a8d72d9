package apiserver

import (
	"context"
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestWritesWhatDiffers compares a role with what the server has listed.
func TestWritesWhatDiffers(t *testing.T) {
	t.Parallel()
	kept := metav1.ObjectMeta{
		Name: "x", UID: "1", ResourceVersion: "7", CreationTimestamp: metav1.Now(),
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "volplaned"}},
	}
	labelled := kept
	labelled.Labels = map[string]string{"a": "b"}
	rules := []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}}
	more := append(slices.Clone(rules), rbacv1.PolicyRule{Verbs: []string{"*"}, Resources: []string{"*"}})
	for name, c := range map[string]struct {
		list []rbacv1.ClusterRole
		want []string
	}{
		"the same":  {list: []rbacv1.ClusterRole{{ObjectMeta: kept, Rules: rules}}},
		"none":      {want: []string{"create"}},
		"another's": {list: []rbacv1.ClusterRole{{Rules: rules}}, want: []string{"create"}},
		"fewer":     {list: []rbacv1.ClusterRole{{ObjectMeta: kept}}, want: []string{"create", "update"}},
		"more":      {list: []rbacv1.ClusterRole{{ObjectMeta: kept, Rules: more}}, want: []string{"create", "update"}},
		"a label":   {list: []rbacv1.ClusterRole{{ObjectMeta: labelled, Rules: rules}}, want: []string{"create", "update"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			calls := recorder{exists: slices.Contains(c.want, "update")}
			want := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Rules: rules}
			if err := ensure(t.Context(), &calls, want, c.list...); err != nil || !slices.Equal(calls.made, c.want) {
				t.Errorf("made %v, %v, want %v", calls.made, err, c.want)
			}
		})
	}
}

// recorder is an API that only records requests.
type recorder struct {
	exists bool
	made   []string
}

func (r *recorder) Create(
	_ context.Context, o *rbacv1.ClusterRole, _ metav1.CreateOptions,
) (*rbacv1.ClusterRole, error) {
	r.made = append(r.made, "create")
	if r.exists {
		return nil, apierrors.NewAlreadyExists(schema.GroupResource{Resource: "clusterroles"}, o.Name)
	}
	return o, nil
}

func (r *recorder) Update(
	_ context.Context, o *rbacv1.ClusterRole, _ metav1.UpdateOptions,
) (*rbacv1.ClusterRole, error) {
	r.made = append(r.made, "update")
	return o, nil
}

func (r *recorder) Delete(context.Context, string, metav1.DeleteOptions) error {
	r.made = append(r.made, "delete")
	return nil
}
