package gather

import (
	"context"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/pager"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/kube"
)

const (
	// pageSize is how many objects one request returns: the server and this program hold one
	// page and the next.
	pageSize = 2000
	// maxRequests bounds how many requests are under way at the same time.
	maxRequests = 16
	// maxGets is how many objects of a kind are read one by one; of more, all are
	// listed.
	maxGets = 64
)

// Every lists objects page by page. A list that takes so long that the server has
// forgotten its beginning is read once more as a whole.
func Every[T, L runtime.Object](ctx context.Context, what string, o metav1.ListOptions,
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

// together runs all reads concurrently, and returns the first error.
func (r *Facts) together(ctx context.Context, reads ...read) error {
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

// Add puts objects beside those of the same kind that were read before.
func Add[T kube.Object](r *Facts, to *[]T, objects ...T) {
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

// one returns a read of one object. It is not an error if the object does not exist.
func one[T kube.Object](
	r *Facts, to *[]T, name string, get func(context.Context, string, metav1.GetOptions) (T, error),
) read {
	return func(ctx context.Context) error {
		o, err := get(ctx, name, metav1.GetOptions{})
		if err == nil {
			Add(r, to, o)
		}
		return kube.Unless(apierrors.IsNotFound(err), err)
	}
}

// many returns a read of the objects that a field selector matches; "" matches all.
func many[T kube.Object, L runtime.Object](
	r *Facts, to *[]T, what, selector string, list func(context.Context, metav1.ListOptions) (L, error),
) read {
	return func(ctx context.Context) error {
		all, err := Every[T](ctx, what, metav1.ListOptions{FieldSelector: selector}, list)
		Add(r, to, all...)
		return err
	}
}

// unlessForbidden returns a read that reads nothing if the user may not read the objects.
func unlessForbidden(next read) read {
	return func(ctx context.Context) error {
		err := next(ctx)
		return kube.Unless(apierrors.IsForbidden(err), err)
	}
}

func (r *Facts) claim(ns, name string) read {
	return one(r, &r.Claims, name, r.client.CoreV1().PersistentVolumeClaims(ns).Get)
}

func (r *Facts) claims(ns string) read {
	return many(r, &r.Claims, "claims", "", r.client.CoreV1().PersistentVolumeClaims(ns).List)
}

func (r *Facts) volume(name string) read {
	return one(r, &r.Volumes, name, r.client.CoreV1().PersistentVolumes().Get)
}

func (r *Facts) volumes(ctx context.Context) error {
	return many(r, &r.Volumes, "volumes", "", r.client.CoreV1().PersistentVolumes().List)(ctx)
}

func (r *Facts) attachment(name string) read {
	return one(r, &r.Attachments, name, r.client.StorageV1().VolumeAttachments().Get)
}

// attachments reads all, for the API finds none by its volume or its node.
func (r *Facts) attachments(ctx context.Context) error {
	return many(r, &r.Attachments, "attachments", "", r.client.StorageV1().VolumeAttachments().List)(ctx)
}

func (r *Facts) pod(ns, name string) read {
	return one(r, &r.Pods, name, r.client.CoreV1().Pods(ns).Get)
}

// pods reads the Pods of a namespace, for the API finds none by its claims.
func (r *Facts) pods(ns string) read {
	return many(r, &r.Pods, "pods", "", r.client.CoreV1().Pods(ns).List)
}

// podsOn reads the Pods of a node, if the user may read those of all namespaces.
func (r *Facts) podsOn(node string) read {
	list := r.client.CoreV1().Pods(metav1.NamespaceAll).List
	return unlessForbidden(many(r, &r.Pods, "pods", "spec.nodeName="+node, list))
}

func (r *Facts) nodes(ctx context.Context) error {
	return many(r, &r.Nodes, "nodes", "", r.client.CoreV1().Nodes().List)(ctx)
}

func (r *Facts) csiNodes(ctx context.Context) error {
	return many(r, &r.CSINodes, "CSINodes", "", r.client.StorageV1().CSINodes().List)(ctx)
}

// cluster reads what has no namespace and is not many.
func (r *Facts) cluster(ctx context.Context) error {
	storage := r.client.StorageV1()
	return r.together(ctx, r.leases, r.nodes, r.csiNodes,
		many(r, &r.Classes, "classes", "", storage.StorageClasses().List),
		many(r, &r.Drivers, "drivers", "", storage.CSIDrivers().List))
}

func (r *Facts) namespaceObject(name string) read {
	return one(r, &r.Namespaces, name, r.client.CoreV1().Namespaces().Get)
}

// namespaces reads all Namespaces, if the user may read them, or one.
func (r *Facts) namespaces(name string) read {
	if name != metav1.NamespaceAll {
		return r.namespaceObject(name)
	}
	return unlessForbidden(many(r, &r.Namespaces, "namespaces", "", r.client.CoreV1().Namespaces().List))
}
