package capacity

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"volplane.dev/volplane/internal/volume"
)

// short begins the messages of Refuses; Kubernetes' scheduler uses the same words.
const short = "node(s) did not have enough free storage: "

// Need is a claim that waits for a node, and what is known of the storage for it.
type Need struct {
	Claim *corev1.PersistentVolumeClaim
	Class *storagev1.StorageClass
	// Driver is the CSIDriver of the class's driver, or nil.
	Driver *storagev1.CSIDriver
	// Known are the capacity objects, whichever process maintains them; those of other classes are ignored.
	Known []*storagev1.CSIStorageCapacity
}

// Counts says whether a driver, which may be nil, requests that its capacity is considered.
func Counts(d *storagev1.CSIDriver) bool {
	return d != nil && d.Spec.StorageCapacity != nil && *d.Spec.StorageCapacity
}

// Refuses returns why the claim's volume cannot be created for a node; without a reason it can.
func (n Need) Refuses(node *corev1.Node) volume.Because {
	if !Counts(n.Driver) {
		return volume.Because{}
	}
	size := n.Claim.Spec.Resources.Requests.Storage()
	var most *resource.Quantity
	for _, o := range n.Known {
		q := limit(o)
		if o.StorageClassName != n.Class.Name || q == nil || most != nil && q.Cmp(*most) <= 0 ||
			!selects(o.NodeTopology, node) {
			continue
		}
		if most = q; q.Cmp(*size) >= 0 {
			return volume.Because{}
		}
	}
	if most == nil {
		b := volume.Say(volume.ReasonFailedPlacing, volume.Driver(n.Class.Provisioner), short+"driver "+
			n.Class.Provisioner+" has not reported how much space class "+n.Class.Name+" has there")
		b.Cause = volume.Cause{Reason: volume.ReasonCapacityUnknown, Object: "storageclass/" + n.Class.Name}
		return b
	}
	b := volume.Say(volume.ReasonFailedPlacing, volume.User(), short+"claim "+n.Claim.Name+" asks for "+
		size.String()+", class "+n.Class.Name+" has volumes of up to "+rounded(most)+" there")
	b.Cause.Reason = volume.ReasonNotEnoughStorage
	return b
}

// Tenths returns how many tenths of the free space for a node the claim's volume takes, rounded down; 0 if the space is
// not known, and most if there is none. Kubernetes' scheduler has a finer measure, which would send all Pods to the
// node with slightly more space than its neighbours.
func (n Need) Tenths(node *corev1.Node) int64 {
	if !Counts(n.Driver) {
		return 0
	}
	const most = 1 << 20
	free, known := 0.0, false
	for _, o := range n.Known {
		if o.StorageClassName == n.Class.Name && o.Capacity != nil && selects(o.NodeTopology, node) {
			free, known = max(free, o.Capacity.AsApproximateFloat64()), true
		}
	}
	switch {
	case !known:
		return 0
	case free <= 0:
		return most
	}
	return int64(min(n.Claim.Spec.Resources.Requests.Storage().AsApproximateFloat64()*10/free, most))
}

// rounded returns a size for people, rounded down.
func rounded(q *resource.Quantity) string {
	for shift, unit := range map[uint]string{60: "Ei", 50: "Pi", 40: "Ti", 30: "Gi", 20: "Mi"} {
		whole, rest := q.Value()>>shift, q.Value()&(1<<shift-1)
		if whole > 0 && whole < 1<<10 && rest > 0 {
			return fmt.Sprintf("%d.%d%s", whole, rest>>(shift-10)*10>>10, unit)
		}
	}
	return q.String()
}

// limit returns the size of the largest possible volume or, if that is unknown, all free space.
func limit(o *storagev1.CSIStorageCapacity) *resource.Quantity {
	return cmp.Or(o.MaximumVolumeSize, o.Capacity)
}

// Roomier says whether an object has changed so that something may fit now that did not before.
func Roomier(before, after *storagev1.CSIStorageCapacity) bool {
	if after == nil {
		return false
	}
	now := limit(after)
	if before == nil || now == nil {
		return now != nil
	}
	was := limit(before)
	return was == nil || now.Cmp(*was) > 0
}

// selects says whether a node can use the storage of an object.
func selects(s *metav1.LabelSelector, node *corev1.Node) bool {
	switch {
	case s == nil:
		return false
	case len(s.MatchExpressions) > 0:
		selector, err := metav1.LabelSelectorAsSelector(s)
		return err == nil && selector.Matches(labels.Set(node.Labels))
	}
	for k, want := range s.MatchLabels {
		if v, ok := node.Labels[k]; !ok || v != want {
			return false
		}
	}
	return true
}
