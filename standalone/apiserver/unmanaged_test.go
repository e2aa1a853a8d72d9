package apiserver_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/standalone/standalonetest"
)

// TestManagedFields: objects that this process creates have no managed fields until something is applied to them, those
// of others have them, and apply detects conflicts in both.
func TestManagedFields(t *testing.T) {
	t.Parallel()
	s, ctx := standalonetest.Start(t), t.Context()
	remote, err := kubernetes.NewForConfig(standalonetest.Remote(t, s))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		creator kubernetes.Interface
		// created and changed are the managers after the object is created and then changed, opponent is the manager of the
		// applied field.
		created, changed, opponent string
	}{
		"own":   {standalonetest.Client(t, s, ""), "", "", `"before-first-apply"`},
		"users": {remote, "creator", "changer creator", `"creator"`},
	} {
		t.Run(name, func(t *testing.T) {
			made, err := c.creator.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"a": "1", "b": "1"},
			}, metav1.CreateOptions{FieldManager: "creator"})
			if got := managers(made); err != nil || got != c.created {
				t.Errorf("created: %q, %v, want %q", got, err, c.created)
			}
			if got, err := change(ctx, remote, name, `{"data":{"b":"2"}}`); err != nil || got != c.changed {
				t.Errorf("changed: %q, %v, want %q", got, err, c.changed)
			}
			applies(t, remote, name, c.opponent)
		})
	}
}

// applies requires that an apply conflicts with opponent, and later with the client that changes the object after it.
func applies(t *testing.T, c kubernetes.Interface, name, opponent string) {
	t.Helper()
	ctx := t.Context()
	apply := func(a string, force bool) error {
		_, err := c.CoreV1().ConfigMaps("default").Apply(ctx,
			corev1apply.ConfigMap(name, "default").WithData(map[string]string{"a": a}),
			metav1.ApplyOptions{FieldManager: "applier", Force: force})
		return err
	}
	if err := apply("2", false); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), opponent) {
		t.Errorf("a value of another manager: %v, want a conflict with %s", err, opponent)
	}
	if err := apply("2", true); err != nil {
		t.Error("by force:", err)
	}
	if got, err := change(ctx, c, name, `{"data":{"a":"3"}}`); err != nil || !strings.Contains(got, "changer") {
		t.Errorf("changed after an apply: %q, %v, want a record of the changer", got, err)
	}
	if err := apply("2", false); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), `"changer"`) {
		t.Errorf("a value of the changer: %v, want a conflict with it", err)
	}
	if err := apply("3", false); err != nil {
		t.Error("the same value:", err)
	}
}

// change patches a ConfigMap as the manager "changer", and returns the managers of the result.
func change(ctx context.Context, c kubernetes.Interface, name, patch string) (string, error) {
	o, err := c.CoreV1().ConfigMaps("default").Patch(ctx, name, types.MergePatchType, []byte(patch),
		metav1.PatchOptions{FieldManager: "changer"})
	return managers(o), err
}

// managers returns the managers of an object, in the order of their names.
func managers(o metav1.Object) string {
	var all []string
	for _, f := range o.GetManagedFields() {
		all = append(all, f.Manager)
	}
	return strings.Join(slices.Sorted(slices.Values(all)), " ")
}
