package cli

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

// objects gives access to objects of any type of the server.
type objects struct {
	config    *rest.Config
	dynamic   dynamic.Interface
	mapper    meta.RESTMapper
	namespace string
}

func (s *shell) objects() (*objects, error) {
	config, err := s.config()
	if err != nil {
		return nil, err
	}
	ns, err := s.namespace()
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
	return &objects{config: config, dynamic: client, mapper: mapper, namespace: ns}, nil
}

// kind returns the REST mapping of a type that a user names: by its singular, plural or
// short name or its kind, optionally with a dot and the group.
func (o *objects) kind(name string) (*meta.RESTMapping, error) {
	aliases, group := schema.ParseResourceArg(name)
	gvk := schema.GroupVersionKind{}
	var err error
	if aliases != nil {
		gvk, err = o.mapper.KindFor(*aliases)
	}
	if gvk.Empty() {
		gvk, err = o.mapper.KindFor(group.WithVersion(""))
	}
	if meta.IsNoMatchError(err) {
		return nil, fmt.Errorf("the server has no type %q: did you mean %s? Use pvc, pv, sc, pod, node, volumeattachment, "+
			"csinode, csidriver or another type of the server", name, meant(name))
	}
	if err != nil {
		return nil, fmt.Errorf("find type %s: %w", name, err)
	}
	return o.mapping(gvk)
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

func (o *objects) mapping(gvk schema.GroupVersionKind) (*meta.RESTMapping, error) {
	m, err := o.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if meta.IsNoMatchError(err) {
		return nil, fmt.Errorf("the server has no type %s in %s", gvk.Kind, gvk.GroupVersion())
	}
	if err != nil {
		return nil, fmt.Errorf("find type %s: %w", gvk.Kind, err)
	}
	return m, nil
}

func namespaced(m *meta.RESTMapping) bool { return m.Scope.Name() == meta.RESTScopeNameNamespace }

// at returns the client of one type; ns is ignored for types without a namespace.
func (o *objects) at(m *meta.RESTMapping, ns string) dynamic.ResourceInterface {
	if namespaced(m) {
		return o.dynamic.Resource(m.Resource).Namespace(ns)
	}
	return o.dynamic.Resource(m.Resource)
}

// target is one type and the names of objects that a command line gives.
type target struct {
	mapping *meta.RESTMapping
	names   []string
}

// targets parses "TYPE1,TYPE2 [NAME ...]" and "TYPE/NAME ...".
func (o *objects) targets(args []string) ([]target, error) {
	if len(args) == 0 {
		return nil, fmt.Errorf("specify a type, for example pvc")
	}
	var out []target
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
			out = append(out, target{m, []string{name}})
		}
		return out, nil
	}
	for kind := range strings.SplitSeq(args[0], ",") {
		m, err := o.kind(kind)
		if err != nil {
			return nil, err
		}
		out = append(out, target{m, args[1:]})
	}
	return out, nil
}

// printedName returns the name of an object in messages: type.group/name.
func printedName(m *meta.RESTMapping, name string) string { return printedType(m) + "/" + name }

func printedType(m *meta.RESTMapping) string {
	kind := strings.ToLower(m.GroupVersionKind.Kind)
	if m.GroupVersionKind.Group != "" {
		kind += "." + m.GroupVersionKind.Group
	}
	return kind
}

// request returns a request for one type with the given Accept header.
func (o *objects) request(m *meta.RESTMapping, accept string) (*rest.Request, error) {
	config := rest.CopyConfig(o.config)
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

// selection selects objects of a type.
type selection struct {
	labels, fields string
	all            bool
}

func (s selection) options() metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: s.labels, FieldSelector: s.fields}
}

// namespaceOf returns the namespace of requests for a type; empty means all.
func (o *objects) namespaceOf(m *meta.RESTMapping, s selection) string {
	if s.all || !namespaced(m) {
		return ""
	}
	return o.namespace
}
