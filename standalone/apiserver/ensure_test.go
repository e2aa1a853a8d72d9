package apiserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"volplane.dev/volplane/internal/volume"
)

// TestWritesWhatDiffers compares a role with what the server has listed. What a newer version has written stays.
func TestWritesWhatDiffers(t *testing.T) {
	t.Parallel()
	kept := func(by version) metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Name: "x", UID: "1", ResourceVersion: "7", CreationTimestamp: metav1.Now(),
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "volplaned"}},
			Annotations:   map[string]string{volume.AnnVersion: string(by)},
		}
	}
	const older, ours, newer = "v0.9.9", "v0.10.0", "v0.10.1"
	labelled, unstamped, elsewhere := kept(ours), kept(ours), kept(ours)
	labelled.Labels, unstamped.Annotations, elsewhere.Namespace = map[string]string{"a": "b"}, nil, "ns"
	rules := []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}}
	more := append(slices.Clone(rules), rbacv1.PolicyRule{Verbs: []string{"*"}, Resources: []string{"*"}})
	for name, c := range map[string]struct {
		list []rbacv1.ClusterRole
		want []string
		us   version
	}{
		"the same":                    {list: []rbacv1.ClusterRole{{ObjectMeta: kept(ours), Rules: rules}}},
		"the same of an older one":    {list: []rbacv1.ClusterRole{{ObjectMeta: kept(older), Rules: rules}}},
		"the same of before versions": {list: []rbacv1.ClusterRole{{ObjectMeta: unstamped, Rules: rules}}},
		"none":                        {want: []string{"create"}},
		"another's":                   {list: []rbacv1.ClusterRole{{Rules: rules}}, want: []string{"create"}},
		"one elsewhere": {
			list: []rbacv1.ClusterRole{{ObjectMeta: elsewhere, Rules: rules}}, want: []string{"create"},
		},
		"fewer":   {list: []rbacv1.ClusterRole{{ObjectMeta: kept(ours)}}, want: []string{"update 7"}},
		"more":    {list: []rbacv1.ClusterRole{{ObjectMeta: kept(older), Rules: more}}, want: []string{"update 7"}},
		"a label": {list: []rbacv1.ClusterRole{{ObjectMeta: labelled, Rules: rules}}, want: []string{"update 7"}},
		"more of before versions": {
			list: []rbacv1.ClusterRole{{ObjectMeta: unstamped, Rules: more}}, want: []string{"update 7"},
		},
		"more of a newer one":  {list: []rbacv1.ClusterRole{{ObjectMeta: kept(newer), Rules: more}}},
		"fewer of a newer one": {list: []rbacv1.ClusterRole{{ObjectMeta: kept(newer)}}},
		"more of a program that is no release": {
			list: []rbacv1.ClusterRole{{ObjectMeta: kept("dev"), Rules: more}}, want: []string{"update 7"},
		},
		"by a program that is no release": {
			list: []rbacv1.ClusterRole{{ObjectMeta: kept(newer), Rules: more}}, want: []string{"update 7"}, us: "dev",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls recorder
			us := cmp.Or(c.us, ours)
			want := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Rules: rules}
			if err := ensure(t.Context(), &calls, us, want, c.list); err != nil || !slices.Equal(calls.made, c.want) {
				t.Errorf("made %v, %v, want %v", calls.made, err, c.want)
			}
			if by := want.Annotations[volume.AnnVersion]; by != string(us) {
				t.Errorf("it has the version %q", by)
			}
		})
	}
}

// TestBindingOfAnotherRole: the role of a binding cannot be changed, so the binding is made again.
func TestBindingOfAnotherRole(t *testing.T) {
	t.Parallel()
	calls, want := recorder{immutable: true}, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "x"}}
	list := []rbacv1.ClusterRole{{
		ObjectMeta: metav1.ObjectMeta{Name: "x", ResourceVersion: "7", Labels: map[string]string{"a": "b"}},
	}}
	if err := ensure(t.Context(), &calls, "v1.0.0", want, list); err != nil {
		t.Fatal(err)
	}
	if made := []string{"update 7", "delete", "create"}; !slices.Equal(calls.made, made) {
		t.Errorf("made %v, want %v", calls.made, made)
	}
}

// recorder is an API that only records requests.
type recorder struct {
	// immutable says that updates are refused.
	immutable bool
	made      []string
}

func (r *recorder) Create(
	_ context.Context, o *rbacv1.ClusterRole, _ metav1.CreateOptions,
) (*rbacv1.ClusterRole, error) {
	r.made = append(r.made, "create"+o.ResourceVersion)
	return o, nil
}

func (r *recorder) Update(
	_ context.Context, o *rbacv1.ClusterRole, _ metav1.UpdateOptions,
) (*rbacv1.ClusterRole, error) {
	r.made = append(r.made, "update "+o.ResourceVersion)
	if r.immutable {
		return nil, apierrors.NewInvalid(schema.GroupKind{Kind: "ClusterRole"}, o.Name, nil)
	}
	return o, nil
}

func (r *recorder) Delete(context.Context, string, metav1.DeleteOptions) error {
	r.made = append(r.made, "delete")
	return nil
}

// TestRetryWrite: a write is repeated after another control plane's write, and after no other failure.
func TestRetryWrite(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		resource := schema.GroupResource{Resource: "customresourcedefinitions"}
		conflict := apierrors.NewConflict(resource, "c", nil)
		for _, c := range []struct {
			err   error
			tries int
		}{
			{nil, 1},
			{conflict, 4},
			{fmt.Errorf("write it: %w", conflict), 4},
			{apierrors.NewAlreadyExists(resource, "c"), 4},
			{apierrors.NewForbidden(resource, "c", nil), 1},
			{apierrors.NewNotFound(resource, "c"), 1},
		} {
			tries := 0
			err := retryWrite(func() error {
				tries++
				return c.err
			})
			if !errors.Is(err, c.err) || tries != c.tries {
				t.Errorf("%v: %d tries, and then %v", c.err, tries, err)
			}
		}
	})
}
