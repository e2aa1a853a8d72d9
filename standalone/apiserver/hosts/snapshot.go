package hosts

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apiserver/pkg/admission"

	"volplane.dev/volplane/internal/volume"
)

// content checks a write of a VolumeSnapshotContent or VolumeGroupSnapshotContent: the driver's report about its
// snapshots, once including their topology, and the intent to take them, which has a finalizer and an annotation. Only
// the controllers of snapshots and groups may set the node of a content.
func (w *write) content(finalizer, creating string) error {
	before, after, ok := w.customUpdate()
	if !ok {
		return errOther
	}
	if err := w.servesContent(before); err != nil {
		return err
	}
	bare := func(o *unstructured.Unstructured) map[string]any { return bareContent(o, finalizer, creating) }
	if _, placed, _ := unstructured.NestedFieldNoCopy(before.Object, "spec", "nodeAffinity"); !placed {
		after = after.DeepCopy()
		unstructured.RemoveNestedField(after.Object, "spec", "nodeAffinity")
	}
	if !equality.Semantic.DeepEqual(bare(before), bare(after)) {
		return errOther
	}
	return nil
}

// customUpdate returns both objects of an update of a custom resource; ok says that the request is one.
func (w *write) customUpdate() (before, after *unstructured.Unstructured, ok bool) {
	before, ok = w.GetOldObject().(*unstructured.Unstructured)
	after, ok2 := w.GetObject().(*unstructured.Unstructured)
	return before, after, ok && ok2 && w.GetOperation() == admission.Update
}

// servesContent returns an error unless the node's controllers serve the snapshot of a content.
func (w *write) servesContent(c *unstructured.Unstructured) error {
	driver, _, err := unstructured.NestedString(c.Object, "spec", "driver")
	if err != nil {
		return fmt.Errorf("content %s: %w", c.GetName(), err)
	}
	scope, err := w.scopeOf(driver)
	if on := c.GetAnnotations()[volume.AnnProvisionedOn]; err == nil && !scope.Has(on) {
		err = fmt.Errorf("content %s is not of a volume of the node (annotation %s=%q)", c.GetName(),
			volume.AnnProvisionedOn, on)
	}
	return err
}

// snapshot checks a write of a VolumeSnapshot: the finalizer that keeps it while a volume is created from it.
func (w *write) snapshot() error {
	before, after, ok := w.customUpdate()
	if !ok || w.GetSubresource() != "" {
		return errOther
	}
	content, err := w.contentOf(before)
	if err == nil {
		err = w.servesContent(content)
	}
	if err != nil {
		return err
	}
	bare := func(o *unstructured.Unstructured) any { return bareObject(o, volume.FinalizerRestoring).Object }
	if !equality.Semantic.DeepEqual(bare(before), bare(after)) {
		return errOther
	}
	return nil
}

// contentOf returns the content of a snapshot.
func (w *write) contentOf(s *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	name, _, err := unstructured.NestedString(s.Object, "status", "boundVolumeSnapshotContentName")
	if err != nil || name == "" {
		return nil, fmt.Errorf("snapshot %s/%s has no content", s.GetNamespace(), s.GetName())
	}
	content := &unstructured.Unstructured{}
	body, err := w.client.Discovery().RESTClient().Get().
		AbsPath("apis", volume.GroupSnapshot, "v1", volume.ResourceSnapshotContents, name).Do(w.ctx).Raw()
	if err == nil {
		err = content.UnmarshalJSON(body)
	}
	if err != nil {
		return nil, unread("content "+name, err)
	}
	// A user who may write the status of a snapshot could name any content there.
	uid, _, err := unstructured.NestedString(content.Object, "spec", "volumeSnapshotRef", "uid")
	if err != nil || uid != string(s.GetUID()) {
		return nil, fmt.Errorf("content %s is not that of snapshot %s/%s", name, s.GetNamespace(), s.GetName())
	}
	return content, nil
}

// bareObject returns a copy of an object without a finalizer, and without the server's own fields.
func bareObject(o *unstructured.Unstructured, finalizer string) *unstructured.Unstructured {
	o = o.DeepCopy()
	o.SetManagedFields(nil)
	o.SetResourceVersion("")
	o.SetGeneration(0)
	if o.SetFinalizers(volume.Without(o.GetFinalizers(), finalizer)); len(o.GetFinalizers()) == 0 {
		o.SetFinalizers(nil)
	}
	return o
}

// bareContent returns a content without the fields that a snapshotter may change, and without the server's own fields.
func bareContent(o *unstructured.Unstructured, finalizer, creating string) map[string]any {
	o = bareObject(o, finalizer)
	annotations := o.GetAnnotations()
	delete(annotations, creating)
	delete(annotations, volume.AnnSnapshotParameters)
	delete(annotations, volume.AnnSnapshotTopologies)
	if o.SetAnnotations(annotations); len(annotations) == 0 {
		o.SetAnnotations(nil)
	}
	unstructured.RemoveNestedField(o.Object, "status")
	return o.Object
}
