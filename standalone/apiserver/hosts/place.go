package hosts

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"volplane.dev/volplane/internal/decide/identity"
	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/volume"
)

// byHandle is the name of the index of volumes by their drivers and handles.
const byHandle = "volplane.dev/handle"

// handles knows which handles of a driver have a PersistentVolume.
type handles struct {
	cache.SharedIndexInformer
	err error
}

func handlesOf(inf informers.SharedInformerFactory) handles {
	h := handles{SharedIndexInformer: inf.Core().V1().PersistentVolumes().Informer()}
	h.err = h.AddIndexers(cache.Indexers{byHandle: func(o any) ([]string, error) {
		if v, ok := o.(*corev1.PersistentVolume); ok && v.Spec.CSI != nil {
			return []string{volume.Key(v.Spec.CSI.Driver, v.Spec.CSI.VolumeHandle)}, nil
		}
		return nil, nil
	}})
	return h
}

// free returns an error if another object has the handle of a new volume: its claim would get the data of that one. It
// is a conflict and not a refusal, because a refused volume is deleted at the driver.
func (h handles) free(v *corev1.PersistentVolume) error {
	if !h.HasSynced() {
		return unread("volumes", errStarting)
	}
	all, err := h.GetIndexer().ByIndex(byHandle, volume.Key(v.Spec.CSI.Driver, v.Spec.CSI.VolumeHandle))
	if err != nil {
		return unread("volumes", err)
	}
	for _, o := range all {
		if other, ok := o.(*corev1.PersistentVolume); ok && other.Name != v.Name {
			return apierrors.NewConflict(corev1.Resource("persistentvolumes"), v.Name,
				fmt.Errorf("it has the handle of volume %s", other.Name)) //nolint:err113 // for people
		}
	}
	return nil
}

// accessible returns an error unless a volume of a node-local driver is accessible only from the node's segment:
// elsewhere, its handle may name other users' data.
func (w *write) accessible(v *corev1.PersistentVolume, scope volume.Scope) error {
	if scope.Has("") {
		return nil
	}
	here, err := w.segment(v.Spec.CSI.Driver)
	if err != nil {
		return err
	}
	if want := topology.Affinity([]topology.Segment{here}); !equality.Semantic.DeepEqual(want, v.Spec.NodeAffinity) {
		return fmt.Errorf("volume %s is not accessible from %s alone, where the node is", v.Name, topology.Describe(here))
	}
	return nil
}

// segment returns where the node is for a driver: its labels of the keys with which any node has registered the
// driver. A node alone does not say with which.
func (w *write) segment(driver string) (topology.Segment, error) {
	keys, err := w.keys()
	if err != nil {
		return nil, err
	}
	n, err := w.client.CoreV1().Nodes().Get(w.ctx, w.node, metav1.GetOptions{})
	if err != nil {
		return nil, unread("node "+w.node, err)
	}
	return segmentOf(n.Labels, keys[driver]), nil
}

// keys returns the topology keys of all drivers.
func (w *write) keys() (map[string][]string, error) {
	nodes, err := w.client.StorageV1().CSINodes().List(w.ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, unread("CSINodes", err)
	}
	all := map[string][]string{}
	for _, n := range nodes.Items {
		for _, d := range n.Spec.Drivers {
			all[d.Name] = append(all[d.Name], d.TopologyKeys...)
		}
	}
	return all, nil
}

// segmentOf returns the labels with these keys.
func segmentOf(all labels.Set, keys []string) topology.Segment {
	out := topology.Segment{}
	for _, k := range keys {
		out[k] = all[k]
	}
	return out
}

// place checks the labels that a node writes to itself. When it joins, it may place its node-local drivers freely,
// because nodes may share a pool. Later it may not move to another node's segment, nor leave its own, after which it
// could join again.
func (w *write) place() error {
	if w.GetResource().GroupResource() != corev1.Resource("nodes") || w.GetOperation() == admission.Delete {
		return nil
	}
	if err := w.plane(); err != nil {
		return err
	}
	before, after := metaOf(w.GetOldObject()).GetLabels(), metaOf(w.GetObject()).GetLabels()
	if maps.Equal(before, after) {
		return nil
	}
	all, err := w.keys()
	if err != nil {
		return err
	}
	for driver, keys := range all {
		was, there := segmentOf(before, keys), segmentOf(after, keys)
		if maps.Equal(was, segmentOf(nil, keys)) || maps.Equal(was, there) {
			continue
		}
		if err := w.moves(driver, was, there); err != nil {
			return err
		}
	}
	return nil
}

// plane returns an error if a node claims that it runs a control plane, but does not.
func (w *write) plane() error {
	before := metaOf(w.GetOldObject()).GetAnnotations()[volume.AnnControlPlane]
	after := metaOf(w.GetObject()).GetAnnotations()[volume.AnnControlPlane]
	if after == "" || after == before || slices.Contains(w.GetUserInfo().GetGroups(), identity.PlanesGroup) {
		return nil
	}
	return fmt.Errorf("node %s may not say that a control plane runs there (annotation %s)", w.node,
		volume.AnnControlPlane)
}

// moves returns an error if a driver is node-local, and the node leaves its segment for no segment or for that of
// another node.
func (w *write) moves(driver string, was, there topology.Segment) error {
	scope, err := w.scopeOf(driver)
	if err != nil || scope.Has("") {
		if apierrors.IsServiceUnavailable(err) {
			return err
		}
		return nil
	}
	for k, v := range there {
		if v == "" && was[k] != "" {
			return fmt.Errorf("node %s may not take back that it is in %s for driver %s: remove the label %s as administrator",
				w.node, topology.Describe(was), driver, k)
		}
	}
	nodes, err := w.client.CoreV1().Nodes().List(w.ctx, metav1.ListOptions{
		LabelSelector: labels.SelectorFromSet(labels.Set(there)).String(),
	})
	if err != nil {
		return unread("nodes", err)
	}
	for _, other := range nodes.Items {
		if other.Name != w.node {
			return fmt.Errorf("node %s may not move to %s, where node %s has volumes of driver %s: remove its label as "+
				"administrator if they share them", w.node, topology.Describe(there), other.Name, driver)
		}
	}
	return nil
}

// metaOf returns the metadata of an object; empty metadata if there is no object.
func metaOf(o runtime.Object) metav1.Object {
	m, err := meta.Accessor(o)
	if err != nil {
		return &metav1.ObjectMeta{}
	}
	return m
}
