package servers

import (
	"context"
	"fmt"
	"slices"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/testkit"
)

const (
	// emptyLimit bounds the time in which the objects of a test must disappear.
	emptyLimit = time.Minute
	// maxDeletions is the largest number of objects to delete. Starting another API server is faster than deleting more.
	maxDeletions = 300
)

// object names an object of the API.
type object struct {
	schema.GroupVersionResource
	types.NamespacedName
}

// contents knows which objects a new API server has.
type contents struct {
	client    metadata.Interface
	discovery *discovery.DiscoveryClient
	kinds     []schema.GroupVersionResource
	// initial has the version of each object that a new API server has.
	initial map[object]string
}

func contentsOf(ctx context.Context, config *rest.Config) (contents, error) {
	c := contents{initial: map[object]string{}}
	var err error
	if c.client, err = metadata.NewForConfig(config); err != nil {
		return c, err
	}
	if c.discovery, err = discovery.NewDiscoveryClientForConfig(config); err != nil {
		return c, err
	}
	if err := c.discover(); err != nil {
		return c, err
	}
	return c, c.each(ctx, "", func(o object, m metav1.ObjectMeta) error {
		c.initial[o] = version(o, m)
		return nil
	})
}

// discover sets the kinds. Custom resources are served only some time after a new API server is ready.
func (c *contents) discover() error {
	lists, err := c.discovery.ServerPreferredResources()
	if err != nil {
		return err
	}
	c.kinds = nil
	for _, l := range lists {
		group, err := schema.ParseGroupVersion(l.GroupVersion)
		if err != nil {
			return err
		}
		for _, r := range l.APIResources {
			// Events are served by two groups.
			if slices.Contains(r.Verbs, "delete") && slices.Contains(r.Verbs, "list") && group.Group != "events.k8s.io" {
				c.kinds = append(c.kinds, group.WithResource(r.Name))
			}
		}
	}
	return nil
}

// version returns a text that changes when an object is replaced, and for roles and their bindings, which
// only tests change, when it is changed.
func version(o object, m metav1.ObjectMeta) string {
	if o.Group == rbacv1.GroupName {
		return string(m.UID) + " " + m.ResourceVersion
	}
	return string(m.UID)
}

// each calls f for every object. An empty minimum means the newest objects, and "0" the objects in the API
// server's cache, which the next test will read.
func (c contents) each(ctx context.Context, minimum string, f func(object, metav1.ObjectMeta) error) error {
	for _, kind := range c.kinds {
		all, err := c.client.Resource(kind).List(ctx, metav1.ListOptions{ResourceVersion: minimum})
		if err != nil {
			return fmt.Errorf("list %s: %w", kind.Resource, err)
		}
		for _, o := range all.Items {
			if err := f(object{kind, types.NamespacedName{Namespace: o.Namespace, Name: o.Name}}, o.ObjectMeta); err != nil {
				return err
			}
		}
	}
	return nil
}

// empty deletes all objects that a new API server does not have. It fails if one of them remains, or if one
// that a new API server has was deleted or changed.
func (c *contents) empty(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, emptyLimit)
	defer cancel()
	if err := c.discover(); err != nil {
		return err
	}
	if err := c.deleteAll(ctx); err != nil {
		return err
	}
	return testkit.Until(ctx, func() string {
		count := 0
		err := c.each(ctx, "0", func(o object, m metav1.ObjectMeta) error {
			if count++; c.initial[o] != version(o, m) {
				return fmt.Errorf("%s %s exists", o.Resource, o.NamespacedName)
			}
			return nil
		})
		if err == nil && count == len(c.initial) {
			return ""
		}
		// The last event of a controller may have come after the first deletion.
		return fmt.Sprintf("%d objects, of which %d were there at the start: %v; %v", count, len(c.initial), err,
			c.deleteAll(ctx))
	})
}

// deleteAll deletes all objects that a new API server does not have.
func (c contents) deleteAll(ctx context.Context) error {
	kept, added := 0, map[object]metav1.ObjectMeta{}
	err := c.each(ctx, "", func(o object, m metav1.ObjectMeta) error {
		if was, initial := c.initial[o]; !initial {
			added[o] = m
		} else if kept++; was != version(o, m) {
			return fmt.Errorf("the test changed %s %s", o.Resource, o.NamespacedName)
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case kept < len(c.initial):
		return fmt.Errorf("the test deleted %d objects of the API server itself", len(c.initial)-kept)
	case len(added) > maxDeletions:
		return fmt.Errorf("there are %d objects to delete, which takes longer than to start another API server", len(added))
	}
	for o, m := range added {
		if err := c.delete(ctx, o, m); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete %s %s: %w", o.Resource, o.NamespacedName, err)
		}
	}
	return nil
}

// delete deletes an object immediately, whatever finalizers it has.
func (c contents) delete(ctx context.Context, o object, m metav1.ObjectMeta) error {
	client := c.client.Resource(o.GroupVersionResource).Namespace(o.Namespace)
	if len(m.Finalizers) > 0 {
		_, err := client.Patch(ctx, o.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
			metav1.PatchOptions{})
		if err != nil {
			return err
		}
	}
	return client.Delete(ctx, o.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
}
