package differential

import (
	"context"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/test/internal/upstream"
)

// EndClaims removes all claims of sequences, with their volumes and events, unconditionally, and what their drivers
// keep.
func EndClaims(ctx context.Context, s Side) error {
	core := corev1.SchemeGroupVersion
	if err := s.DeleteKinds(ctx, core.WithResource("persistentvolumeclaims"), core.WithResource("persistentvolumes"),
		core.WithResource("events"), storagev1.SchemeGroupVersion.WithResource("volumeattributesclasses")); err != nil {
		return err
	}
	for _, v := range s.Storage.Driver.Volumes() {
		if s.Memory.space.MatchString(v.ID) {
			if err := s.DeleteAtDriver(ctx, "", v.ID); err != nil {
				return err
			}
		}
	}
	return nil
}

// DeleteKinds deletes the objects of sequences until all are gone.
func (s Side) DeleteKinds(ctx context.Context, kinds ...schema.GroupVersionResource) error {
	ours := func(name string) bool { return s.Memory.space.MatchString(name) }
	for _, r := range kinds {
		if err := upstream.Poll(ctx, func() (bool, error) { return s.deleteAll(ctx, r, ours) }); err != nil {
			return err
		}
	}
	return nil
}

// deleteAll deletes the objects of sequences, with their finalizers, and returns whether there were none.
func (s Side) deleteAll(
	ctx context.Context, r schema.GroupVersionResource, ours func(name string) bool,
) (none bool, err error) {
	all, err := s.Dynamic.Resource(r).List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, err
	}
	none = true
	for i := range all.Items {
		o := &all.Items[i]
		if !ours(o.GetNamespace()) && !ours(o.GetName()) && !strings.HasPrefix(o.GetName(), "snapcontent-") {
			continue
		}
		none = false
		of := s.Dynamic.Resource(r).Namespace(o.GetNamespace())
		if err := of.Delete(ctx, o.GetName(), metav1.DeleteOptions{}); err != nil && !upstream.Refused(err) &&
			!upstream.Conflict(err) {
			return false, err
		}
		if _, err := of.Patch(ctx, o.GetName(), types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
			metav1.PatchOptions{}); err != nil && !upstream.Refused(err) && !upstream.Conflict(err) {
			return false, err
		}
	}
	return none, nil
}
