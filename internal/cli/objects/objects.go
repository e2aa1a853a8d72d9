package objects

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"volplane.dev/volplane/internal/cli/shell"
)

// Register adds the flags that select objects.
func (s *Selection) Register(c *cobra.Command) {
	f := c.Flags()
	f.StringVarP(&s.Labels, "selector", "l", "", "label selector")
	f.StringVar(&s.Fields, "field-selector", "", "field selector")
}

// Client gives access to objects of any type of the server.
type Client struct {
	Config    *rest.Config
	Dynamic   dynamic.Interface
	Mapper    meta.RESTMapper
	Namespace string
}

// Of returns the access to the server that a shell has.
func Of(s *shell.Shell) (*Client, error) {
	config, err := s.Config()
	if err != nil {
		return nil, err
	}
	ns, err := s.Namespace()
	if err != nil {
		return nil, err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	plain, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	cached := memory.NewMemCacheClient(plain)
	mapper := restmapper.NewShortcutExpander(restmapper.NewDeferredDiscoveryRESTMapper(cached), cached, nil)
	return &Client{Config: config, Dynamic: client, Mapper: mapper, Namespace: ns}, nil
}

// kind returns the REST mapping of a type that a user names: by its singular, plural or
// short name or its kind, optionally with a dot and the group.
func (o *Client) kind(name string) (*meta.RESTMapping, error) {
	aliases, group := schema.ParseResourceArg(name)
	gvk := schema.GroupVersionKind{}
	var err error
	if aliases != nil {
		gvk, err = o.Mapper.KindFor(*aliases)
	}
	if gvk.Empty() {
		gvk, err = o.Mapper.KindFor(group.WithVersion(""))
	}
	if meta.IsNoMatchError(err) {
		return nil, fmt.Errorf("the server has no type %q: did you mean %s? Use pvc, pv, sc, pod, node, volumeattachment, "+
			"csinode, csidriver or another type of the server", name, meant(name))
	}
	if err != nil {
		return nil, fmt.Errorf("find type %s: %w", name, err)
	}
	return o.Mapping(gvk)
}

// meant returns what a user who has typed an unknown type may mean.
func meant(word string) string {
	switch strings.ToLower(word) {
	case "snapshot", "snapshots":
		return "volumesnapshot"
	case "volume", "volumes":
		return "pv"
	case "claim", "claims":
		return "pvc"
	case "class", "classes":
		return "sc"
	case "attachment", "attachments":
		return "volumeattachment"
	case "driver", "drivers":
		return "csidriver"
	}
	return "pvc/" + word
}

// Mapping returns the REST mapping of a kind.
func (o *Client) Mapping(gvk schema.GroupVersionKind) (*meta.RESTMapping, error) {
	m, err := o.Mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if meta.IsNoMatchError(err) {
		return nil, fmt.Errorf("the server has no type %s in %s", gvk.Kind, gvk.GroupVersion())
	}
	if err != nil {
		return nil, fmt.Errorf("find type %s: %w", gvk.Kind, err)
	}
	return m, nil
}

// Namespaced says whether objects of a type are in namespaces.
func Namespaced(m *meta.RESTMapping) bool { return m.Scope.Name() == meta.RESTScopeNameNamespace }

// At returns the client of one type; ns is ignored for types without a namespace.
func (o *Client) At(m *meta.RESTMapping, ns string) dynamic.ResourceInterface {
	if Namespaced(m) {
		return o.Dynamic.Resource(m.Resource).Namespace(ns)
	}
	return o.Dynamic.Resource(m.Resource)
}

// Target is one type and the names of objects that a command line gives.
type Target struct {
	Mapping *meta.RESTMapping
	Names   []string
}

// Targets parses "TYPE1,TYPE2 [NAME ...]" and "TYPE/NAME ...".
func (o *Client) Targets(args []string) ([]Target, error) {
	if len(args) == 0 {
		return nil, fmt.Errorf("specify a type, for example pvc")
	}
	var out []Target
	if strings.Contains(args[0], "/") {
		for _, a := range args {
			kind, name, ok := strings.Cut(a, "/")
			if !ok || name == "" || kind == "" {
				return nil, fmt.Errorf("%q: use TYPE/NAME, like the first argument", a)
			}
			m, err := o.kind(kind)
			if err != nil {
				return nil, err
			}
			out = append(out, Target{m, []string{name}})
		}
		return out, nil
	}
	for kind := range strings.SplitSeq(args[0], ",") {
		m, err := o.kind(kind)
		if err != nil {
			return nil, err
		}
		out = append(out, Target{m, args[1:]})
	}
	return out, nil
}

// PrintedName returns the name of an object in messages: type.group/name.
func PrintedName(m *meta.RESTMapping, name string) string { return PrintedType(m) + "/" + name }

// PrintedType returns the name of a type in messages: type.group.
func PrintedType(m *meta.RESTMapping) string {
	kind := strings.ToLower(m.GroupVersionKind.Kind)
	if m.GroupVersionKind.Group != "" {
		kind += "." + m.GroupVersionKind.Group
	}
	return kind
}

// Selection selects objects of a type.
type Selection struct {
	Labels, Fields string
	All            bool
}

// Options returns the options of a list of the selected objects.
func (s Selection) Options() metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: s.Labels, FieldSelector: s.Fields}
}

// NamespaceOf returns the namespace of requests for a type; empty means all.
func (o *Client) NamespaceOf(m *meta.RESTMapping, s Selection) string {
	if s.All || !Namespaced(m) {
		return ""
	}
	return o.Namespace
}
