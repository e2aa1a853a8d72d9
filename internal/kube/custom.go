package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// customClient is the client of one kind of custom resources; L is the list type of the kind. It works
// over the general REST client that every Kubernetes client has for discovery, so that custom resources need no client
// of their own: they have the same connection, identity and limits.
type customClient[T Object, L runtime.Object] struct {
	rest                rest.Interface
	version             schema.GroupVersion
	namespace, resource string
	// kind is the name of the kind, which the API server requires in each object.
	kind   string
	object func() T
	list   func() L
}

// customOf returns the client of a kind: K is its type, and KL that of its lists.
func customOf[K, KL any, T custom[K], L interface {
	*KL
	runtime.Object
}](
	client kubernetes.Interface, version schema.GroupVersion, resource, kind, namespace string,
) customClient[T, L] {
	return customClient[T, L]{
		rest: client.Discovery().RESTClient(), version: version, namespace: namespace, resource: resource, kind: kind,
		object: func() T { return new(K) }, list: func() L { return new(KL) },
	}
}

// custom is a pointer to an object of a kind.
type custom[K any] interface {
	*K
	Object
}

// request returns a request about the resource, or about one object of it. part is a subresource. A name with a slash,
// which would lead to another object, makes the request fail.
func (c customClient[T, L]) request(verb, name string, part ...string) *rest.Request {
	r := c.rest.Verb(verb).AbsPath("apis", c.version.Group, c.version.Version).
		NamespaceIfScoped(c.namespace, c.namespace != "").Resource(c.resource)
	if name != "" {
		r = r.Name(name).SubResource(part...)
	}
	return r.SetHeader("Accept", runtime.ContentTypeJSON)
}

// withOptions adds options to the parameters of a request.
func withOptions(r *rest.Request, options runtime.Object) *rest.Request {
	return r.SpecificallyVersionedParams(options, scheme.ParameterCodec, schema.GroupVersion{Version: "v1"})
}

// do sends a request, and decodes the answer.
func do[T any](ctx context.Context, r *rest.Request, into T) (T, error) {
	var none T
	result := r.Do(ctx)
	// Unlike Raw, Error distinguishes a missing object from a missing resource.
	if err := result.Error(); err != nil {
		return none, err
	}
	body, err := result.Raw()
	if err == nil {
		err = json.Unmarshal(body, into)
	}
	if err != nil {
		return none, fmt.Errorf("decode the answer: %w", err)
	}
	return into, nil
}

// send sends a request with an object.
func (c customClient[T, L]) send(ctx context.Context, r *rest.Request, o T) (T, error) {
	o = o.DeepCopyObject().(T)
	o.GetObjectKind().SetGroupVersionKind(c.version.WithKind(c.kind))
	body, err := json.Marshal(o)
	if err != nil {
		var none T
		return none, fmt.Errorf("encode %s: %w", o.GetName(), err)
	}
	return do(ctx, r.SetHeader("Content-Type", runtime.ContentTypeJSON).Body(body), c.object())
}

// Create creates an object.
func (c customClient[T, L]) Create(ctx context.Context, o T, opts metav1.CreateOptions) (T, error) {
	return c.send(ctx, withOptions(c.request(http.MethodPost, ""), &opts), o)
}

// Update replaces an object except its status.
func (c customClient[T, L]) Update(ctx context.Context, o T, opts metav1.UpdateOptions) (T, error) {
	return c.send(ctx, withOptions(c.request(http.MethodPut, o.GetName()), &opts), o)
}

// Patch changes an object or a subresource of it.
func (c customClient[T, L]) Patch(
	ctx context.Context, name string, kind types.PatchType, patch []byte, opts metav1.PatchOptions, part ...string,
) (T, error) {
	r := withOptions(c.request(http.MethodPatch, name, part...), &opts)
	return do(ctx, r.SetHeader("Content-Type", string(kind)).Body(patch), c.object())
}

// Delete deletes an object.
func (c customClient[T, L]) Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error {
	opts.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"}
	body, err := json.Marshal(opts)
	if err != nil {
		return fmt.Errorf("encode the options: %w", err)
	}
	r := c.request(http.MethodDelete, name).SetHeader("Content-Type", runtime.ContentTypeJSON)
	return r.Body(body).Do(ctx).Error()
}

// IsObjectName says whether an object can have this name. Users choose names: a request for one with a slash would lead
// to another object.
func IsObjectName(name string) bool { return name != "" && len(content.IsPathSegmentName(name)) == 0 }

// Get reads an object.
func (c customClient[T, L]) Get(ctx context.Context, name string, opts metav1.GetOptions) (T, error) {
	if !IsObjectName(name) {
		var none T
		return none, apierrors.NewBadRequest(fmt.Sprintf("%.80q is not a name of a %s", name, c.kind))
	}
	return do(ctx, withOptions(c.request(http.MethodGet, name), &opts), c.object())
}

// List reads all objects.
func (c customClient[T, L]) List(ctx context.Context, opts metav1.ListOptions) (L, error) {
	return do(ctx, withOptions(c.request(http.MethodGet, ""), &opts), c.list())
}

// Watch reads what changes.
func (c customClient[T, L]) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	opts.Watch = true
	body, err := withOptions(c.request(http.MethodGet, ""), &opts).Stream(ctx)
	if err != nil {
		return nil, err
	}
	return watch.NewStreamWatcher(&jsonEvents[T]{body, json.NewDecoder(body), c.object},
		apierrors.NewClientErrorReporter(http.StatusInternalServerError, http.MethodGet, "ClientWatchDecoding")), nil
}

// jsonEvents decodes the events of a watch.
type jsonEvents[T Object] struct {
	body   io.ReadCloser
	events *json.Decoder
	object func() T
}

// Decode returns the next event.
func (d *jsonEvents[T]) Decode() (watch.EventType, runtime.Object, error) {
	var event struct {
		Type   watch.EventType `json:"type"`
		Object json.RawMessage `json:"object"`
	}
	if err := d.events.Decode(&event); err != nil {
		return "", nil, err //nolint:wrapcheck // the watcher looks for io.EOF
	}
	var o runtime.Object = d.object()
	if event.Type == watch.Error {
		o = &metav1.Status{}
	}
	if err := json.Unmarshal(event.Object, o); err != nil {
		return "", nil, fmt.Errorf("decode an event: %w", err)
	}
	return event.Type, o, nil
}

// Close ends the watch.
func (d *jsonEvents[T]) Close() { _ = d.body.Close() }
