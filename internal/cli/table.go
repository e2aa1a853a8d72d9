package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	kjson "sigs.k8s.io/json"

	"volplane.dev/volplane/internal/redact"
)

// acceptTable requests the server's own table format.
const acceptTable = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"

// fromJSON keeps whole numbers whole: cells of a table would print sizes in bytes as floating-point numbers.
func fromJSON(data []byte, into any) error {
	return kjson.UnmarshalCaseSensitivePreserveInts(data, into)
}

// table returns the server's table for the target, with the rows of all its names.
func (o *objects) table(ctx context.Context, t target, g getOptions) (*metav1.Table, error) {
	if len(t.names) == 0 {
		return o.oneTable(ctx, t, g, "")
	}
	var joined *metav1.Table
	for _, name := range t.names {
		next, err := o.oneTable(ctx, t, g, name)
		if err != nil {
			return nil, err
		}
		if joined == nil {
			joined = next
			continue
		}
		joined.Rows = append(joined.Rows, next.Rows...)
	}
	return joined, nil
}

func (o *objects) oneTable(ctx context.Context, t target, g getOptions, name string) (*metav1.Table, error) {
	r, err := o.tableRequest(t, g)
	if err != nil {
		return nil, err
	}
	r = r.NamespaceIfScoped(o.namespaceOf(t.mapping, g.selection), namespaced(t.mapping) && !g.all)
	if name != "" {
		r = r.Name(name)
	} else {
		r = withSelectors(r.Param, g.options())
	}
	data, err := raw(ctx, r)
	if err != nil {
		return nil, err
	}
	return decodeTable(data, g.columns(t))
}

// tableRequest requests rows, with the whole objects if a column is computed from them here.
func (o *objects) tableRequest(t target, g getOptions) (*rest.Request, error) {
	r, err := o.request(t.mapping, acceptTable)
	if err == nil && len(g.columns(t)) > 0 {
		r = r.Param("includeObject", string(metav1.IncludeObject))
	}
	return r, err
}

// withSelectors adds the selectors to a request through its Param method.
func withSelectors[R any](param func(name, value string) R, o metav1.ListOptions) R {
	r := param("labelSelector", o.LabelSelector)
	if o.FieldSelector != "" {
		r = param("fieldSelector", o.FieldSelector)
	}
	return r
}

func decodeTable(data []byte, more []column) (*metav1.Table, error) {
	table := &metav1.Table{}
	if err := fromJSON(data, table); err != nil {
		return nil, fmt.Errorf("read the server's table: %w", err)
	}
	if table.Kind != "Table" {
		return nil, fmt.Errorf("the server answered with a %s instead of a table: use -o json", table.Kind)
	}
	if err := addColumns(table, more); err != nil {
		return nil, err
	}
	return table, decodeRows(table)
}

// watchTable prints a row for every change after version.
func (s *shell) watchTable(
	ctx context.Context, o *objects, g getOptions, t target, version string, noHeaders bool,
) error {
	r, err := o.tableRequest(t, g)
	if err != nil {
		return err
	}
	options := g.watchOptions(t)
	r = withSelectors(r.NamespaceIfScoped(o.namespaceOf(t.mapping, g.selection), namespaced(t.mapping) &&
		!g.all).Param, options)
	body, err := r.Param("watch", "true").Param("resourceVersion", version).Stream(ctx)
	if err != nil {
		return err
	}
	defer body.Close()
	events := json.NewDecoder(body)
	var columns []metav1.TableColumnDefinition
	for {
		var e metav1.WatchEvent
		if err := events.Decode(&e); streamEnded(ctx, err) {
			return nil
		} else if err != nil {
			return fmt.Errorf("watch %s: %w", t.mapping.Resource.Resource, err)
		}
		if e.Type == string(watch.Bookmark) || e.Type == string(watch.Error) {
			continue
		}
		table, err := decodeTable(e.Object.Raw, g.columns(t))
		if err != nil {
			return err
		}
		// Only the first event of a watch carries the columns.
		if len(table.ColumnDefinitions) == 0 {
			table.ColumnDefinitions = columns
		}
		columns = table.ColumnDefinitions
		if err := s.printTable(table, t.mapping, g, false, noHeaders); err != nil {
			return err
		}
		noHeaders = true
	}
}

func orNone(text string) string {
	if text == "" {
		return "<none>"
	}
	return text
}

// plainLine returns a line that others wrote for people: not too long, and without what a terminal could take for a
// command.
func plainLine(line string) string {
	const longest = 400
	return redact.Bounded(strings.TrimRight(redact.Printable(line), " "), longest)
}
