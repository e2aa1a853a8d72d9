package snapshot

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/volume"
)

// controller acts next about a VolumeSnapshot, and groupController about one that is a member of a group.
func controller() volume.Actor { return volume.Controller("snapshot-controller") }

func groupController() volume.Actor { return volume.Controller("group-snapshot-controller") }

// memberName and memberContent begin the names of the snapshots in a group, and of their contents; contents that are
// created for other snapshots have the same prefix as the latter.
const memberName, memberContent = "snapshot-", "snapcontent-"

// kindSnapshot begins the keys of the parameters that name a snapshot, and namePrefix is the usual prefix of the
// snapshot's name at the driver.
const kindSnapshot, namePrefix = "volumesnapshot", "snapshot"

// yes is the value of the annotations that say something by being there.
const yes = "yes"

// Facts is everything on which the decision about one VolumeSnapshot depends.
type Facts struct {
	Snapshot *snapshotv1.VolumeSnapshot
	// Class is the class that the snapshot names; nil if there is none of that name.
	Class *cluster.VolumeSnapshotClass
	// Classes are all classes, one of which may be the default.
	Classes []*cluster.VolumeSnapshotClass
	// Content is the content with the name that ContentName returns, or nil.
	Content *cluster.VolumeSnapshotContent
	// Absent means that the API server itself has confirmed that the content does not exist: a cache may not have it yet.
	Absent bool
	// Claim is the claim from which the snapshot is taken, and Volume that claim's volume; or nil.
	Claim  *corev1.PersistentVolumeClaim
	Volume *corev1.PersistentVolume
	// Restores are the claims without a volume that will be restored from the snapshot.
	Restores []*corev1.PersistentVolumeClaim
	// Now is the time at which errors are noted.
	Now metav1.Time
}

// FactsOf gathers the facts about a snapshot.
func FactsOf(view cluster.View, s *snapshotv1.VolumeSnapshot, now metav1.Time) Facts {
	f := Facts{Snapshot: s, Content: cluster.Find(view.SnapshotContents, ContentName(s)), Now: now}
	if name := className(s); name != "" {
		f.Class = cluster.Find(view.SnapshotClasses, name)
	} else {
		f.Classes = view.SnapshotClasses.List()
	}
	if name := ClaimOf(s); name != "" {
		if f.Claim = cluster.Find(view.Claims, s.Namespace+"/"+name); f.Claim != nil {
			f.Volume = cluster.Find(view.Volumes, f.Claim.Spec.VolumeName)
		}
	}
	if s.DeletionTimestamp != nil {
		f.Restores = view.Claims.By(cluster.UnboundBySnapshot, cluster.Key(s))
	}
	return f
}

// Plan is the next step for a VolumeSnapshot, its content or, as Other, its claim.
type Plan = PlanOf[*snapshotv1.VolumeSnapshot, *cluster.VolumeSnapshotContent, *corev1.PersistentVolumeClaim]

// DriverFacts is everything on which the decision about the driver's part of a VolumeSnapshotContent depends.
type DriverFacts = DriverFactsOf[*cluster.VolumeSnapshotContent]

// DriverPlan is the next step of a content at its driver, and its reason: AfterTake judges the answer of
// CreateSnapshot, AfterLook that of GetSnapshot or ListSnapshots, and AfterRemove that of DeleteSnapshot.
type DriverPlan = PlanFor[*cluster.VolumeSnapshotContent]

// ContentFacts is everything on which the common decision about one VolumeSnapshotContent depends.
type ContentFacts = ContentFactsOf[*snapshotv1.VolumeSnapshot, *cluster.VolumeSnapshotContent]

// Single returns what distinguishes snapshots of one volume from groups of snapshots.
func Single() *Kind[*snapshotv1.VolumeSnapshot, *cluster.VolumeSnapshotContent, *corev1.PersistentVolumeClaim] {
	return &Kind[*snapshotv1.VolumeSnapshot, *cluster.VolumeSnapshotContent, *corev1.PersistentVolumeClaim]{
		ContentKind: ContentKind[*cluster.VolumeSnapshotContent]{
			Controller: controller(), View: viewOf, ContentState: contentState, Look: look,
			Wanted: func(v View) string { return "a snapshot of volume " + v.Sources[0] },
			Marks: Marks{
				Finalizer: volume.FinalizerContentBound,
				Creating:  volume.AnnSnapshotCreating, Deleting: volume.AnnSnapshotDeleting,
				SecretName: volume.AnnSnapshotSecretName, SecretNamespace: volume.AnnSnapshotSecretNamespace,
			},
			Words: Words{
				Noun: "snapshot", ClassKind: "VolumeSnapshotClass", One: "snapshot", Several: "snapshots",
				Sources: "either a volume or a snapshot of the driver as its source",
				Keys:    kindSnapshot, Prefix: namePrefix, Capability: "CREATE_DELETE_SNAPSHOT",
			},
			Invalid: volume.ReasonContentInvalid, Pending: volume.ReasonSnapshotPending, Ready: volume.ReasonSnapshotReady,
			ClassMissing: volume.ReasonSnapshotClassFailed, ClassMismatch: volume.ReasonSnapshotDriverMismatch,
			TakeFailed: volume.ReasonSnapshotFailed, DeleteFailed: volume.ReasonSnapshotDeleteFailed,
		},
		State: snapshotState, Bind: bind,
		Misbound: volume.ReasonSnapshotMisbound, Missing: volume.ReasonContentMissing,
		BindFailed: volume.ReasonContentBindFailed, Mismatch: volume.ReasonContentMismatch,
		HandleSet: volume.ReasonContentHandleSet, ContentMisbound: volume.ReasonContentMisbound,
	}
}

// viewOf returns what decisions read of the content of a snapshot.
func viewOf(c *cluster.VolumeSnapshotContent) View {
	source, status := c.Spec.Source, ptr.Deref(c.Status, snapshotv1.VolumeSnapshotContentStatus{})
	v := View{
		Driver: c.Spec.Driver, Class: ptr.Deref(c.Spec.VolumeSnapshotClassName, ""), Ref: c.Spec.VolumeSnapshotRef,
		Given: source.SnapshotHandle != nil, Valid: (source.VolumeHandle == nil) != (source.SnapshotHandle == nil),
		Handle: HandleOf(c), Taken: status.SnapshotHandle != nil, Ready: ptr.Deref(status.ReadyToUse, false),
		Deletes: c.Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentDelete, Problem: status.Error,
		Member: c.Annotations[volume.AnnGroupSnapshotHandle] != "" && source.VolumeHandle != nil,
	}
	v.Grouped = v.Member || status.VolumeGroupSnapshotHandle != nil
	if source.VolumeHandle != nil {
		v.Sources = []string{*source.VolumeHandle}
	}
	return v
}

func contentState(c *cluster.VolumeSnapshotContent) (problem **snapshotv1.VolumeSnapshotError, ready **bool) {
	if c.Status == nil {
		c.Status = &snapshotv1.VolumeSnapshotContentStatus{}
	}
	return &c.Status.Error, &c.Status.ReadyToUse
}

func snapshotState(s *snapshotv1.VolumeSnapshot) (problem **snapshotv1.VolumeSnapshotError, ready **bool) {
	if s.Status == nil {
		s.Status = &snapshotv1.VolumeSnapshotStatus{}
	}
	return &s.Status.Error, &s.Status.ReadyToUse
}

func bind(c *cluster.VolumeSnapshotContent, s *snapshotv1.VolumeSnapshot) {
	c.Spec.VolumeSnapshotRef.UID = s.UID
	if name := className(s); name != "" && c.Spec.VolumeSnapshotClassName == nil {
		c.Spec.VolumeSnapshotClassName = &name
	}
}

// ClassOf returns the part of a content's class that decisions use; nil without one.
func ClassOf(c *cluster.VolumeSnapshotClass) *Class {
	if c == nil {
		return nil
	}
	return &Class{Name: c.Name, Driver: c.Driver, Parameters: c.Parameters, Topologies: c.AllowedTopologies}
}

// HandleOf returns the driver's snapshot that a content refers to; "" if it is not known.
func HandleOf(c *cluster.VolumeSnapshotContent) string {
	if c.Status != nil && c.Status.SnapshotHandle != nil {
		return *c.Status.SnapshotHandle
	}
	return ptr.Deref(c.Spec.Source.SnapshotHandle, "")
}

// ContentName returns the name of a snapshot's content: that of the content to which it is bound or which it names,
// otherwise that of the content created for it.
func ContentName(s *snapshotv1.VolumeSnapshot) string {
	if name := ptr.Deref(s.Spec.Source.VolumeSnapshotContentName, ""); name != "" {
		return name
	}
	if name := boundTo(s); name != "" {
		return name
	}
	if InGroup(s) {
		return memberContent + strings.TrimPrefix(s.Name, memberName)
	}
	return memberContent + string(s.UID)
}

// InGroup says whether a snapshot is a member of a group, which is taken as a whole.
func InGroup(s *snapshotv1.VolumeSnapshot) bool {
	return cluster.GroupOf(s) != nil || has(s, volume.FinalizerSnapshotInGroup)
}

// itsGroup names the group of a snapshot, as far as it is known.
func itsGroup(s *snapshotv1.VolumeSnapshot) string {
	if owner := cluster.GroupOf(s); owner != nil {
		return "group snapshot " + owner.Name
	}
	return "its group snapshot"
}

// MemberNames returns the names of the snapshot and of the content that belong to one volume in a group.
func MemberNames(group types.UID, handle string) (name, content string) {
	sum := fmt.Sprintf("%x", sha256.Sum256([]byte(string(group)+handle)))
	return memberName + sum, memberContent + sum
}

// ClaimOf returns the name of a snapshot's source claim; "" for a snapshot of an existing content.
func ClaimOf(s *snapshotv1.VolumeSnapshot) string {
	return ptr.Deref(s.Spec.Source.PersistentVolumeClaimName, "")
}

func boundTo(s *snapshotv1.VolumeSnapshot) string {
	if s.Status == nil {
		return ""
	}
	return ptr.Deref(s.Status.BoundVolumeSnapshotContentName, "")
}

// IsReady says whether a volume can be created from a snapshot.
func IsReady(s *snapshotv1.VolumeSnapshot) bool {
	return s.Status != nil && ptr.Deref(s.Status.ReadyToUse, false)
}

// ErrorOf returns the error in the status of a snapshot, or "".
func ErrorOf(s *snapshotv1.VolumeSnapshot) string {
	if s.Status == nil {
		return ""
	}
	return ErrorIn(s.Status.Error)
}

// isOf says whether there is a content that is bound to a snapshot.
func isOf(c *cluster.VolumeSnapshotContent, s *snapshotv1.VolumeSnapshot) bool {
	return c != nil && viewOf(c).IsOf(s)
}

func has(o metav1.Object, finalizer string) bool {
	return slices.Contains(o.GetFinalizers(), finalizer)
}

// with adds finalizers to an object, which is the caller's.
func with(o metav1.Object, finalizers ...string) {
	for _, f := range finalizers {
		if !has(o, f) {
			o.SetFinalizers(append(slices.Clone(o.GetFinalizers()), f))
		}
	}
}

// without removes finalizers from an object that the caller owns.
func without(o metav1.Object, finalizers ...string) {
	o.SetFinalizers(volume.Without(o.GetFinalizers(), finalizers...))
}

func nothing(r volume.Reason, next volume.Actor, message string) Plan {
	return Plan{Because: volume.Say(r, next, message)}
}
