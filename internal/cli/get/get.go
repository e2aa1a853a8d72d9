package get

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/printers"

	"volplane.dev/volplane/internal/cli/objects"
	"volplane.dev/volplane/internal/cli/shell"
)

type getOptions struct {
	objects.Selection
	output string
	watch  bool
}

func getCommand(s *shell.Shell) *cobra.Command {
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
		ValidArgsFunction: objects.CompleteObjects(s),
		RunE: func(cmd *cobra.Command, args []string) error {
			return get(cmd.Context(), s, g, args)
		},
	}
	f := c.Flags()
	g.Register(c)
	f.BoolVarP(&g.All, "all-namespaces", "A", false, "objects of all namespaces")
	f.StringVarP(&g.output, "output", "o", "", "output format: wide, name, json, yaml, jsonpath=TEMPLATE")
	f.BoolVarP(&g.watch, "watch", "w", false, "after the list, print every change")
	return c
}

func get(ctx context.Context, s *shell.Shell, g getOptions, args []string) error {
	print, err := shell.Printer(g.output)
	if err != nil {
		return err
	}
	o, err := objects.Of(s)
	if err != nil {
		return err
	}
	targets, err := o.Targets(args)
	if err != nil {
		return err
	}
	if g.watch && len(targets) > 1 {
		return fmt.Errorf("only one type, or one object, can be watched")
	}
	if print == nil {
		return getTables(ctx, s, o, g, targets)
	}
	return getObjects(ctx, s, o, g, targets, print)
}

// getObjects prints whole objects: names and what is watched one by one, one object alone, and several as a List.
func getObjects(
	ctx context.Context, s *shell.Shell, o *objects.Client, g getOptions, targets []objects.Target,
	p printers.ResourcePrinter,
) error {
	list := &unstructured.UnstructuredList{
		Object: map[string]any{"apiVersion": "v1", "kind": "List", "metadata": map[string]any{"resourceVersion": ""}},
	}
	single := len(targets) == 1 && len(targets[0].Names) == 1 || g.output == "name" || g.watch
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
		if version, err = eachObject(ctx, o, t, g, print); err != nil {
			return err
		}
	}
	if !single {
		return p.PrintObj(list, s.Out)
	}
	if !g.watch {
		return nil
	}
	return watchObjects(ctx, o, g, targets[0], version, print)
}

// eachObject calls do with the objects of the names, or else of a list, which is read page by page. It returns their
// version.
func eachObject(
	ctx context.Context, o *objects.Client, t objects.Target, g getOptions, do func(*unstructured.Unstructured) error,
) (string, error) {
	version := ""
	client := o.At(t.Mapping, o.NamespaceOf(t.Mapping, g.Selection))
	for _, name := range t.Names {
		found, err := client.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if err := do(found); err != nil {
			return "", err
		}
		version = found.GetResourceVersion()
	}
	if len(t.Names) > 0 {
		return version, nil
	}
	err := eachPage(func(from string) (string, error) {
		options := g.Options()
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

func watchObjects(
	ctx context.Context, o *objects.Client, g getOptions, t objects.Target, version string,
	print func(*unstructured.Unstructured) error,
) error {
	options := g.watchOptions(t)
	options.ResourceVersion = version
	w, err := o.At(t.Mapping, o.NamespaceOf(t.Mapping, g.Selection)).Watch(ctx, options)
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

func (g getOptions) watchOptions(t objects.Target) metav1.ListOptions {
	options := g.Options()
	if len(t.Names) == 1 {
		options.FieldSelector = "metadata.name=" + t.Names[0]
	}
	return options
}

// getTables prints the server's tables.
func getTables(ctx context.Context, s *shell.Shell, o *objects.Client, g getOptions, targets []objects.Target) error {
	empty := true
	for _, t := range targets {
		version, first, p := "", true, tables(s, t, g, len(targets) > 1)
		err := eachTable(ctx, o, t, g, func(table *metav1.Table) error {
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
			return watchTable(ctx, o, g, t, version, p)
		}
	}
	if empty {
		nothingFound(s, o, g, targets)
	}
	return nil
}

func nothingFound(s *shell.Shell, o *objects.Client, g getOptions, targets []objects.Target) {
	for _, t := range targets {
		if objects.Namespaced(t.Mapping) && !g.All {
			fmt.Fprintf(s.Err, "No resources found in %s namespace.\n", o.Namespace)
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
