package objects

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Apply sends one object and says what that changed.
func (o *Client) Apply(
	ctx context.Context, doc *unstructured.Unstructured, options metav1.ApplyOptions,
) (name, verb string, err error) {
	name = doc.GetKind() + "/" + doc.GetName()
	m, err := o.Mapping(doc.GroupVersionKind())
	if err != nil {
		return name, "", notServed(doc.GetKind(), err)
	}
	if doc.GetName() == "" {
		return name, "", fmt.Errorf("the object has no metadata.name")
	}
	name = PrintedName(m, doc.GetName())
	client := o.At(m, o.SetNamespace(m, doc))
	before, err := client.Get(ctx, doc.GetName(), metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return name, "", err
	}
	existed := err == nil
	after, err := client.Apply(ctx, doc.GetName(), doc, options)
	switch {
	case apierrors.IsConflict(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeFieldManagerConflict):
		return name, "", fmt.Errorf("%w: the file names the state in which the object was: remove metadata.resourceVersion "+
			"and metadata.uid from the file", err)
	case apierrors.IsConflict(err):
		return name, "", fmt.Errorf("%w; to take the fields over, use --force-conflicts", err)
	case err != nil:
		return name, "", err
	case !existed:
		return name, "created", nil
	case sameContent(before, after):
		return name, "unchanged", nil
	}
	return name, "configured", nil
}

// notServed adds to the error about a kind that the server does not have what to do instead.
func notServed(kind string, err error) error {
	switch kind {
	case "DaemonSet", "Deployment", "StatefulSet":
		return fmt.Errorf("%w: volplane runs no containers; if it is a CSI driver, 'volplane driver import -f FILE' runs "+
			"its programs on this host", err)
	}
	return err
}

// sameContent compares two states of an object without the server's own
// book-keeping, which a repeated apply may still touch.
func sameContent(a, b *unstructured.Unstructured) bool {
	for _, u := range []*unstructured.Unstructured{a, b} {
		u.SetManagedFields(nil)
		u.SetResourceVersion("")
	}
	return equality.Semantic.DeepEqual(a.Object, b.Object)
}

// SetNamespace sets the command's namespace in a namespaced object without one, and
// returns the namespace of the object.
func (o *Client) SetNamespace(m *meta.RESTMapping, doc *unstructured.Unstructured) string {
	if Namespaced(m) && doc.GetNamespace() == "" {
		doc.SetNamespace(o.Namespace)
	}
	return doc.GetNamespace()
}
