package story

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/jsonpath"

	"volplane.dev/volplane/internal/kube/kubetest"
)

// changes returns the words for a write's changes, and below them the changed fields that no word covers, except those
// that the API server sets.
func (c *Scene) changes(w kubetest.Write) []string {
	if !w.Done || w.Verb == "delete" {
		return []string{""}
	}
	if c.cast.Tells != nil {
		if text := c.cast.Tells(w.After); text != "" {
			return []string{": " + text}
		}
	}
	before, said := w.Before, ""
	if reflect.TypeOf(before) != reflect.TypeOf(w.After) {
		before = nil // a subresource with its own kind, such as pods/binding
	}
	names := c.script.library.vocabulary(w.After)
	if before == nil {
		before, said = names.model(w.After)
	}
	said += names.gained(&before, w.After)
	lines := differences(before, w.After)
	said += names.lost(&lines, before, w.After)
	if said != "" {
		said = ":" + said
	}
	return append([]string{said}, lines...)
}

// differences are the fields in which two objects or messages differ, one on a line.
func differences(before, after any) []string {
	var out strings.Builder
	difference(&out, "", plain(before), plain(after))
	if out.Len() == 0 {
		return nil
	}
	// Times of this moment are printed as "now": a script may be run at any time.
	text := strings.ReplaceAll(out.String(), time.Now().UTC().Format(`"`+time.RFC3339+`"`), "now")
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}

// difference writes the fields in which two values differ, one on a line.
func difference(out *strings.Builder, path string, before, after any) {
	if reflect.DeepEqual(before, after) || fromServer(path) {
		return
	}
	// What is new is shown as a whole, except for an object, its metadata, spec and status.
	top := strings.Count(path, ".") == 0
	was, ok := fieldsOf(before, top)
	is, ok2 := fieldsOf(after, top)
	if ok && ok2 {
		all := maps.Clone(was)
		maps.Copy(all, is)
		for _, key := range sortedKeys(all) {
			difference(out, below(path, key), was[key], is[key])
		}
		return
	}
	switch {
	case before == nil:
		fmt.Fprintf(out, "  %s: %s\n", path, flow(after))
	case after == nil:
		fmt.Fprintf(out, "  %s is removed, was %s\n", path, flow(before))
	default:
		fmt.Fprintf(out, "  %s: %s, was %s\n", path, flow(after), flow(before))
	}
}

// fieldsOf returns the fields of a value that has fields; a missing value has none if mayMiss is set.
func fieldsOf(value any, mayMiss bool) (fields map[string]any, ok bool) {
	if value == nil && mayMiss {
		return map[string]any{}, true
	}
	fields, ok = value.(map[string]any)
	return fields, ok
}

func below(path, key string) string {
	if path == "metadata.annotations" || path == "metadata.labels" {
		return path + "[" + key + "]"
	}
	return strings.TrimPrefix(path+"."+key, ".")
}

// fromServer says whether the API server sets a field.
func fromServer(path string) bool {
	return slices.Contains([]string{
		"metadata.resourceVersion", "metadata.uid", "metadata.generation", "metadata.creationTimestamp", "metadata.name",
		"metadata.namespace", "metadata.managedFields",
	}, path)
}

// plain is an object as JSON has it; lists of conditions are maps by their types.
func plain(o any) any {
	text, err := json.Marshal(o)
	var value any
	if err == nil {
		err = json.Unmarshal(text, &value)
	}
	if err != nil {
		panic(err) // no object of the API is like that
	}
	all, _ := value.(map[string]any)
	status, _ := all["status"].(map[string]any)
	if list, ok := status["conditions"].([]any); ok {
		byType := map[string]any{}
		for _, entry := range list {
			c, _ := entry.(map[string]any)
			byType[fmt.Sprint(c["type"])] = entry
		}
		status["conditions"] = byType
	}
	return value
}

// flow is a value in YAML's short form.
func flow(value any) string {
	switch v := value.(type) {
	case map[string]any:
		var parts []string
		for _, key := range sortedKeys(v) {
			parts = append(parts, key+": "+flow(v[key]))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	case []any:
		var parts []string
		for _, entry := range v {
			parts = append(parts, flow(entry))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case string:
		if regexp.MustCompile(`^[A-Za-z/][\w./@ -]*$`).MatchString(v) {
			return v
		}
	}
	text, _ := json.Marshal(value) // it came from JSON
	return string(text)
}

// aTable is what the lines of a table are about.
const aTable = "table"

// table shows a table of the objects of a kind.
func (c *Scene) table(args []string) error {
	k, err := kindNamed(args[0])
	if err != nil {
		return err
	}
	columns := args[1:]
	if len(columns) == 0 {
		columns = k.columns
	}
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 3, ' ', 0)
	header, rows := []string{"NAME"}, [][]string{}
	for _, column := range columns {
		name, _, _ := strings.Cut(column, "=")
		header = append(header, name)
	}
	for _, o := range c.list(k) {
		row, err := cells(o, columns)
		if err != nil {
			return err
		}
		rows = append(rows, row)
	}
	slices.SortFunc(rows, slices.Compare)
	for _, row := range append([][]string{header}, rows...) {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for line := range strings.Lines(out.String()) {
		c.note(aTable, strings.TrimRight(line, " \n"))
	}
	return nil
}

// cells are the cells of an object in a table.
func cells(o runtime.Object, columns []string) ([]string, error) {
	m, err := meta.Accessor(o)
	if err != nil {
		return nil, err
	}
	row := []string{strings.TrimPrefix(m.GetNamespace()+"/"+m.GetName(), "/")}
	for _, column := range columns {
		_, path, _ := strings.Cut(column, "=")
		p := jsonpath.New(path).AllowMissingKeys(true)
		if err := p.Parse("{" + path + "}"); err != nil {
			return nil, err
		}
		var cell strings.Builder
		if err := p.Execute(&cell, plain(o)); err != nil {
			return nil, err
		}
		row = append(row, cell.String())
	}
	return row, nil
}

// list returns all objects of a kind.
func (c *Scene) list(k kind) []runtime.Object {
	gvk, _, err := kubetest.NewScheme().ObjectKinds(k.object)
	if err != nil {
		c.Fatal(err)
	}
	list, err := c.API.Tracker().List(kubetest.ResourceOf(k.object), gvk[0], "", metav1.ListOptions{})
	if err != nil {
		c.Fatal(err)
	}
	all, err := meta.ExtractList(list)
	if err != nil {
		c.Fatal(err)
	}
	return all
}

// objects are all objects as text, without versions and times.
func (c *Scene) objects() string {
	var all []string
	for _, k := range kinds() {
		for _, o := range c.list(k) {
			m, _ := meta.Accessor(o)
			var out strings.Builder
			fmt.Fprintf(&out, "%s/%s/%s\n", k.short, m.GetNamespace(), m.GetName())
			difference(&out, "", nil, plain(o))
			all = append(all, regexp.MustCompile(`"?\d{4}-\d\d-\d\dT[\d:.]+Z"?`).ReplaceAllString(out.String(), "TIME"))
		}
	}
	slices.Sort(all)
	return strings.Join(all, "")
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
