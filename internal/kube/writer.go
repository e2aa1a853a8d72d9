package kube

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
)

// Writer is a Cache that a component also writes to. When the API server has answered a write, the result is applied to
// the cache, so every later read sees it even if the watch is late. A write without an answer has an unknown outcome
// and does not change the cache: it must be repeated until it is answered, and a component that must not act before
// that has to remember it.
//
// Requests have the rights of the component's client.
type Writer[T Object] struct {
	*Cache[T]
	kind string
	api  func(namespace string) API[T]
}

// API is the typed client of one kind, for one namespace if the kind has namespaces.
type API[T any] interface {
	Create(ctx context.Context, o T, opts metav1.CreateOptions) (T, error)
	Update(ctx context.Context, o T, opts metav1.UpdateOptions) (T, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
	Get(ctx context.Context, name string, opts metav1.GetOptions) (T, error)
	Patch(
		ctx context.Context, name string, kind types.PatchType, patch []byte, opts metav1.PatchOptions, part ...string,
	) (T, error)
}

// writer returns a cache with the clients of its kind.
func writer[T Object, A API[T]](c *Cache[T], kind string, of func(namespace string) A) Writer[T] {
	return Writer[T]{c, kind, func(namespace string) API[T] { return of(namespace) }}
}

// everywhere is of for a kind without namespaces.
func everywhere[A any](of func() A) func(string) A { return func(string) A { return of() } }

// WritePods returns the cache of Pods with a client to write them.
func (c *Caches) WritePods(client kubernetes.Interface) Writer[*corev1.Pod] {
	return writer(c.Pods(), "pod", client.CoreV1().Pods)
}

// WriteClaims returns the cache of claims with a client to write them.
func (c *Caches) WriteClaims(client kubernetes.Interface) Writer[*corev1.PersistentVolumeClaim] {
	return writer(c.Claims(), "claim", client.CoreV1().PersistentVolumeClaims)
}

// WriteVolumeAttributesClasses returns the cache of VolumeAttributesClasses with a client to write them.
func (c *Caches) WriteVolumeAttributesClasses(client kubernetes.Interface) Writer[*storagev1.VolumeAttributesClass] {
	return writer(c.VolumeAttributesClasses(), "VolumeAttributesClass",
		everywhere(client.StorageV1().VolumeAttributesClasses))
}

// WriteVolumes returns the cache of volumes with a client to write them.
func (c *Caches) WriteVolumes(client kubernetes.Interface) Writer[*corev1.PersistentVolume] {
	return writer(c.Volumes(), "volume", everywhere(client.CoreV1().PersistentVolumes))
}

// WriteNodes returns the cache of Nodes with a client to write them.
func (c *Caches) WriteNodes(client kubernetes.Interface) Writer[*corev1.Node] {
	return writer(c.Nodes(), "node", everywhere(client.CoreV1().Nodes))
}

// WriteAttachments returns the cache of VolumeAttachments with a client to write them.
func (c *Caches) WriteAttachments(client kubernetes.Interface) Writer[*storagev1.VolumeAttachment] {
	return writer(c.Attachments(), "attachment", everywhere(client.StorageV1().VolumeAttachments))
}

// WriteCapacities returns the cache of CSIStorageCapacities with a client to write them.
func (c *Caches) WriteCapacities(client kubernetes.Interface) Writer[*storagev1.CSIStorageCapacity] {
	return writer(c.Capacities(), "capacity object", client.StorageV1().CSIStorageCapacities)
}

// Create creates an object. If an earlier create without an answer took effect, the error is AlreadyExists.
func (w Writer[T]) Create(ctx context.Context, o T) (T, error) {
	got, err := w.api(o.GetNamespace()).Create(ctx, o, metav1.CreateOptions{})
	return w.answer("create", o, got, err)
}

// Ensure creates an object, or returns the existing one with its name as the API server has it now: so it may be
// repeated after a lost answer. An error of that read does not have the type of an API error, so no caller mistakes it
// for a refusal of the create.
func (w Writer[T]) Ensure(ctx context.Context, o T) (got T, made bool, err error) {
	got, err = w.Create(ctx, o)
	if !apierrors.IsAlreadyExists(err) {
		return got, err == nil, err
	}
	got, err = w.api(o.GetNamespace()).Get(ctx, o.GetName(), metav1.GetOptions{})
	if got, err = w.answer("look at", o, got, err); err != nil {
		err = errors.New(err.Error())
	}
	return got, false, err
}

// Look reads an object from the API server itself, and applies it to the cache: an object that was just created
// elsewhere may not have arrived there. exists is false if the object does not exist.
func (w Writer[T]) Look(ctx context.Context, namespace, name string) (exists bool, err error) {
	got, err := w.api(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("get %s %s: %w", w.kind, name, err)
	}
	w.store.recordWrite(got)
	return true, nil
}

// Update writes an object except its status.
func (w Writer[T]) Update(ctx context.Context, o T) (T, error) {
	got, err := w.api(o.GetNamespace()).Update(ctx, o, metav1.UpdateOptions{})
	return w.answer("update", o, got, err)
}

// UpdateStatus writes the status of an object whose kind has a status subresource.
func (w Writer[T]) UpdateStatus(ctx context.Context, o T) (T, error) {
	api := w.api(o.GetNamespace()).(interface {
		UpdateStatus(ctx context.Context, o T, opts metav1.UpdateOptions) (T, error)
	})
	got, err := api.UpdateStatus(ctx, o, metav1.UpdateOptions{})
	return w.answer("update the status of", o, got, err)
}

// Patch changes an object, or a subresource of it such as its status. The patch is marshalled to JSON.
func (w Writer[T]) Patch(ctx context.Context, o T, kind types.PatchType, patch any, part ...string) (got T, err error) {
	text, err := json.Marshal(patch)
	if err == nil {
		got, err = w.api(o.GetNamespace()).Patch(ctx, o.GetName(), kind, text, metav1.PatchOptions{}, part...)
	}
	return w.answer("patch", o, got, err)
}

// Delete deletes an object by its UID, not another one of the same name. Since the API server does
// not say whether the object is gone, the cache shows it as being deleted until the watch reports
// more. Deleting an object that is gone succeeds.
func (w Writer[T]) Delete(ctx context.Context, o T, opts metav1.DeleteOptions) error {
	opts.Preconditions = cmp.Or(opts.Preconditions, metav1.NewUIDPreconditions(string(o.GetUID())))
	err := IgnoreNotFound(w.api(o.GetNamespace()).Delete(ctx, o.GetName(), opts))
	if err != nil {
		return fmt.Errorf("delete %s %s: %w", w.kind, cluster.Key(o), err)
	}
	now := metav1.Now()
	w.store.recordFact(o, fact[T]{
		holds: func(o T) bool { return o.GetDeletionTimestamp() != nil },
		apply: func(o T) { o.SetDeletionTimestamp(&now) },
	})
	return nil
}

// answer lays the result of a request over the cache.
func (w Writer[T]) answer(verb string, o, got T, err error) (T, error) {
	if err != nil {
		var none T
		return none, fmt.Errorf("%s %s %s: %w", verb, w.kind, cluster.Key(o), err)
	}
	// A write that removes the last finalizer deletes the object; the answer is the state it would have had.
	if got.GetDeletionTimestamp() != nil && len(got.GetFinalizers()) == 0 &&
		ptr.Equal(got.GetDeletionGracePeriodSeconds(), ptr.To[int64](0)) {
		w.store.recordDeletion(got)
	} else {
		w.store.recordWrite(got)
	}
	return got, nil
}

// Bind binds a Pod to a node. A Pod that is bound already is an error.
func Bind(ctx context.Context, w Writer[*corev1.Pod], pod *corev1.Pod, node string) error {
	api := w.api(pod.Namespace).(interface {
		Bind(ctx context.Context, b *corev1.Binding, opts metav1.CreateOptions) error
	})
	err := api.Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("bind pod %s: %w", cluster.Key(pod), err)
	}
	w.store.recordFact(pod, fact[*corev1.Pod]{
		holds: func(p *corev1.Pod) bool { return p.Spec.NodeName != "" },
		apply: func(p *corev1.Pod) { p.Spec.NodeName = node },
	})
	return nil
}

// IgnoreNotFound returns err, or nil if err says that the object does not exist.
func IgnoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// RefusedForGood says whether the API server has refused a request, and will refuse it again: it had no effect.
func RefusedForGood(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err)
}

// maxWrites is how many writes of a process are in flight at most. An API server accepts 200 concurrent writes from all
// its clients and answers the next one with 429 (retry after a second); a hundred keep it as busy as more would.
const maxWrites = 100

// Flow limits how many writes of a process are in flight at the same time. It does not limit their
// rate: the server does that. It is safe for concurrent use.
type Flow chan struct{}

// NewFlow returns a Flow with no write in flight.
func NewFlow() Flow { return make(Flow, maxWrites) }

// Limit makes the writes of a client's config wait until the Flow allows them.
func (f Flow) Limit(config *rest.Config) {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &limited{f, next} })
}

type limited struct {
	flow Flow
	next http.RoundTripper
}

// RoundTrip delays a write until fewer than maxWrites are in flight or the request's context ends.
func (b *limited) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method == http.MethodGet {
		return b.next.RoundTrip(req)
	}
	select {
	case b.flow <- struct{}{}:
		defer func() { <-b.flow }()
		return b.next.RoundTrip(req)
	case <-req.Context().Done():
		return nil, req.Context().Err()
	}
}

// Change writes the difference between two states of an object, based on the version of the first: if another client
// has written the object in the meantime, that is a conflict. Unlike Update it keeps fields that this program does not
// know, because custom resources may be newer than it. part is a subresource.
func (w Writer[T]) Change(ctx context.Context, before, after T, part ...string) (T, error) {
	was, err := fieldsOf(before)
	var is map[string]any
	if err == nil {
		is, err = fieldsOf(after)
	}
	if err != nil {
		var none T
		return none, fmt.Errorf("encode %s %s: %w", w.kind, cluster.Key(before), err)
	}
	patch := mergePatch(was, is)
	meta, _ := patch["metadata"].(map[string]any)
	if meta == nil {
		meta = map[string]any{}
	}
	meta["resourceVersion"] = before.GetResourceVersion()
	patch["metadata"] = meta
	return w.Patch(ctx, before, types.MergePatchType, patch, part...)
}

// fieldsOf returns an object as JSON has it. Numbers stay texts, because a float has not all digits of a time in
// nanoseconds.
func fieldsOf(o any) (map[string]any, error) {
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err //nolint:wrapcheck // the caller says what it is about
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var out map[string]any
	err = d.Decode(&out)
	return out, err //nolint:wrapcheck // the caller says what it is about
}

// mergePatch returns the JSON merge patch from one state to another.
func mergePatch(before, after map[string]any) map[string]any {
	patch := map[string]any{}
	for key, was := range before {
		is, stays := after[key]
		old, ok := was.(map[string]any)
		now, ok2 := is.(map[string]any)
		switch {
		case !stays:
			patch[key] = nil
		case reflect.DeepEqual(was, is):
		case ok && ok2:
			patch[key] = mergePatch(old, now)
		default:
			patch[key] = is
		}
	}
	for key, is := range after {
		if _, there := before[key]; !there {
			patch[key] = is
		}
	}
	return patch
}
