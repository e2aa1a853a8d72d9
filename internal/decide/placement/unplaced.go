package placement

import (
	"cmp"
	"hash/fnv"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/volume"
)

// IsUnplaced says whether a claim waits for a node that no Pod will choose: the volume was asked for at once, and each
// node with its driver makes volumes of its own. Class and driver may be nil.
func IsUnplaced(c *corev1.PersistentVolumeClaim, class *storagev1.StorageClass, driver *storagev1.CSIDriver) bool {
	return MayBeUnplaced(c) && class != nil && !bind.BindsLate(class) && provision.ProvisionerOf(c) == class.Provisioner &&
		driver != nil && volume.IsNodeLocal(driver.Annotations)
}

// MayBeUnplaced says whether IsUnplaced can be true with some class and driver.
func MayBeUnplaced(c *corev1.PersistentVolumeClaim) bool {
	return c.Spec.VolumeName == "" && c.DeletionTimestamp == nil && provision.ProvisionerOf(c) != "" &&
		volume.SelectedNode(c.Annotations) == ""
}

// Unplaced decides on which node the volume of an unplaced claim is made: on any that a Pod without wishes could use
// and that has room, and whose driver has not refused. Which one it is depends on the claim alone, so that many claims
// are spread.
func Unplaced(c Claim, nodes []Node) Plan {
	f := Facts{Pod: &corev1.Pod{}, Claims: []Claim{c}, Nodes: nodes}
	node, why := choose(f, func(a, b Node) int {
		return cmp.Or(cmp.Compare(refusals(f, a), refusals(f, b)), cmp.Compare(turn(c, a), turn(c, b)),
			cmp.Compare(a.Object.Name, b.Object.Name))
	})
	if node == nil {
		why.Because.Reason = volume.ReasonProvisioningFailed
		return why
	}
	name := node.Object.Name
	return Plan{
		Node: name, Select: []*corev1.PersistentVolumeClaim{selected(c.Object, name)},
		Because: volume.Say(volume.ReasonProvisioning, volume.Controller("provisioner"),
			"the volume of claim "+c.Name+" is to be made on node "+name),
	}
}

// turn is the place of a node in the order of a claim.
func turn(c Claim, n Node) uint64 {
	h := fnv.New64a()
	for _, s := range []string{string(c.Object.UID), c.Object.ResourceVersion, n.Object.Name} {
		_, _ = h.Write([]byte(s + "/"))
	}
	return h.Sum64()
}
