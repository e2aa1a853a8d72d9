package snapshot

import (
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/volume"
)

// begin creates the content that makes a driver take a snapshot. The claim gets a finalizer first, which keeps its
// volume.
func begin(f Facts) Plan {
	s := f.Snapshot
	const cannot = "Failed to create snapshot content with error "
	problem := "claim " + ClaimOf(s) + " does not exist"
	if f.Claim != nil {
		problem = VolumeProblem(f.Claim, f.Volume)
	}
	switch {
	case problem != "":
		return failed(f, volume.ReasonContentFailed, volume.User(), cannot+problem)
	case f.Class == nil:
		return failed(f, volume.ReasonSnapshotClassFailed, volume.User(),
			"VolumeSnapshotClass "+className(s)+" of snapshot "+s.Name+" does not exist")
	case f.Class.Driver != f.Volume.Spec.CSI.Driver:
		return failed(f, volume.ReasonSnapshotDriverMismatch, volume.User(), cannot+"VolumeSnapshotClass "+f.Class.Name+
			" belongs to driver "+f.Class.Driver+", and volume "+f.Volume.Name+" to driver "+f.Volume.Spec.CSI.Driver)
	}
	if !has(f.Claim, volume.FinalizerSnapshotSource) {
		if f.Claim.DeletionTimestamp != nil {
			return failed(f, volume.ReasonContentFailed, volume.User(), cannot+"cannot add finalizer on claim "+f.Claim.Name+
				" because it is being deleted")
		}
		claim := f.Claim.DeepCopy()
		with(claim, volume.FinalizerSnapshotSource)
		return Plan{Step: WriteOther, Other: claim, Because: volume.Say(volume.ReasonSnapshotPending, controller(),
			"claim "+claim.Name+" is kept while snapshot "+s.Name+" is taken of it")}
	}
	content, err := contentOf(f)
	if err != nil {
		return failed(f, volume.ReasonContentFailed, volume.User(), cannot+err.Error())
	}
	return Plan{Step: CreateContent, Content: content, Event: true, Because: volume.Say(
		volume.ReasonSnapshotPending, volume.Driver(f.Class.Driver),
		"Waiting for a snapshot "+s.Namespace+"/"+s.Name+" to be created by the CSI driver.")}
}

// contentOf returns the content of a snapshot. It has everything that is needed to take and to delete the driver's
// snapshot, without the class, the claim or the volume.
func contentOf(f Facts) (*cluster.VolumeSnapshotContent, error) {
	s, class, v := f.Snapshot, f.Class, f.Volume
	name := ContentName(s)
	inName, inNamespace := tokensOf(name, s)
	annotations, err := Single().NotesOf(ClassOf(class), forTaking, v, inName, inNamespace)
	if err != nil {
		return nil, err
	}
	return &cluster.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Annotations: annotations, Finalizers: []string{volume.FinalizerContentBound},
			Labels: map[string]string{volume.LabelMadeBy: volume.Program},
		},
		Spec: cluster.VolumeSnapshotContentSpec{VolumeSnapshotContentSpec: snapshotv1.VolumeSnapshotContentSpec{
			VolumeSnapshotRef: corev1.ObjectReference{
				Kind: volume.KindSnapshot, APIVersion: snapshotv1.SchemeGroupVersion.String(), Namespace: s.Namespace, Name: s.Name,
				UID: s.UID,
			},
			DeletionPolicy: class.DeletionPolicy, Driver: class.Driver, VolumeSnapshotClassName: &class.Name,
			Source:           snapshotv1.VolumeSnapshotContentSource{VolumeHandle: &v.Spec.CSI.VolumeHandle},
			SourceVolumeMode: ptr.To(ptr.Deref(v.Spec.VolumeMode, corev1.PersistentVolumeFilesystem)),
		}},
	}, nil
}

// OnNode returns a new content with the name of the node whose snapshotter calls the driver: the first one, by name, on
// which the volume can be used. A volume that can be used everywhere belongs to no single node.
func OnNode(
	c *cluster.VolumeSnapshotContent, v *corev1.PersistentVolume, nodes []corev1.Node,
) *cluster.VolumeSnapshotContent {
	if v.Spec.NodeAffinity == nil {
		return c
	}
	name := ""
	for i := range nodes {
		n := &nodes[i]
		if topology.Selects(v.Spec.NodeAffinity.Required, n) && (name == "" || n.Name < name) {
			name = n.Name
		}
	}
	if name == "" {
		return c
	}
	c = c.DeepCopy()
	metav1.SetMetaDataLabel(&c.ObjectMeta, volume.LabelSnapshotsOf, name)
	return c
}
