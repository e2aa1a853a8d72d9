package hosts

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apiserver/pkg/admission"

	"volplane.dev/volplane/internal/volume"
)

// content checks a write of a VolumeSnapshotContent or VolumeGroupSnapshotContent: what the driver says of its
// snapshots, and the intent to take them, which has a finalizer and an annotation. Nobody but the controllers of
// snapshots and groups says of which node a content is.
func (w *write) content(finalizer, creating string) error {
	before, ok := w.GetOldObject().(*unstructured.Unstructured)
	after, ok2 := w.GetObject().(*unstructured.Unstructured)
	if w.GetOperation() != admission.Update || !ok || !ok2 {
		return errOther
	}
	driver, _, err := unstructured.NestedString(before.Object, "spec", "driver")
	if err != nil {
		return fmt.Errorf("content %s: %w", before.GetName(), err)
	}
	scope, err := w.scopeOf(driver)
	if on := before.GetAnnotations()[volume.AnnProvisionedOn]; err == nil && !scope.Has(on) {
		err = fmt.Errorf("content %s is not of a volume of the node (annotation %s=%q)", before.GetName(),
			volume.AnnProvisionedOn, on)
	}
	if err != nil {
		return err
	}
	bare := func(o *unstructured.Unstructured) map[string]any { return bareContent(o, finalizer, creating) }
	if !equality.Semantic.DeepEqual(bare(before), bare(after)) {
		return errOther
	}
	return nil
}

// bareContent returns a content without what a snapshotter may change, and without the server's own fields.
func bareContent(o *unstructured.Unstructured, finalizer, creating string) map[string]any {
	o = o.DeepCopy()
	o.SetManagedFields(nil)
	o.SetResourceVersion("")
	o.SetGeneration(0)
	o.SetFinalizers(volume.Without(o.GetFinalizers(), finalizer))
	annotations := o.GetAnnotations()
	delete(annotations, creating)
	delete(annotations, volume.AnnSnapshotParameters)
	if o.SetAnnotations(annotations); len(annotations) == 0 {
		o.SetAnnotations(nil)
	}
	unstructured.RemoveNestedField(o.Object, "status")
	return o.Object
}
