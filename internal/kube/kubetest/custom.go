package kubetest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	restfake "k8s.io/client-go/rest/fake"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/volume"
)

// Scheme knows the kinds of Kubernetes and the custom resources of snapshots.
type Scheme struct{ custom *runtime.Scheme }

// NewScheme returns a Scheme.
func NewScheme() Scheme {
	s := Scheme{runtime.NewScheme()}
	s.custom.AddKnownTypes(snapshotv1.SchemeGroupVersion, &snapshotv1.VolumeSnapshot{}, &snapshotv1.VolumeSnapshotList{},
		&cluster.VolumeSnapshotContent{}, &cluster.VolumeSnapshotContentList{},
		&cluster.VolumeSnapshotClass{}, &cluster.VolumeSnapshotClassList{})
	metav1.AddToGroupVersion(s.custom, snapshotv1.SchemeGroupVersion)
	services := schema.GroupVersion{Group: volume.GroupMetadata, Version: volume.MetadataVersion}
	s.custom.AddKnownTypes(services, &cluster.SnapshotMetadataService{}, &cluster.SnapshotMetadataServiceList{})
	metav1.AddToGroupVersion(s.custom, services)
	gateway := schema.GroupVersion{Group: volume.GroupGateway, Version: volume.GatewayVersion}
	s.custom.AddKnownTypes(gateway, &cluster.ReferenceGrant{}, &cluster.ReferenceGrantList{})
	metav1.AddToGroupVersion(s.custom, gateway)
	if err := groupv1.AddToScheme(s.custom); err != nil {
		panic(err) // its kinds are known when it is compiled
	}
	return s
}

// of returns the scheme that has a group.
func (s Scheme) of(group string) *runtime.Scheme {
	switch group {
	case snapshotv1.GroupName, groupv1.GroupName, volume.GroupMetadata, volume.GroupGateway:
		return s.custom
	}
	return scheme.Scheme
}

// New creates an object of a kind.
func (s Scheme) New(kind schema.GroupVersionKind) (runtime.Object, error) {
	return s.of(kind.Group).New(kind)
}

// Recognizes says whether a kind is known.
func (s Scheme) Recognizes(kind schema.GroupVersionKind) bool {
	return s.of(kind.Group).Recognizes(kind)
}

// ObjectKinds returns the kinds that an object can be.
func (s Scheme) ObjectKinds(o runtime.Object) (kinds []schema.GroupVersionKind, unversioned bool, err error) {
	if kinds, unversioned, err = s.custom.ObjectKinds(o); err == nil {
		return kinds, unversioned, nil
	}
	return scheme.Scheme.ObjectKinds(o)
}

// Custom returns the kinds of the custom resources of snapshots.
func (s Scheme) Custom() []schema.GroupVersionKind {
	var out []schema.GroupVersionKind
	for _, name := range []string{"VolumeSnapshot", "VolumeSnapshotContent", "VolumeSnapshotClass"} {
		out = append(out, snapshotv1.SchemeGroupVersion.WithKind(name))
	}
	for _, name := range []string{"VolumeGroupSnapshot", "VolumeGroupSnapshotContent", "VolumeGroupSnapshotClass"} {
		out = append(out, groupv1.SchemeGroupVersion.WithKind(name))
	}
	return append(out, schema.GroupVersionKind{
		Group: volume.GroupMetadata, Version: volume.MetadataVersion, Kind: "SnapshotMetadataService",
	}, schema.GroupVersionKind{Group: volume.GroupGateway, Version: volume.GatewayVersion, Kind: "ReferenceGrant"})
}

// Customized returns a client with access to custom resources: requests over its REST client become actions of the
// clientset, like all others.
func Customized(c *fake.Clientset) *CustomClient { return &CustomClient{c} }

// CustomClient is a client that has custom resources, too.
type CustomClient struct{ *fake.Clientset }

// Discovery has the way to custom resources.
func (c *CustomClient) Discovery() discovery.DiscoveryInterfaces {
	return discovering{c.Clientset.Discovery(), &restfake.RESTClient{
		NegotiatedSerializer: scheme.Codecs.WithoutConversion(), GroupVersion: schema.GroupVersion{Version: "v1"},
		Client: &http.Client{Transport: customActions{c.Clientset, NewScheme()}},
	}}
}

type discovering struct {
	discovery.DiscoveryInterfaces
	rest rest.Interface
}

func (d discovering) RESTClient() rest.Interface { return d.rest }

// customActions answers requests about custom resources by actions of a clientset.
type customActions struct {
	client *fake.Clientset
	scheme Scheme
}

// customRequest is what a request is about.
type customRequest struct {
	*http.Request
	kind                 schema.GroupVersionKind
	resource             schema.GroupVersionResource
	namespace, name, sub string
	body                 []byte
}

// RoundTrip answers one request.
func (a customActions) RoundTrip(r *http.Request) (*http.Response, error) {
	q, ok := a.parse(r)
	if !ok {
		return jsonAnswer(http.StatusNotFound, apierrors.NewNotFound(schema.GroupResource{}, r.URL.Path).Status())
	}
	if r.Body != nil {
		var err error
		if q.body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
	}
	if r.URL.Query().Get("watch") == "true" {
		return a.watch(q)
	}
	action, err := a.action(q)
	if err != nil {
		return nil, err
	}
	o, err := a.client.Invokes(action, nil)
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		return jsonAnswer(int(status.Status().Code), status.Status())
	}
	if err != nil {
		return nil, err
	}
	if o == nil {
		return jsonAnswer(http.StatusOK, metav1.Status{Status: metav1.StatusSuccess})
	}
	return jsonAnswer(http.StatusOK, a.named(o))
}

// parse reads "/apis/GROUP/VERSION/[namespaces/NAMESPACE/]RESOURCE[/NAME[/SUBRESOURCE]]".
func (a customActions) parse(r *http.Request) (customRequest, bool) {
	q := customRequest{Request: r}
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/apis/"), "/")
	if len(parts) < 3 {
		return q, false
	}
	version := schema.GroupVersion{Group: parts[0], Version: parts[1]}
	parts = parts[2:]
	if len(parts) > 2 && parts[0] == "namespaces" {
		q.namespace, parts = parts[1], parts[2:]
	}
	parts = append(parts, "", "")
	q.name, q.sub = parts[1], parts[2]
	for _, kind := range a.scheme.Custom() {
		if resource, _ := meta.UnsafeGuessKindToResource(kind); kind.GroupVersion() == version &&
			resource.Resource == parts[0] {
			q.kind, q.resource = kind, resource
			return q, true
		}
	}
	return q, false
}

// action returns the action of a request.
func (a customActions) action(q customRequest) (clienttesting.Action, error) {
	switch q.Method {
	case http.MethodPatch:
		return clienttesting.NewPatchSubresourceAction(q.resource, q.namespace, q.name,
			types.PatchType(q.Header.Get("Content-Type")), q.body, strings.Fields(q.sub)...), nil
	case http.MethodDelete:
		var o metav1.DeleteOptions
		err := json.Unmarshal(q.body, &o)
		return clienttesting.NewDeleteActionWithOptions(q.resource, q.namespace, q.name, o), err
	case http.MethodGet:
		if q.name == "" {
			return clienttesting.NewListAction(q.resource, q.kind, q.namespace, metav1.ListOptions{}), nil
		}
		return clienttesting.NewGetAction(q.resource, q.namespace, q.name), nil
	}
	o, err := a.scheme.New(q.kind)
	if err == nil {
		err = json.Unmarshal(q.body, o)
	}
	if err != nil {
		return nil, err
	}
	if is := o.GetObjectKind().GroupVersionKind(); is != q.kind {
		return nil, fmt.Errorf("the body is of kind %q, not %q", is, q.kind)
	}
	o.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	if q.Method == http.MethodPost {
		return clienttesting.NewCreateAction(q.resource, q.namespace, o), nil
	}
	return clienttesting.NewUpdateSubresourceAction(q.resource, q.sub, q.namespace, o), nil
}

// named returns an object with its kind, as the API server answers.
func (a customActions) named(o runtime.Object) runtime.Object {
	o = o.DeepCopyObject()
	if kinds, _, err := a.scheme.ObjectKinds(o); err == nil {
		o.GetObjectKind().SetGroupVersionKind(kinds[0])
	}
	items, err := meta.ExtractList(o)
	if err != nil {
		return o
	}
	for i := range items {
		items[i] = a.named(items[i])
	}
	if err := meta.SetList(o, items); err != nil {
		panic(err) // they are its own
	}
	return o
}

// watch answers with a stream of events, until the reader closes it.
func (a customActions) watch(q customRequest) (*http.Response, error) {
	w, err := a.client.InvokesWatch(clienttesting.NewWatchAction(q.resource, q.namespace, metav1.ListOptions{
		ResourceVersion: q.URL.Query().Get("resourceVersion"),
	}))
	if err != nil {
		return nil, err
	}
	read, write := io.Pipe()
	go func() {
		defer w.Stop()
		for {
			select {
			case e, more := <-w.ResultChan():
				if !more {
					_ = write.Close()
					return
				}
				if a.send(write, e) != nil {
					return
				}
			case <-q.Context().Done():
				_ = write.CloseWithError(q.Context().Err())
				return
			}
		}
	}()
	return &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {runtime.ContentTypeJSON}}, Body: read,
	}, nil
}

func (a customActions) send(to io.Writer, e watch.Event) error {
	return json.NewEncoder(to).Encode(map[string]any{"type": e.Type, "object": a.named(e.Object)})
}

func jsonAnswer(code int, o any) (*http.Response, error) {
	if status, ok := o.(metav1.Status); ok {
		status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
		o = status
	}
	text, err := json.Marshal(o)
	return &http.Response{
		StatusCode: code, Header: http.Header{"Content-Type": {runtime.ContentTypeJSON}},
		Body: io.NopCloser(bytes.NewReader(text)),
	}, err
}
