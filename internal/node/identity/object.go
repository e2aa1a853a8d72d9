package identity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/volume"
)

// podCapacity is the Node's capacity of Pods; a Pod costs no more than its mounts here.
const podCapacity = 1000

// noteTimeout bounds the writing of a note.
const noteTimeout = 10 * time.Second

// object writes the Node and its CSINode. It is the registrar of the node's drivers.
type object struct {
	client kubernetes.Interface
	name   string
	labels map[string]string
	// controlPlane is the agent's option.
	controlPlane string
	log          *slog.Logger

	// owner is the Node as last written, which owns its Lease; nil before the first write.
	owner atomic.Pointer[metav1.OwnerReference]

	// mu serialises the changes of drivers.
	mu sync.Mutex
	// well are the drivers whose storage was healthy at the last poll, for which the CSINode has no entry.
	well map[string]bool

	// notes guards refused, and serialises its writes.
	notes sync.Mutex
	// refused says why drivers were not registered, by name.
	refused map[string]string
}

var errCollision = errors.New("detected topology value collision")

// ensure creates the Node if it is missing, and writes the agent's fields. It may be repeated.
func (o *object) ensure(ctx context.Context) (*corev1.Node, error) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: o.name, Labels: o.wantLabels(), Annotations: map[string]string{volume.AnnControllerManagedAttach: "true"},
	}}
	annotations := map[string]any{volume.AnnControllerManagedAttach: "true", volume.AnnControlPlane: nil}
	if at := o.controlPlane; at != "" {
		node.Annotations[volume.AnnControlPlane], annotations[volume.AnnControlPlane] = at, at
	}
	o.notes.Lock()
	defer o.notes.Unlock()
	annotations[volume.AnnRefused] = o.refusals()
	if text, some := annotations[volume.AnnRefused].(string); some {
		node.Annotations[volume.AnnRefused] = text
	}
	_, err := o.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		err = o.patch(ctx, map[string]any{"metadata": map[string]any{"labels": node.Labels, "annotations": annotations}})
	}
	if err != nil {
		return nil, fmt.Errorf("create node %s: %w", o.name, err)
	}
	body, err := json.Marshal(map[string]any{"status": o.status()})
	if err != nil {
		return nil, fmt.Errorf("write status of node %s: %w", o.name, err)
	}
	node, err = o.client.CoreV1().Nodes().Patch(ctx, o.name, types.StrategicMergePatchType, body,
		metav1.PatchOptions{}, "status")
	if err != nil {
		return nil, fmt.Errorf("write status of node %s: %w", o.name, err)
	}
	o.owner.Store(ptr.To(ownerOf(node)))
	if err := o.csiNode(ctx, node, nil); err != nil {
		return nil, err
	}
	return node, nil
}

func (o *object) wantLabels() map[string]string {
	labels := map[string]string{
		corev1.LabelHostname: o.name, corev1.LabelOSStable: runtime.GOOS, corev1.LabelArchStable: runtime.GOARCH,
	}
	maps.Copy(labels, o.labels)
	return labels
}

// addresses returns the name of the host, and the address at which others reach it, as far as its routes show one.
func addresses(host string) []corev1.NodeAddress {
	out := []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: host}}
	if ip, err := utilnet.ChooseHostInterface(); err == nil {
		out = append(out, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip.String()})
	}
	return out
}

func (o *object) status() map[string]any {
	now := metav1.Now()
	capacity := corev1.ResourceList{corev1.ResourcePods: *resource.NewQuantity(podCapacity, resource.DecimalSI)}
	return map[string]any{
		"capacity": capacity, "allocatable": capacity, "addresses": addresses(o.name),
		"conditions": []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "NodeAgentReady",
			Message:           "the node agent mounts volumes",
			LastHeartbeatTime: now, LastTransitionTime: now,
		}},
		"nodeInfo": map[string]any{
			"operatingSystem": runtime.GOOS, "architecture": runtime.GOARCH, "kubeletVersion": "volplane",
		},
	}
}

// maxRefused bounds the text about a driver that was not registered.
const maxRefused = 900

// noteRefused writes to the Node why a driver was not registered; nil removes that.
func (o *object) noteRefused(ctx context.Context, driver string, refused error) error {
	text := ""
	if refused != nil {
		text = fmt.Sprintf("it was not registered: %.*s", maxRefused, refused)
	}
	o.notes.Lock()
	defer o.notes.Unlock()
	if o.refused[driver] == text {
		return nil
	}
	if o.refused == nil {
		o.refused = map[string]string{}
	}
	if o.refused[driver] = text; text == "" {
		delete(o.refused, driver)
	}
	ctx, cancel := context.WithTimeout(ctx, noteTimeout)
	defer cancel()
	return o.patch(ctx, map[string]any{"metadata": map[string]any{
		"annotations": map[string]any{volume.AnnRefused: o.refusals()},
	}})
}

// refusals returns the drivers that were not registered, for an annotation; nil if there are none. notes is held.
func (o *object) refusals() any {
	if len(o.refused) == 0 {
		return nil
	}
	// Marshal cannot fail for texts.
	all, _ := json.Marshal(o.refused)
	return string(all)
}

func (o *object) patch(ctx context.Context, change map[string]any) error {
	body, err := json.Marshal(change)
	if err != nil {
		return err
	}
	_, err = o.client.CoreV1().Nodes().Patch(ctx, o.name, types.StrategicMergePatchType, body, metav1.PatchOptions{})
	return err
}

// Register writes a driver's topology as labels of the Node, its node id into the Node's annotation, and its entry of
// the CSINode (S1-006, S1-007). The entry comes last: a reader that sees it finds the labels.
func (o *object) Register(ctx context.Context, name string, info csi.NodeInfo) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	var node *corev1.Node
	err := retry.RetryOnConflict(retry.DefaultRetry, func() (err error) {
		node, err = o.client.CoreV1().Nodes().Get(ctx, o.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		return o.label(ctx, node, name, info)
	})
	if err != nil {
		return fmt.Errorf("write driver %s to node %s: %w", name, o.name, err)
	}
	entry := storagev1.CSINodeDriver{
		Name: name, NodeID: info.ID, TopologyKeys: slices.Sorted(maps.Keys(info.Topology)), Allocatable: allocatable(info),
	}
	// The API allows no change of an entry other than of its limit, so a different entry is removed first.
	err = o.csiNode(ctx, node, func(drivers []storagev1.CSINodeDriver) []storagev1.CSINodeDriver {
		return slices.DeleteFunc(slices.Clone(drivers), func(d storagev1.CSINodeDriver) bool {
			return d.Name == name && (d.NodeID != entry.NodeID || !slices.Equal(d.TopologyKeys, entry.TopologyKeys))
		})
	})
	if err != nil {
		return err
	}
	return o.csiNode(ctx, node, func(drivers []storagev1.CSINodeDriver) []storagev1.CSINodeDriver {
		return append(without(drivers, name), entry)
	})
}

// maxSegments bounds the labels that a driver adds to the Node, which stay after it unregisters.
const maxSegments = 32

// reserved is the prefix of the labels that volplane itself interprets.
const reserved = "volplane.dev/"

// label writes topology and node id. It does not overwrite a label that has another value (S1-012), and
// refuses a segment that cannot be a label before it writes any.
func (o *object) label(ctx context.Context, node *corev1.Node, driver string, info csi.NodeInfo) error {
	if n := len(info.Topology); n > maxSegments {
		return fmt.Errorf("the driver reported %d topology segments, and %d can be labels of the node", n, maxSegments)
	}
	for k, v := range info.Topology {
		if err := fits(node, k, v); err != nil {
			return err
		}
	}
	ids, err := nodeIDs(node)
	if err != nil {
		o.log.Warn("annotation of node ids cannot be read and is replaced", "err", err)
	}
	ids[driver] = info.ID
	return o.writeIDs(ctx, node, ids, info.Topology)
}

// fits says why a topology segment cannot be a label of the node.
func fits(node *corev1.Node, k, v string) error {
	if faults := append(validation.IsQualifiedName(k), validation.IsValidLabelValue(v)...); len(faults) > 0 {
		return fmt.Errorf("topology segment %.80q:%.80q cannot be a label of the node: %s", k, v, strings.Join(faults, "; "))
	}
	if strings.HasPrefix(k, reserved) {
		return fmt.Errorf("topology segment %q cannot be a label of the node: the prefix %s is volplane's own; "+
			"let the driver use one that is named like itself", k, reserved)
	}
	if now, ok := node.Labels[k]; ok && now != v {
		return fmt.Errorf("%w: driver reported %q:%q but existing label is %q:%q; if no volume is used by the old value any "+
			"more, remove it: kubectl label node %s %s-", errCollision, k, v, k, now, node.Name, k)
	}
	return nil
}

func (o *object) writeIDs(ctx context.Context, node *corev1.Node, ids, labels map[string]string) error {
	var value any
	if len(ids) > 0 {
		text, err := json.Marshal(ids)
		if err != nil {
			return err
		}
		value = string(text)
	}
	metadata := map[string]any{
		"resourceVersion": node.ResourceVersion, "annotations": map[string]any{volume.AnnLegacyNodeID: value},
	}
	if len(labels) > 0 {
		// A null would delete all labels of the Node.
		metadata["labels"] = labels
	}
	return o.patch(ctx, map[string]any{"metadata": metadata})
}

func nodeIDs(node *corev1.Node) (map[string]string, error) {
	ids := map[string]string{}
	text, ok := node.Annotations[volume.AnnLegacyNodeID]
	if !ok {
		return ids, nil
	}
	if err := json.Unmarshal([]byte(text), &ids); err != nil {
		return map[string]string{}, err
	}
	return ids, nil
}

// Unregister removes the driver's entry of the CSINode, the reported health of its storage, and its id from the Node's
// annotation; the topology labels stay, as with a kubelet (S1-008, S1-009, S1-011).
func (o *object) Unregister(ctx context.Context, name string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		node, err := o.client.CoreV1().Nodes().Get(ctx, o.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if err := o.csiNode(ctx, node,
			func(d []storagev1.CSINodeDriver) []storagev1.CSINodeDriver { return without(d, name) }); err != nil {
			return err
		}
		// The ids are empty if the annotation cannot be read.
		ids, _ := nodeIDs(node)
		if _, ok := ids[name]; !ok {
			return nil
		}
		delete(ids, name)
		return o.writeIDs(ctx, node, ids, nil)
	})
	if err == nil {
		err = o.forgetStorage(ctx, name)
	}
	if err != nil {
		return fmt.Errorf("take driver %s from node %s: %w", name, o.name, err)
	}
	return nil
}

func without(drivers []storagev1.CSINodeDriver, name string) []storagev1.CSINodeDriver {
	return slices.DeleteFunc(slices.Clone(drivers), func(d storagev1.CSINodeDriver) bool { return d.Name == name })
}

// csiNode creates the CSINode, owned by the Node (S1-018), and changes its drivers. It replaces a
// CSINode that belongs to an earlier Node of the same name.
func (o *object) csiNode(
	ctx context.Context, node *corev1.Node, change func([]storagev1.CSINodeDriver) []storagev1.CSINodeDriver,
) error {
	all := o.client.StorageV1().CSINodes()
	err := retry.OnError(retry.DefaultRetry, conflicting, func() error {
		now, err := all.Get(ctx, o.name, metav1.GetOptions{})
		if err == nil && !ownedBy(now, node.UID) {
			err = all.Delete(ctx, o.name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(now.UID))})
			if err == nil {
				err = apierrors.NewNotFound(storagev1.Resource("csinodes"), o.name)
			}
		}
		if apierrors.IsNotFound(err) {
			_, err := all.Create(ctx, newCSINode(node, change), metav1.CreateOptions{})
			return err
		}
		if err != nil || change == nil {
			return err
		}
		next := now.DeepCopy()
		if next.Spec.Drivers = change(next.Spec.Drivers); apiequality.Semantic.DeepEqual(next.Spec, now.Spec) {
			return nil
		}
		_, err = all.Update(ctx, next, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("write CSINode %s: %w", o.name, err)
	}
	return nil
}

func newCSINode(
	node *corev1.Node, change func([]storagev1.CSINodeDriver) []storagev1.CSINodeDriver,
) *storagev1.CSINode {
	c := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{
		Name: node.Name, OwnerReferences: []metav1.OwnerReference{ownerOf(node)},
	}}
	if change != nil {
		c.Spec.Drivers = change(nil)
	}
	return c
}

// ownerOf returns the owner reference that makes the garbage collector delete an object after its Node.
func ownerOf(node *corev1.Node) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}
}

func conflicting(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }

func ownedBy(c *storagev1.CSINode, uid types.UID) bool {
	return slices.ContainsFunc(c.OwnerReferences,
		func(r metav1.OwnerReference) bool { return r.Kind == "Node" && r.UID == uid })
}

// setLimit writes the attach limit of a registered driver.
func (o *object) setLimit(ctx context.Context, name string, info csi.NodeInfo) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	node, err := o.client.CoreV1().Nodes().Get(ctx, o.name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("write limit of driver %s: %w", name, err)
	}
	return o.csiNode(ctx, node, func(drivers []storagev1.CSINodeDriver) []storagev1.CSINodeDriver {
		for i := range drivers {
			if drivers[i].Name == name {
				drivers[i].Allocatable = allocatable(info)
			}
		}
		return drivers
	})
}

// allocatable returns a driver's attach limit, nil if it has none.
func allocatable(info csi.NodeInfo) *storagev1.VolumeNodeResources {
	if info.MaxVolumes <= 0 {
		return nil
	}
	return &storagev1.VolumeNodeResources{Count: ptr.To(int32(min(info.MaxVolumes, math.MaxInt32)))}
}

// drivers returns the names of the drivers in the Node's objects.
func (o *object) drivers(ctx context.Context) ([]string, error) {
	c, err := o.client.StorageV1().CSINodes().Get(ctx, o.name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read CSINode %s: %w", o.name, err)
	}
	node, err := o.client.CoreV1().Nodes().Get(ctx, o.name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read node %s: %w", o.name, err)
	}
	all := map[string]bool{}
	for _, d := range c.Spec.Drivers {
		all[d.Name] = true
	}
	for _, h := range c.Status.StorageHealth {
		all[h.Name] = true
	}
	ids, _ := nodeIDs(node)
	for name := range ids {
		all[name] = true
	}
	return slices.Sorted(maps.Keys(all)), nil
}
