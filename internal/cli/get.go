package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/printers"
)

type getOptions struct {
	selection
	output string
	watch  bool
}

func (s *shell) getCommand() *cobra.Command {
	var g getOptions
	c := &cobra.Command{
		Use:        "get TYPE [NAME ...] | TYPE/NAME ...",
		SuggestFor: []string{"ls", "list", "show"},
		Short:      "Show objects as a table, JSON or YAML",
		Example: `  volplane get pvc
  volplane get pv,volumeattachments -o wide
  volplane get pvc/data -o yaml
  volplane get pods -A -w
  volplane get pv -o jsonpath='{.items[*].metadata.name}'`,
		ValidArgsFunction: s.completeObjects,
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.get(cmd.Context(), g, args)
		},
	}
	f := c.Flags()
	g.register(c)
	f.BoolVarP(&g.all, "all-namespaces", "A", false, "objects of all namespaces")
	f.StringVarP(&g.output, "output", "o", "", "output format: wide, name, json, yaml, jsonpath=TEMPLATE")
	f.BoolVarP(&g.watch, "watch", "w", false, "after the list, print every change")
	return c
}

func (s *selection) register(c *cobra.Command) {
	f := c.Flags()
	f.StringVarP(&s.labels, "selector", "l", "", "label selector")
	f.StringVar(&s.fields, "field-selector", "", "field selector")
}

func (s *shell) get(ctx context.Context, g getOptions, args []string) error {
	print, err := printer(g.output)
	if err != nil {
		return err
	}
	o, err := s.objects()
	if err != nil {
		return err
	}
	targets, err := o.targets(args)
	if err != nil {
		return err
	}
	if g.watch && len(targets) > 1 {
		return fmt.Errorf("only one type, or one object, can be watched")
	}
	if print == nil {
		return s.getTables(ctx, o, g, targets)
	}
	return s.getObjects(ctx, o, g, targets, print)
}

// printer returns the printer of whole objects; nil for tables.
func printer(output string) (printers.ResourcePrinter, error) {
	switch output {
	case "", "wide":
		return nil, nil
	case "json":
		return &printers.JSONPrinter{}, nil
	case "yaml":
		return &printers.YAMLPrinter{}, nil
	case "name":
		return &printers.NamePrinter{}, nil
	}
	if template, found := strings.CutPrefix(output, "jsonpath="); found {
		return jsonPath(template)
	}
	return nil, fmt.Errorf("unknown output %q: use wide, name, json, yaml or jsonpath=TEMPLATE", output)
}

// jsonPath returns the printer of a template, which may be a single path without braces.
func jsonPath(template string) (printers.ResourcePrinter, error) {
	if !strings.Contains(template, "{") {
		template = "{." + strings.TrimPrefix(template, ".") + "}"
	}
	p, err := printers.NewJSONPathPrinter(template)
	if err != nil {
		return nil, fmt.Errorf("output %q: %w", "jsonpath="+template, err)
	}
	return p, nil
}

// getObjects prints whole objects: names and what is watched one by one, one object alone, and several as a List.
func (s *shell) getObjects(
	ctx context.Context, o *objects, g getOptions, targets []target, p printers.ResourcePrinter,
) error {
	list := &unstructured.UnstructuredList{
		Object: map[string]any{"apiVersion": "v1", "kind": "List", "metadata": map[string]any{"resourceVersion": ""}},
	}
	single := len(targets) == 1 && len(targets[0].names) == 1 || g.output == "name" || g.watch
	print := func(item *unstructured.Unstructured) error {
		item.SetManagedFields(nil)
		if single {
			return p.PrintObj(item, s.Out)
		}
		list.Items = append(list.Items, *item)
		return nil
	}
	version := ""
	for _, t := range targets {
		var err error
		if version, err = o.eachObject(ctx, t, g, print); err != nil {
			return err
		}
	}
	if !single {
		return p.PrintObj(list, s.Out)
	}
	if !g.watch {
		return nil
	}
	return o.watchObjects(ctx, g, targets[0], version, print)
}

// eachObject calls do with the objects of the names, or else of a list, which is read page by page. It returns their
// version.
func (o *objects) eachObject(
	ctx context.Context, t target, g getOptions, do func(*unstructured.Unstructured) error,
) (string, error) {
	version := ""
	client := o.at(t.mapping, o.namespaceOf(t.mapping, g.selection))
	for _, name := range t.names {
		found, err := client.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if err := do(found); err != nil {
			return "", err
		}
		version = found.GetResourceVersion()
	}
	if len(t.names) > 0 {
		return version, nil
	}
	err := eachPage(func(from string) (string, error) {
		options := g.options()
		options.Limit, options.Continue = pageSize, from
		found, err := client.List(ctx, options)
		if err != nil {
			return "", err
		}
		version = found.GetResourceVersion()
		for i := range found.Items {
			if err := do(&found.Items[i]); err != nil {
				return "", err
			}
		}
		return found.GetContinue(), nil
	})
	return version, err
}

func (o *objects) watchObjects(
	ctx context.Context, g getOptions, t target, version string, print func(*unstructured.Unstructured) error,
) error {
	options := g.watchOptions(t)
	options.ResourceVersion = version
	w, err := o.at(t.mapping, o.namespaceOf(t.mapping, g.selection)).Watch(ctx, options)
	if err != nil {
		return err
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		if object, ok := e.Object.(*unstructured.Unstructured); ok && object.GetKind() != "Status" {
			if err := print(object); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

func (g getOptions) watchOptions(t target) metav1.ListOptions {
	options := g.options()
	if len(t.names) == 1 {
		options.FieldSelector = "metadata.name=" + t.names[0]
	}
	return options
}

// getTables prints the server's tables.
func (s *shell) getTables(ctx context.Context, o *objects, g getOptions, targets []target) error {
	empty := true
	for _, t := range targets {
		version, first, p := "", true, s.tables(t, g, len(targets) > 1)
		err := o.eachTable(ctx, t, g, func(table *metav1.Table) error {
			version = table.ResourceVersion
			if len(table.Rows) == 0 {
				return nil
			}
			if first && !empty {
				fmt.Fprintln(s.Out)
			}
			first, empty = false, false
			return p.print(table)
		})
		switch {
		case err != nil:
			return err
		case g.watch:
			return o.watchTable(ctx, g, t, version, p)
		}
	}
	if empty {
		s.nothingFound(o, g, targets)
	}
	return nil
}

func (s *shell) nothingFound(o *objects, g getOptions, targets []target) {
	for _, t := range targets {
		if namespaced(t.mapping) && !g.all {
			fmt.Fprintf(s.Err, "No resources found in %s namespace.\n", o.namespace)
			return
		}
	}
	fmt.Fprintln(s.Err, "No resources found")
}

// decodeRows turns the objects behind the rows into what the printer reads
// names and namespaces from.
func decodeRows(table *metav1.Table) error {
	for i := range table.Rows {
		row := &table.Rows[i]
		if row.Object.Raw == nil {
			continue
		}
		o := &metav1.PartialObjectMetadata{}
		if err := fromJSON(row.Object.Raw, o); err != nil {
			return fmt.Errorf("read row %d: %w", i, err)
		}
		row.Object = runtime.RawExtension{Object: o}
	}
	return nil
}

// streamEnded says whether a stream has ended normally.
func streamEnded(ctx context.Context, err error) bool {
	return errors.Is(err, io.EOF) || ctx.Err() != nil
}
