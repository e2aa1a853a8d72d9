package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
)

// Writer is a Cache that a component also writes to. A write is the request and,
// when the API server has answered, its result laid over the cache: who reads after
// it reads it, although the watch is late. What has an unknown outcome, because
// no answer came, changes nothing that is read: the write has to be repeated until
// it has an answer, and who must not act in between has to remember that himself.
//
// Requests have the rights of the component's client.
type Writer[T Object] struct {
	*Cache[T]
	kind string
	api  func(namespace string) API[T]
}

// API is the client of one kind, of a namespace where there are any.
type API[T any] interface {
	Create(ctx context.Context, o T, opts metav1.CreateOptions) (T, error)
	Update(ctx context.Context, o T, opts metav1.UpdateOptions) (T, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
	Get(ctx context.Context, name string, opts metav1.GetOptions) (T, error)
	Patch(
		ctx context.Context, name string, kind types.PatchType, patch []byte, opts metav1.PatchOptions, part ...string,
	) (T, error)
}

// WritePods returns the cache of Pods with a client to write them by.
func (c *Caches) WritePods(client kubernetes.Interface) Writer[*corev1.Pod] {
	return Writer[*corev1.Pod]{
		c.Pods(), "pod", func(namespace string) API[*corev1.Pod] { return client.CoreV1().Pods(namespace) },
	}
}

// WriteClaims returns the cache of claims with a client to write them by.
func (c *Caches) WriteClaims(client kubernetes.Interface) Writer[*corev1.PersistentVolumeClaim] {
	return Writer[*corev1.PersistentVolumeClaim]{
		c.Claims(), "claim",
		func(namespace string) API[*corev1.PersistentVolumeClaim] {
			return client.CoreV1().PersistentVolumeClaims(namespace)
		},
	}
}

// WriteVolumes returns the cache of volumes with a client to write them by.
func (c *Caches) WriteVolumes(client kubernetes.Interface) Writer[*corev1.PersistentVolume] {
	return Writer[*corev1.PersistentVolume]{
		c.Volumes(), "volume", func(string) API[*corev1.PersistentVolume] { return client.CoreV1().PersistentVolumes() },
	}
}

// WriteNodes returns the cache of Nodes with a client to write them by.
func (c *Caches) WriteNodes(client kubernetes.Interface) Writer[*corev1.Node] {
	return Writer[*corev1.Node]{c.Nodes(), "node", func(string) API[*corev1.Node] { return client.CoreV1().Nodes() }}
}

// WriteAttachments returns the cache of attachments with a client to write them by.
func (c *Caches) WriteAttachments(client kubernetes.Interface) Writer[*storagev1.VolumeAttachment] {
	return Writer[*storagev1.VolumeAttachment]{
		c.Attachments(), "attachment",
		func(string) API[*storagev1.VolumeAttachment] {
			return client.StorageV1().VolumeAttachments()
		},
	}
}

// WriteCapacities returns the cache of capacity objects with a client to write them
// by.
func (c *Caches) WriteCapacities(client kubernetes.Interface) Writer[*storagev1.CSIStorageCapacity] {
	return Writer[*storagev1.CSIStorageCapacity]{
		c.Capacities(), "capacity object",
		func(namespace string) API[*storagev1.CSIStorageCapacity] {
			return client.StorageV1().CSIStorageCapacities(namespace)
		},
	}
}

// Create makes an object.
func (w Writer[T]) Create(ctx context.Context, o T) (T, error) {
	got, err := w.api(o.GetNamespace()).Create(ctx, o, metav1.CreateOptions{})
	return w.answer("create", o, got, err)
}

// Ensure makes an object, or returns the one that has its name already, as it is
// now. An answer that was lost is found so. An error of the look at that one is none
// of the creation: nobody must take it for a refusal.
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

// Update writes all of an object but its status.
func (w Writer[T]) Update(ctx context.Context, o T) (T, error) {
	got, err := w.api(o.GetNamespace()).Update(ctx, o, metav1.UpdateOptions{})
	return w.answer("update", o, got, err)
}

// UpdateStatus writes the status of an object of a kind that has it apart.
func (w Writer[T]) UpdateStatus(ctx context.Context, o T) (T, error) {
	api := w.api(o.GetNamespace()).(interface {
		UpdateStatus(ctx context.Context, o T, opts metav1.UpdateOptions) (T, error)
	})
	got, err := api.UpdateStatus(ctx, o, metav1.UpdateOptions{})
	return w.answer("update the status of", o, got, err)
}

// Patch changes an object, or a part of it such as its status; the patch is written
// as JSON.
func (w Writer[T]) Patch(ctx context.Context, o T, kind types.PatchType, patch any, part ...string) (got T, err error) {
	text, err := json.Marshal(patch)
	if err == nil {
		got, err = w.api(o.GetNamespace()).Patch(ctx, o.GetName(), kind, text, metav1.PatchOptions{}, part...)
	}
	return w.answer("patch", o, got, err)
}

// Delete deletes an object, and no other one of its name. From then on it is read as
// one that is being deleted, until the watch tells more: the API server does not say
// whether it is gone. To delete what is gone succeeds.
func (w Writer[T]) Delete(ctx context.Context, o T, opts metav1.DeleteOptions) error {
	if opts.Preconditions == nil {
		opts.Preconditions = metav1.NewUIDPreconditions(string(o.GetUID()))
	}
	err := IgnoreNotFound(w.api(o.GetNamespace()).Delete(ctx, o.GetName(), opts))
	if err != nil {
		return fmt.Errorf("delete %s %s: %w", w.kind, cluster.Key(o), err)
	}
	now := metav1.Now()
	w.store.learn(o, fact[T]{
		shows:  func(o T) bool { return o.GetDeletionTimestamp() != nil },
		impose: func(o T) { o.SetDeletionTimestamp(&now) },
	})
	return nil
}

// answer lays the result of a request over the cache.
func (w Writer[T]) answer(verb string, o, got T, err error) (T, error) {
	if err != nil {
		var none T
		return none, fmt.Errorf("%s %s %s: %w", verb, w.kind, cluster.Key(o), err)
	}
	// Who takes the last finalizer away gets the object as it would be.
	if got.GetDeletionTimestamp() != nil && len(got.GetFinalizers()) == 0 &&
		ptr.Equal(got.GetDeletionGracePeriodSeconds(), ptr.To[int64](0)) {
		w.store.deleted(got)
	} else {
		w.store.wrote(got)
	}
	return got, nil
}

// Bind gives a Pod its node.
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
	w.store.learn(pod, fact[*corev1.Pod]{
		shows:  func(p *corev1.Pod) bool { return p.Spec.NodeName != "" },
		impose: func(p *corev1.Pod) { p.Spec.NodeName = node },
	})
	return nil
}

// IgnoreNotFound returns the error of a request unless it is that there is no such
// object.
func IgnoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
