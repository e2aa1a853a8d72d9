package whytest

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/attach"
	"volplane.dev/volplane/internal/decide/mount"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/volume"
)

// Driver is the driver of the scene.
const Driver = "d.example.com"

// AttachmentName returns that of the attachment of v1 to n1.
func AttachmentName() string { return attach.NameOf(Driver, "h1", "n1") }

// Scene is a small cluster: claim data of class fast, bound to volume v1, which
// is attached to node n1 and mounted there for pod web; node n2 is empty.
type Scene struct {
	Claim      *corev1.PersistentVolumeClaim
	Volume     *corev1.PersistentVolume
	Class      *storagev1.StorageClass
	Driver     *storagev1.CSIDriver
	Attachment *storagev1.VolumeAttachment
	Pod        *corev1.Pod
	N1         *corev1.Node
	CSI1       *storagev1.CSINode
	All        state.Objects
}

// New returns a scene in which all is well.
func New() *Scene {
	s := &Scene{
		Claim: &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data", UID: "uid-data", Annotations: map[string]string{}},
		},
		Volume: &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v1", UID: "uid-v1"}},
		Class: &storagev1.StorageClass{
			ObjectMeta: metav1.ObjectMeta{Name: "fast", UID: "uid-fast"}, Provisioner: Driver,
			AllowVolumeExpansion: ptr.To(true),
		},
		Driver:     &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: Driver}},
		Attachment: Attachment("n1"),
		Pod:        Pod("web", "n1"),
		N1:         Node("n1"),
		CSI1:       CSINode("n1"),
	}
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	s.Claim.Spec = corev1.PersistentVolumeClaimSpec{
		StorageClassName: ptr.To("fast"), VolumeName: "v1",
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources:   corev1.VolumeResourceRequirements{Requests: size},
	}
	s.Claim.Status.Phase, s.Claim.Status.Capacity, s.Claim.Status.AccessModes = corev1.ClaimBound, size,
		s.Claim.Spec.AccessModes
	s.Claim.Annotations[volume.AnnBindCompleted] = "yes"
	s.Volume.Spec = corev1.PersistentVolumeSpec{
		Capacity: size, AccessModes: s.Claim.Spec.AccessModes, StorageClassName: "fast",
		ClaimRef: &corev1.ObjectReference{Namespace: "ns", Name: "data", UID: "uid-data"},
		PersistentVolumeSource: corev1.PersistentVolumeSource{
			CSI: &corev1.CSIPersistentVolumeSource{Driver: Driver, VolumeHandle: "h1"},
		},
	}
	s.Volume.Spec.PersistentVolumeReclaimPolicy, s.Volume.Status.Phase = corev1.PersistentVolumeReclaimDelete,
		corev1.VolumeBound
	s.Attachment.Status.Attached = true
	s.Mounted(corev1.ConditionTrue, string(volume.ReasonMounted), "data=/m")
	s.All = state.Objects{Lists: cluster.Lists{
		Claims: []*corev1.PersistentVolumeClaim{s.Claim}, Volumes: []*corev1.PersistentVolume{s.Volume},
		Classes: []*storagev1.StorageClass{s.Class}, Drivers: []*storagev1.CSIDriver{s.Driver},
		Attachments: []*storagev1.VolumeAttachment{s.Attachment}, Pods: []*corev1.Pod{s.Pod},
		Nodes: []*corev1.Node{s.N1, Node("n2")}, CSINodes: []*storagev1.CSINode{s.CSI1, CSINode("n2")},
	}}
	return s
}

// Node returns a node that is ready.
func Node(name string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}, Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
}

// CSINode returns the node object of a node where the driver has registered.
func CSINode(name string) *storagev1.CSINode {
	return &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSINodeSpec{
		Drivers: []storagev1.CSINodeDriver{{Name: Driver, NodeID: "id-" + name}},
	}}
}

// Pod uses the claim.
func Pod(name, node string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)},
		Spec:       corev1.PodSpec{NodeName: node},
	}
	p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
	}}}
	return p
}

// Attachment returns an attachment of the volume to a node.
func Attachment(node string) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: attach.NameOf(Driver, "h1", node)},
		Spec: storagev1.VolumeAttachmentSpec{
			NodeName: node, Attacher: Driver, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To("v1")},
		},
	}
}

// Now returns the time of a deletion.
func Now() *metav1.Time { return ptr.To(At(0)) }

// Mounted sets what the node agent reports about the Pod's volumes.
func (s *Scene) Mounted(status corev1.ConditionStatus, reason, message string) {
	s.Pod.Status.Conditions = []corev1.PodCondition{
		{Type: volume.ConditionVolumesMounted, Status: status, Reason: reason, Message: message},
	}
}

// NotMounted has the node agent say why the Pod's volumes are not mounted.
func (s *Scene) NotMounted(b volume.Because) {
	s.Mounted(corev1.ConditionFalse, string(b.Reason), b.Message)
	s.Pod.Annotations = map[string]string{
		volume.AnnNextMounted: b.Next.String(), volume.AnnCauseMounted: b.Cause.String(),
	}
}

// Covered has the node agent say that something is mounted over the Pod's volume.
func (s *Scene) Covered() {
	s.NotMounted(volume.Because{
		Reason: volume.ReasonMountBroken, Next: volume.Administrator("n1"),
		Message: "on node n1 tmpfs none is mounted over volume v1 at /p, and is what Pods see there: unmount it",
	})
}

// Lost has the node agent say that the server of the Pod's volume has died and that the driver does not mount it again.
func (s *Scene) Lost() {
	const at = "/p"
	f := mount.Facts{
		Volume: "v1", Node: "n1", Wanted: []mount.Consumer{{Path: at}},
		Record: &mount.Record{Lost: map[string]mount.Loss{at: mount.Died}},
	}
	const words = "NodePublishVolume by driver " + Driver + ": Internal: no such bucket"
	cause := mount.StepFailed(mount.Publish, Driver, "n1", mount.Failure{Answer: volume.AnswerIn(words)})
	s.NotMounted(f.NotBack(mount.Action{Verb: mount.Publish, Path: at}, cause))
}

// Failed has the node agent report, in a condition or by an event, that a step failed. obstacle says that a person
// has to remove something first.
func (s *Scene) Failed(v mount.Verb, cause string, obstacle bool) {
	b := mount.StepFailed(v, Driver, "n1", mount.Failure{Answer: volume.AnswerIn(cause), Obstacle: obstacle})
	if v == mount.Publish {
		s.NotMounted(b)
	}
	s.Warn("uid-web", b.Reason, b.Message)
	s.Next(b.Next)
}

// Ill has the node agent say that a volume takes no writes any more.
func (s *Scene) Ill() {
	text, next := mount.State{ReadOnly: true}.Problems(Driver, "n1")
	b := mount.Health("v1", "n1", text, next)
	s.Mounted(corev1.ConditionTrue, "", "data=/x")
	s.Pod.Status.Conditions = append(s.Pod.Status.Conditions, corev1.PodCondition{
		Type: volume.ConditionVolumesHealthy, Status: corev1.ConditionFalse, Reason: string(b.Reason), Message: b.Message,
	})
	s.Pod.Annotations = map[string]string{
		volume.AnnNextHealthy: b.Next.String(), volume.AnnCauseHealthy: b.Cause.String(),
	}
	s.Warn(s.Pod.UID, b.Reason, b.Message)
}

// Asked has the node agent have called the driver, which does not answer.
func (s *Scene) Asked() {
	s.NotMounted(mount.CallInFlight(mount.Facts{Driver: Driver, Volume: "v1", Node: "n1"}, mount.Publish))
}

// FlexDrivers has the bridge of n1 say where its drivers stand, and the driver
// not register there.
func (s *Scene) FlexDrivers(text string) {
	s.N1.Annotations = map[string]string{volume.AnnDriverNotes: text, volume.AnnDriverDir: "/plugins"}
	s.CSI1.Spec.Drivers = nil
}

// FlexVolume has the volume be a FlexVolume.
func (s *Scene) FlexVolume() {
	s.Volume.Spec.FlexVolume = &corev1.FlexPersistentVolumeSource{Driver: "example.com/d"}
}

// Inline makes the Pod one that names a volume of the driver itself.
func (s *Scene) Inline() {
	s.Pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		FlexVolume: &corev1.FlexVolumeSource{Driver: "example.com/d"}, CSI: &corev1.CSIVolumeSource{Driver: Driver},
	}}}
	s.All.Claims, s.All.Volumes, s.All.Attachments = nil, nil, nil
}

// Homeless has the Pod find no node.
func (s *Scene) Homeless(why string) {
	s.Detached()
	s.Pod.Spec.NodeName = ""
	s.Pod.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: why},
	}
}

// Controls has the control plane run on n2, where no driver has registered.
func (s *Scene) Controls() {
	s.All.Nodes[1].Annotations = map[string]string{volume.AnnControlPlane: "yes"}
	s.All.CSINodes = s.All.CSINodes[:1]
}

// NodeOnly has the control plane run on n2, where the process of the driver has no controller.
func (s *Scene) NodeOnly() {
	s.Controls()
	s.All.CSINodes = append(s.All.CSINodes, CSINode("n2"))
}

// NodeLocal has the driver make and serve volumes on each node, and v1 be made on the given one. The control plane is
// on n2.
func (s *Scene) NodeLocal(node string) {
	s.NodeOnly()
	for _, d := range s.All.Drivers {
		d.Annotations = map[string]string{volume.AnnControllers: volume.ControllersOnNodes}
	}
	for _, v := range s.All.Volumes {
		metav1.SetMetaDataAnnotation(&v.ObjectMeta, volume.AnnProvisionedOn, node)
	}
}

// GivenUp has the volume be lost with node n2, which had it on its own disks.
func (s *Scene) GivenUp() {
	s.Volume.Annotations = map[string]string{volume.AnnProvisionedOn: "n2", volume.AnnLostWith: "n2"}
}

// Called has a process call the driver as its controllers do.
func (s *Scene) Called() {
	s.Lease(volume.NamespaceSystem, "external-attacher-leader-d-example-com", "volplane-up_n2", 120, time.Minute)
}

// Use adds a second consumer of the claim.
func (s *Scene) Use(p *corev1.Pod) {
	s.All.Pods = append(s.All.Pods, p)
}

// Unbound makes the claim one that is still unbound, and that no Pod uses.
func (s *Scene) Unbound() {
	s.Pending()
	s.Claim.Spec.VolumeName = ""
	s.All.Volumes, s.All.Attachments, s.All.Pods = nil, nil, nil
}

// Pending makes the claim one that names a volume and is not bound yet.
func (s *Scene) Pending() {
	delete(s.Claim.Annotations, volume.AnnBindCompleted)
	s.Claim.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}
}

// Creating makes the scene one in which the provisioner has called the driver to create the claim's volume.
func (s *Scene) Creating() {
	in := &provision.Intent{
		Driver: Driver, Name: "pvc-uid-data", Claim: corev1.ObjectReference{Namespace: "ns", Name: "data", UID: "uid-data"},
	}
	s.All.Begun = []*provision.Intent{in}
}

// Late makes the claim of a class that waits for the first consumer.
func (s *Scene) Late() {
	s.Unbound()
	s.Class.VolumeBindingMode = ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)
}

// Short makes a Pod wait that found no node, because no node had room.
func (s *Scene) Short(reason volume.Reason, next volume.Actor, message string) {
	b := volume.Say("", next, message)
	b.Cause = volume.Cause{Reason: reason, Object: "storageclass/" + s.Class.Name}
	s.Late()
	p := Pod("web", "")
	p.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: b.Message},
	}
	p.Annotations = map[string]string{
		volume.AnnNextScheduled: b.Next.String(), volume.AnnCauseScheduled: b.Cause.String(),
	}
	s.Use(p)
}

// Goes has the volume's object be deleted and kept by finalizers.
func (s *Scene) Goes(finalizers ...string) {
	s.Volume.DeletionTimestamp, s.Volume.Finalizers = Now(), finalizers
}

// Released takes the claim and its consumer away.
func (s *Scene) Released() {
	s.All.Claims, s.All.Pods, s.Volume.Status.Phase = nil, nil, corev1.VolumeReleased
}

// Detached removes all attachments.
func (s *Scene) Detached() { s.All.Attachments = nil }

// Attaching has the volume not be attached yet.
func (s *Scene) Attaching() { s.Attachment.Status.Attached = false }

// Detaching has the attachment be deleted.
func (s *Scene) Detaching() {
	s.Attachment.DeletionTimestamp, s.Attachment.Finalizers = Now(), []string{volume.AttacherFinalizer(Driver)}
}

// InlineAttachment has the attachment itself say what its volume is.
func (s *Scene) InlineAttachment() {
	s.Attachment.Spec.Source, s.Attachment.Status.Attached =
		storagev1.VolumeAttachmentSource{InlineVolumeSpec: &s.Volume.Spec}, false
}

// Warn adds an event about the object of a UID.
func (s *Scene) Warn(uid types.UID, reason volume.Reason, message string) {
	s.All.Warnings = append(s.All.Warnings, &corev1.Event{
		InvolvedObject: corev1.ObjectReference{UID: uid}, Reason: string(reason), Message: message,
	})
}

// Deleted has the Pod deleted, because its node is missing, with an event that names the claims that it used.
func (s *Scene) Deleted(claims string) {
	s.Warn("uid-web", volume.ReasonNodeGone, "node n1 has been gone for 40s, its pods are deleted")
	e := s.All.Warnings[len(s.All.Warnings)-1]
	e.InvolvedObject.Namespace, e.InvolvedObject.Name = "ns", "web"
	e.Annotations, e.LastTimestamp = map[string]string{volume.AnnClaims: claims}, At(1)
	s.All.Pods, s.All.Nodes, s.All.Attachments = nil, s.All.Nodes[1:], nil
}

// Next adds to the newest warning who has to act.
func (s *Scene) Next(actor volume.Actor) {
	s.All.Warnings[len(s.All.Warnings)-1].Annotations = map[string]string{volume.AnnNext: actor.String()}
}

// Wants has the claim request a size.
func (s *Scene) Wants(size string) {
	s.Claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
}

// Resizing has the claim grow.
func (s *Scene) Resizing(status corev1.ClaimResourceStatus) {
	s.Wants("2Gi")
	s.Claim.Status.AllocatedResources = s.Claim.Spec.Resources.Requests
	s.Claim.Status.AllocatedResourceStatuses = map[corev1.ResourceName]corev1.ClaimResourceStatus{
		corev1.ResourceStorage: status,
	}
}

// FailWith gives every failure of the scene a cause.
func (s *Scene) FailWith(cause string) {
	for _, e := range s.All.Warnings {
		e.Message = cause
	}
	for i := range s.Pod.Status.Conditions {
		s.Pod.Status.Conditions[i].Message = cause
		b := mount.StepFailed(mount.Publish, Driver, "n1", mount.Failure{Answer: volume.AnswerIn(cause)})
		s.Pod.Annotations = map[string]string{
			volume.AnnNextMounted: b.Next.String(), volume.AnnCauseMounted: b.Cause.String(),
		}
	}
	for _, e := range []*storagev1.VolumeError{s.Attachment.Status.AttachError, s.Attachment.Status.DetachError} {
		if e != nil {
			e.Message = cause
		}
	}
}

// StillMounted removes all users of the volume, which the node fails to unmount.
func (s *Scene) StillMounted(cause string) {
	s.All.Pods, s.Attachment.UID = nil, "uid-a1"
	s.N1.Status.VolumesInUse = []corev1.UniqueVolumeName{corev1.UniqueVolumeName(volume.UniqueName(Driver, "h1"))}
	s.Warn("uid-a1", volume.ReasonFailedUnmount, cause)
}

// UsedAlone has n1 report that it uses the volume, which is attached nowhere; told says
// that the Pod has an event about it.
func (s *Scene) UsedAlone(told bool) {
	s.All.Pods = nil
	s.Detached()
	s.Use(Pod("other", "n2"))
	s.N1.Status.VolumesInUse = []corev1.UniqueVolumeName{corev1.UniqueVolumeName(volume.UniqueName(Driver, "h1"))}
	if told {
		s.Warn("uid-other", volume.ReasonFailedAttach,
			`Multi-Attach error for volume "v1": it can be on one node at a time, and node n1 says that it still uses it`)
		s.Next(volume.NodeAgent("n1"))
	}
}

// NodeGrowth has the file system not grow.
func (s *Scene) NodeGrowth(cause string) {
	s.Resizing(corev1.PersistentVolumeClaimNodeResizePending)
	s.Warn("uid-data", volume.ReasonFailedNodeResize, cause)
	s.Next(volume.NodeAgent("n1"))
}

// Available has the volume be free for a claim without a volume, which wants no class.
func (s *Scene) Available() {
	s.Unbound()
	s.All.Volumes = []*corev1.PersistentVolume{s.Volume}
	s.Volume.Spec.ClaimRef, s.Volume.Spec.StorageClassName, s.Volume.Status.Phase = nil, "", corev1.VolumeAvailable
	s.Claim.Spec.StorageClassName = ptr.To("")
}

// Down has a node not answer.
func (s *Scene) Down() {
	s.N1.Status.Conditions[0].Status, s.N1.Status.Conditions[0].Reason = corev1.ConditionUnknown, "NodeStatusUnknown"
}

// LeavingClaim has the claim be deleted with finalizers.
func (s *Scene) LeavingClaim(finalizers ...string) {
	s.Claim.DeletionTimestamp, s.Claim.Finalizers = Now(), finalizers
}

// SameHandle has volume v2 stand for the same volume at the driver, and Pod first have it mounted on n1; it is attached
// nowhere, and Pod other wants it on n2.
func (s *Scene) SameHandle() {
	s.UsedAlone(false)
	claim, v, first := s.Claim.DeepCopy(), s.Volume.DeepCopy(), s.Pod
	claim.Name, claim.UID, claim.Spec.VolumeName = "twin", "uid-twin", "v2"
	v.Name, v.UID, v.Spec.ClaimRef.Name, v.Spec.ClaimRef.UID = "v2", "uid-v2", "twin", "uid-twin"
	first.Name, first.UID, first.Spec.Volumes[0].PersistentVolumeClaim.ClaimName = "first", "uid-first", "twin"
	s.All.Claims, s.All.Volumes = append(s.All.Claims, claim), append(s.All.Volumes, v)
	s.Use(first)
}

// OtherLabel has the node report that another Pod has mounted the volume with another SELinux label.
func (s *Scene) OtherLabel() {
	s.NotMounted(volume.Because{
		Reason: volume.ReasonSELinuxLabelConflict, Message: "volume v1 is on node n1 with the SELinux label " +
			"system_u:object_r:container_file_t:s0:c1,c2 for Pod ns/first: Pods that ask for another label wait until no " +
			"Pod has it there", Next: volume.PodActor("ns/first"),
	})
}
