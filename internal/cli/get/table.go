package get

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	kjson "sigs.k8s.io/json"

	"volplane.dev/volplane/internal/cli/objects"
	"volplane.dev/volplane/internal/cli/shell"
)

// newRequest returns a request for one type with the given Accept header.
func newRequest(o *objects.Client, m *meta.RESTMapping, accept string) (*rest.Request, error) {
	config := rest.CopyConfig(o.Config)
	gv := m.GroupVersionKind.GroupVersion()
	config.GroupVersion, config.APIPath = &gv, "/apis"
	if gv.Group == "" {
		config.APIPath = "/api"
	}
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	return client.Get().Resource(m.Resource.Resource).SetHeader("Accept", accept), nil
}

// raw sends the request and returns the undecoded answer.
func raw(ctx context.Context, r *rest.Request) ([]byte, error) {
	result := r.Do(ctx)
	if err := result.Error(); err != nil {
		return nil, err
	}
	return result.Raw()
}

// acceptTable requests the server's own table format.
const acceptTable = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"

// fromJSON keeps whole numbers whole: cells of a table would print sizes in bytes as floating-point numbers.
func fromJSON(data []byte, into any) error {
	return kjson.UnmarshalCaseSensitivePreserveInts(data, into)
}

// pageSize is how many objects a page of a list has: the server and this program hold one page at a time.
const pageSize = 500

// table returns the server's table with the rows of the names.
func table(ctx context.Context, o *objects.Client, t objects.Target, g getOptions) (*metav1.Table, error) {
	var joined *metav1.Table
	for _, name := range t.Names {
		r, err := tableRequest(o, t, g)
		if err != nil {
			return nil, err
		}
		next, err := getTable(ctx, r.Name(name), g.columns(t))
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

// eachTable calls do with the server's tables for the target: with one that has the rows of all its names, or else
// with one page of the list after the other.
func eachTable(
	ctx context.Context, o *objects.Client, t objects.Target, g getOptions, do func(*metav1.Table) error,
) error {
	if len(t.Names) > 0 {
		table, err := table(ctx, o, t, g)
		if err != nil {
			return err
		}
		return do(table)
	}
	return eachPage(func(from string) (string, error) {
		r, err := tableRequest(o, t, g)
		if err != nil {
			return "", err
		}
		r = withSelectors(r.Param, g.Options()).Param("limit", strconv.Itoa(pageSize)).Param("continue", from)
		table, err := getTable(ctx, r, g.columns(t))
		if err != nil {
			return "", err
		}
		return table.Continue, do(table)
	})
}

// eachPage calls page with the token of each page of a list, "" for the first one; page returns the next one. If a user
// has looked at a page for so long that the server has forgotten the rest of the list, it goes on with newer objects.
func eachPage(page func(from string) (next string, err error)) error {
	for from := ""; ; {
		next, err := page(from)
		if told := apierrors.APIStatus(nil); from != "" && apierrors.IsResourceExpired(err) && errors.As(err, &told) {
			next, err = told.Status().Continue, nil
		}
		if err != nil || next == "" {
			return err
		}
		from = next
	}
}

func getTable(ctx context.Context, r *rest.Request, more []column) (*metav1.Table, error) {
	data, err := raw(ctx, r)
	if err != nil {
		return nil, err
	}
	return decodeTable(data, more)
}

// tableRequest requests rows, with the whole objects if a column is computed from them here.
func tableRequest(o *objects.Client, t objects.Target, g getOptions) (*rest.Request, error) {
	r, err := newRequest(o, t.Mapping, acceptTable)
	if err != nil {
		return nil, err
	}
	if len(g.columns(t)) > 0 {
		r = r.Param("includeObject", string(metav1.IncludeObject))
	}
	return r.NamespaceIfScoped(o.NamespaceOf(t.Mapping, g.Selection), objects.Namespaced(t.Mapping) && !g.All), nil
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
func watchTable(
	ctx context.Context, o *objects.Client, g getOptions, t objects.Target, version string, p tablePrinter,
) error {
	r, err := tableRequest(o, t, g)
	if err != nil {
		return err
	}
	r = withSelectors(r.Param, g.watchOptions(t))
	body, err := r.Param("watch", "true").Param("resourceVersion", version).Stream(ctx)
	if err != nil {
		return err
	}
	defer body.Close()
	events := json.NewDecoder(body)
	for {
		var e metav1.WatchEvent
		if err := events.Decode(&e); streamEnded(ctx, err) {
			return nil
		} else if err != nil {
			return fmt.Errorf("watch %s: %w", t.Mapping.Resource.Resource, err)
		}
		if e.Type == string(watch.Bookmark) || e.Type == string(watch.Error) {
			continue
		}
		table, err := decodeTable(e.Object.Raw, g.columns(t))
		if err != nil {
			return err
		}
		if err := p.print(table); err != nil {
			return err
		}
	}
}

// tablePrinter prints the tables of one type below one header: the pages of a list, and changes.
type tablePrinter struct {
	printers.ResourcePrinter
	out interface {
		io.Writer
		Flush() error
	}
}

// tables returns the printer of the tables of a target; several says that there are other targets.
func tables(s *shell.Shell, t objects.Target, g getOptions, several bool) tablePrinter {
	return tablePrinter{printers.NewTablePrinter(printers.PrintOptions{
		Wide:          g.output == "wide",
		WithNamespace: g.All && objects.Namespaced(t.Mapping),
		WithKind:      several, Kind: t.Mapping.GroupVersionKind.GroupKind(),
	}), printers.GetNewTabWriter(s.Out)}
}

func (p tablePrinter) print(table *metav1.Table) error {
	if err := p.PrintObj(table, p.out); err != nil {
		return err
	}
	return p.out.Flush()
}
