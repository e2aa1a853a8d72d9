package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"

	"volplane.dev/volplane/internal/door"
)

// maxManifest limits the size of one manifest, in bytes.
const maxManifest = 16 << 20

func (s *shell) applyCommand() *cobra.Command {
	var from sources
	var dry dryRun
	var force bool
	c := &cobra.Command{
		Use:   "apply -f FILE|DIR|- ...",
		Short: "Create or change objects from files (server-side apply)",
		Args:  positional,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.apply(cmd.Context(), from, bool(dry), force)
		},
	}
	from.register(c)
	registerDryRun(c, &dry, "have the server validate everything and change nothing")
	c.Flags().BoolVar(&force, "force-conflicts", false, "take over fields that other programs have set")
	return c
}

func (s *shell) apply(ctx context.Context, from sources, dryRun, force bool) error {
	docs, err := from.objects(s)
	if err != nil {
		return err
	}
	o, err := s.objects()
	if err != nil {
		return err
	}
	options := metav1.ApplyOptions{FieldManager: door.FieldManager, Force: force}
	suffix := ""
	if dryRun {
		options.DryRun, suffix = []string{metav1.DryRunAll}, " (dry run)"
	}
	var failed []error
	for _, batch := range batches(docs) {
		for _, a := range o.applyAll(ctx, batch, options) {
			if a.err != nil {
				failed = append(failed, fmt.Errorf("apply %s: %w", a.name, a.err))
				continue
			}
			fmt.Fprintf(s.Out, "%s %s%s\n", a.name, a.verb, suffix)
		}
	}
	return errors.Join(failed...)
}

// atOnce is how many objects are sent at the same time: each takes two requests, and the API server's time for them is
// mostly waiting.
const atOnce = 8

// batches divides objects, in their order, into those that can be sent at the same time: they are of one kind, so none
// depends on another one, and none occurs twice.
func batches(docs []*unstructured.Unstructured) [][]*unstructured.Unstructured {
	var out [][]*unstructured.Unstructured
	named := map[string]bool{}
	for _, doc := range docs {
		name := doc.GetNamespace() + "/" + doc.GetName()
		last := len(out) - 1
		if last < 0 || len(out[last]) == atOnce || named[name] ||
			out[last][0].GroupVersionKind() != doc.GroupVersionKind() {
			out, last, named = append(out, nil), last+1, map[string]bool{}
		}
		out[last], named[name] = append(out[last], doc), true
	}
	return out
}

// applied is what became of an object.
type applied struct {
	name, verb string
	err        error
}

// applyAll sends objects at the same time, and returns what became of each.
func (o *objects) applyAll(
	ctx context.Context, docs []*unstructured.Unstructured, options metav1.ApplyOptions,
) []applied {
	out := make([]applied, len(docs))
	var all sync.WaitGroup
	for i, doc := range docs {
		all.Go(func() { out[i].name, out[i].verb, out[i].err = o.apply(ctx, doc, options) })
	}
	all.Wait()
	return out
}

// apply sends one object and says what that changed.
func (o *objects) apply(
	ctx context.Context, doc *unstructured.Unstructured, options metav1.ApplyOptions,
) (name, verb string, err error) {
	name = doc.GetKind() + "/" + doc.GetName()
	m, err := o.mapping(doc.GroupVersionKind())
	if err != nil {
		return name, "", notServed(doc.GetKind(), err)
	}
	if doc.GetName() == "" {
		return name, "", fmt.Errorf("the object has no metadata.name")
	}
	name = printedName(m, doc.GetName())
	client := o.at(m, o.setNamespace(m, doc))
	before, err := client.Get(ctx, doc.GetName(), metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return name, "", err
	}
	existed := err == nil
	after, err := client.Apply(ctx, doc.GetName(), doc, options)
	switch {
	case apierrors.IsConflict(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeFieldManagerConflict):
		return name, "", fmt.Errorf("%w: the file names the state in which the object was: take metadata.resourceVersion "+
			"and metadata.uid out of the file", err)
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

// setNamespace sets the command's namespace in a namespaced object without one, and
// returns the namespace of the object.
func (o *objects) setNamespace(m *meta.RESTMapping, doc *unstructured.Unstructured) string {
	if namespaced(m) && doc.GetNamespace() == "" {
		doc.SetNamespace(o.namespace)
	}
	return doc.GetNamespace()
}

// documents splits YAML or JSON into its objects; the items of a List count
// one by one.
func documents(name string, r io.Reader) ([]*unstructured.Unstructured, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxManifest+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if len(data) > maxManifest {
		return nil, fmt.Errorf("read %s: longer than %d bytes", name, maxManifest)
	}
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
	var out []*unstructured.Unstructured
	for n := 1; ; n++ {
		var content map[string]any
		if err := decoder.Decode(&content); errors.Is(err, io.EOF) {
			return out, nil
		} else if err != nil {
			return nil, fmt.Errorf("read %s, document %d: %w", name, n, err)
		}
		if len(content) == 0 {
			continue
		}
		u := &unstructured.Unstructured{Object: content}
		if u.GetKind() == "" || u.GetAPIVersion() == "" {
			return nil, fmt.Errorf("read %s, document %d: no apiVersion or kind", name, n)
		}
		if !u.IsList() {
			out = append(out, u)
			continue
		}
		if err := u.EachListItem(func(item runtime.Object) error {
			out = append(out, item.(*unstructured.Unstructured))
			return nil
		}); err != nil {
			return nil, fmt.Errorf("read %s, document %d: %w", name, n, err)
		}
	}
}
