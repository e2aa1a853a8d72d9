package hosts

import (
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"

	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/volume"
)

// claim checks a write of a claim: the finalizer of a claim that is being cloned, or the request to select another
// node. The status shows how its volume grows.
func (w *write) claim() error {
	if w.GetOperation() != admission.Update || w.GetSubresource() != "" && w.GetSubresource() != "status" {
		return errOther
	}
	before, after, err := pair(w, &corev1.PersistentVolumeClaim{}, &corev1.PersistentVolumeClaim{})
	if err != nil {
		return err
	}
	if err := w.servesClaim(before); err != nil {
		return err
	}
	if w.GetSubresource() == "status" {
		return nil
	}
	annotations := []string{}
	if volume.SelectedNode(after.Annotations) == "" {
		annotations = append(annotations, volume.AnnSelectedNode, volume.AnnAlphaSelectedNode)
		refused := provision.Refused(before).Annotations[volume.AnnRefusedOn]
		if after.Annotations[volume.AnnRefusedOn] == refused && volume.SelectedNode(before.Annotations) != "" {
			annotations = append(annotations, volume.AnnRefusedOn)
		}
	}
	bare(&before.ObjectMeta, []string{volume.FinalizerCloning}, annotations)
	bare(&after.ObjectMeta, []string{volume.FinalizerCloning}, annotations)
	if !equality.Semantic.DeepEqual(before, after) {
		return errOther
	}
	return nil
}

// servesClaim returns an error unless the node's controllers serve the volume of a claim, or must create it.
func (w *write) servesClaim(c *corev1.PersistentVolumeClaim) error {
	if c.Spec.VolumeName != "" {
		v, err := w.client.CoreV1().PersistentVolumes().Get(w.ctx, c.Spec.VolumeName, metav1.GetOptions{})
		if err != nil {
			return unread("volume "+c.Spec.VolumeName, err)
		}
		_, err = w.serves(v)
		return err
	}
	scope, err := w.scopeOf(provision.ProvisionerOf(c))
	if on := volume.SelectedNode(c.Annotations); err == nil && !scope.Has(on) {
		err = fmt.Errorf("claim %s/%s is for node %q", c.Namespace, c.Name, on)
	}
	return err
}

// attachment checks a write of a VolumeAttachment: the attacher's report about it.
func (w *write) attachment() error {
	if w.GetOperation() != admission.Update {
		return errOther
	}
	before, after, err := pair(w, &storagev1.VolumeAttachment{}, &storagev1.VolumeAttachment{})
	if err != nil {
		return err
	}
	if err := w.attachedHere(before); err != nil {
		return err
	}
	finalizers := []string{volume.AttacherFinalizer(before.Spec.Attacher)}
	annotations := []string{volume.AnnNodeID, volume.AnnDetach}
	bare(&before.ObjectMeta, finalizers, annotations)
	bare(&after.ObjectMeta, finalizers, annotations)
	after.Status = before.Status
	if !equality.Semantic.DeepEqual(before, after) {
		return errOther
	}
	return nil
}

func (w *write) attachedHere(a *storagev1.VolumeAttachment) error {
	scope, err := w.scopeOf(a.Spec.Attacher)
	if err != nil || scope.Has("") {
		return err
	}
	name := a.Spec.Source.PersistentVolumeName
	if name == nil {
		return fmt.Errorf("attachment %s does not name a volume", a.Name)
	}
	v, err := w.client.CoreV1().PersistentVolumes().Get(w.ctx, *name, metav1.GetOptions{})
	switch {
	case err == nil:
		_, err = w.serves(v)
		return err
	case !apierrors.IsNotFound(err):
		return unread("volume "+*name, err)
	case a.Spec.NodeName != w.node:
		return fmt.Errorf("attachment %s, whose volume does not exist, is for node %s", a.Name, a.Spec.NodeName)
	}
	return nil
}

// capacity checks a write of a CSIStorageCapacity: it is about a driver and a segment of the node, and was before, and
// its class is the driver's.
func (w *write) capacity() error {
	for _, o := range []runtime.Object{w.GetOldObject(), w.GetObject()} {
		if o == nil {
			continue
		}
		c, err := as(o, &storagev1.CSIStorageCapacity{})
		if err == nil {
			err = w.aboutHere(c)
		}
		if err == nil && o == w.GetObject() {
			err = w.ofClass(c)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// ofClass returns an error unless the class of a CSIStorageCapacity is of its driver: schedulers use the class and no
// label.
func (w *write) ofClass(c *storagev1.CSIStorageCapacity) error {
	class, err := w.client.StorageV1().StorageClasses().Get(w.ctx, c.StorageClassName, metav1.GetOptions{})
	if err != nil {
		return unread("class "+c.StorageClassName, err)
	}
	if driver := c.Labels[volume.LabelDriver]; class.Provisioner != driver {
		return fmt.Errorf("CSIStorageCapacity %s is for driver %s, and its class %s is for driver %s", c.Name, driver,
			class.Name,
			class.Provisioner)
	}
	return nil
}

func (w *write) aboutHere(c *storagev1.CSIStorageCapacity) error {
	scope, err := w.scopeOf(c.Labels[volume.LabelDriver])
	if err != nil || scope.Has("") {
		return err
	}
	t := c.NodeTopology
	if t == nil || len(t.MatchExpressions) > 0 || len(t.MatchLabels) == 0 {
		return fmt.Errorf("CSIStorageCapacity %s is not about labels of the node", c.Name)
	}
	here, err := w.segment(c.Labels[volume.LabelDriver])
	if err != nil {
		return err
	}
	if !maps.Equal(here, t.MatchLabels) {
		return fmt.Errorf("CSIStorageCapacity %s is about %s, and the node is in %s", c.Name,
			topology.Describe(t.MatchLabels), topology.Describe(here))
	}
	return nil
}
