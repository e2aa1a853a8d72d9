package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// fieldManager owns the fields that apply sets.
const fieldManager = "volplane"

// maxManifest limits the size of one manifest, in bytes.
const maxManifest = 16 << 20

func (s *shell) applyCommand() *cobra.Command {
	var from string
	var dryRun, force bool
	c := &cobra.Command{
		Use:   "apply -f FILE|DIR|-",
		Short: "Create or change objects from files (server-side apply)",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.apply(cmd.Context(), from, dryRun, force)
		},
	}
	c.Flags().StringVarP(&from, "filename", "f", "", "YAML or JSON file, directory of such files, or - for standard input")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "have the server validate everything and change nothing")
	c.Flags().BoolVar(&force, "force-conflicts", false, "take over fields that other programs have set")
	_ = c.MarkFlagRequired("filename")
	return c
}

func (s *shell) apply(ctx context.Context, from string, dryRun, force bool) error {
	docs, err := s.manifests(from)
	if err != nil {
		return err
	}
	o, err := s.objects()
	if err != nil {
		return err
	}
	options := metav1.ApplyOptions{FieldManager: fieldManager, Force: force}
	suffix := ""
	if dryRun {
		options.DryRun, suffix = []string{metav1.DryRunAll}, " (dry run)"
	}
	var failed []error
	for _, doc := range docs {
		name, verb, err := o.apply(ctx, doc, options)
		if err != nil {
			failed = append(failed, fmt.Errorf("apply %s: %w", name, err))
			continue
		}
		fmt.Fprintf(s.Out, "%s %s%s\n", name, verb, suffix)
	}
	return errors.Join(failed...)
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

// manifests reads all objects of a file, of the files of a directory in the
// order of their names, or of standard input.
func (s *shell) manifests(from string) ([]*unstructured.Unstructured, error) {
	if from == "-" {
		return documents("standard input", s.In)
	}
	files, err := manifestFiles(from)
	if err != nil {
		return nil, err
	}
	var out []*unstructured.Unstructured
	for _, name := range files {
		file, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("open manifest: %w", err)
		}
		docs, err := documents(name, file)
		_ = file.Close()
		if err != nil {
			return nil, err
		}
		out = append(out, docs...)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s contains no object", from)
	}
	return out, nil
}

func manifestFiles(from string) ([]string, error) {
	info, err := os.Stat(from)
	if err != nil {
		return nil, fmt.Errorf("find manifest: %w", err)
	}
	if !info.IsDir() {
		return []string{from}, nil
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return nil, fmt.Errorf("read directory: %w", err)
	}
	var files []string
	for _, e := range entries {
		if slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(e.Name())) && !e.IsDir() {
			files = append(files, filepath.Join(from, e.Name()))
		}
	}
	return files, nil
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
