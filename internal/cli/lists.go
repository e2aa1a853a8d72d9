package cli

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/pager"

	"volplane.dev/volplane/internal/cluster"
)

const (
	// pageSize is how many objects are asked for at once: the server and this
	// program hold one page and the next.
	pageSize = 2000
	// maxRequests bounds how many requests are under way at the same time.
	maxRequests = 16
	// maxGets is how many objects of a kind are read one by one; of more, all are
	// listed.
	maxGets = 64
)

// every lists objects page by page. A list that takes so long that the server has
// forgotten its beginning is read once more as a whole.
func every[T, L runtime.Object](ctx context.Context, what string, o metav1.ListOptions,
	list func(context.Context, metav1.ListOptions) (L, error),
) ([]T, error) {
	p := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return list(ctx, o) })
	p.PageSize = pageSize
	var out []T
	err := p.EachListItem(ctx, o, func(item runtime.Object) error {
		out = append(out, item.(T))
		return nil
	})
	if err != nil {
		return out, fmt.Errorf("list %s: %w", what, err)
	}
	return out, nil
}

// together has all reads under way at once, and returns the first error.
func (r *reading) together(ctx context.Context, reads ...read) error {
	errs, slots := make([]error, len(reads)), make(chan struct{}, maxRequests)
	var all sync.WaitGroup
	for i, next := range reads {
		all.Go(func() {
			slots <- struct{}{}
			errs[i] = next(ctx)
			<-slots
		})
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// add puts objects beside those of the same kind that were read before.
func add[T metav1.Object](r *reading, to *[]T, objects ...T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	has := make(map[string]bool, len(*to))
	for _, o := range *to {
		has[cluster.Key(o)] = true
	}
	for _, o := range objects {
		if !has[cluster.Key(o)] {
			*to = append(*to, o)
		}
	}
}

// got adds one object, if it is there.
func got[T metav1.Object](r *reading, to *[]T, o T, err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	}
	add(r, to, o)
	return nil
}

func (r *reading) claim(ns, name string) read {
	return func(ctx context.Context) error {
		c, err := r.client.CoreV1().PersistentVolumeClaims(ns).Get(ctx, name, metav1.GetOptions{})
		return got(r, &r.Claims, c, err)
	}
}

func (r *reading) claims(ns string) read {
	return func(ctx context.Context) error {
		all, err := every[*corev1.PersistentVolumeClaim](ctx, "claims", metav1.ListOptions{},
			r.client.CoreV1().PersistentVolumeClaims(ns).List)
		add(r, &r.Claims, all...)
		return err
	}
}

func (r *reading) volume(name string) read {
	return func(ctx context.Context) error {
		v, err := r.client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
		return got(r, &r.Volumes, v, err)
	}
}

func (r *reading) volumes(ctx context.Context) error {
	all, err := every[*corev1.PersistentVolume](ctx, "volumes", metav1.ListOptions{},
		r.client.CoreV1().PersistentVolumes().List)
	add(r, &r.Volumes, all...)
	return err
}

func (r *reading) attachment(name string) read {
	return func(ctx context.Context) error {
		a, err := r.client.StorageV1().VolumeAttachments().Get(ctx, name, metav1.GetOptions{})
		return got(r, &r.Attachments, a, err)
	}
}

// attachments reads all, for the API finds none by its volume or its node.
func (r *reading) attachments(ctx context.Context) error {
	all, err := every[*storagev1.VolumeAttachment](ctx, "attachments", metav1.ListOptions{},
		r.client.StorageV1().VolumeAttachments().List)
	add(r, &r.Attachments, all...)
	return err
}

func (r *reading) pod(ns, name string) read {
	return func(ctx context.Context) error {
		p, err := r.client.CoreV1().Pods(ns).Get(ctx, name, metav1.GetOptions{})
		return got(r, &r.Pods, p, err)
	}
}

// pods reads the Pods of a namespace, for the API finds none by its claims.
func (r *reading) pods(ns string) read { return r.podsBy(ns, "") }

// podsOn reads the Pods of a node. Who may not read those of all namespaces is told
// the rest.
func (r *reading) podsOn(node string) read {
	return func(ctx context.Context) error {
		err := r.podsBy(metav1.NamespaceAll, "spec.nodeName="+node)(ctx)
		if apierrors.IsForbidden(err) {
			return nil
		}
		return err
	}
}

func (r *reading) podsBy(ns, selector string) read {
	return func(ctx context.Context) error {
		all, err := every[*corev1.Pod](ctx, "pods", metav1.ListOptions{FieldSelector: selector},
			r.client.CoreV1().Pods(ns).List)
		add(r, &r.Pods, all...)
		return err
	}
}

// cluster reads what has no namespace and is not many.
func (r *reading) cluster(ctx context.Context) error {
	o := metav1.ListOptions{}
	return r.together(ctx, r.leases,
		func(ctx context.Context) (err error) {
			r.Classes, err = every[*storagev1.StorageClass](ctx, "classes", o, r.client.StorageV1().StorageClasses().List)
			return err
		},
		func(ctx context.Context) (err error) {
			r.Drivers, err = every[*storagev1.CSIDriver](ctx, "drivers", o, r.client.StorageV1().CSIDrivers().List)
			return err
		},
		func(ctx context.Context) (err error) {
			r.Nodes, err = every[*corev1.Node](ctx, "nodes", o, r.client.CoreV1().Nodes().List)
			return err
		},
		func(ctx context.Context) (err error) {
			r.CSINodes, err = every[*storagev1.CSINode](ctx, "CSINodes", o, r.client.StorageV1().CSINodes().List)
			return err
		})
}

// namespaceObject reads a Namespace. Who may not read it is told the rest.
func (r *reading) namespaceObject(name string) read {
	return func(ctx context.Context) error {
		n, err := r.client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		return got(r, &r.Namespaces, n, err)
	}
}

// namespaces reads the Namespaces, or one. Who may not read them is told the rest.
func (r *reading) namespaces(name string) read {
	return func(ctx context.Context) error {
		if name != metav1.NamespaceAll {
			return r.namespaceObject(name)(ctx)
		}
		all, err := every[*corev1.Namespace](ctx, "namespaces", metav1.ListOptions{}, r.client.CoreV1().Namespaces().List)
		add(r, &r.Namespaces, all...)
		if apierrors.IsForbidden(err) {
			return nil
		}
		return err
	}
}
