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

// controller is who acts next about a VolumeSnapshot, and groupController about one that is a member of a group.
func controller() volume.Actor { return volume.Controller("snapshot-controller") }

func groupController() volume.Actor { return volume.Controller("group-snapshot-controller") }

// memberName and memberContent begin the names of the snapshots in a group, and of their contents; those of contents
// that are made for other snapshots begin like the latter.
const memberName, memberContent = "snapshot-", "snapcontent-"

// yes is the value of the annotations that say something by being there.
const yes = "yes"

// Facts is everything on which the decision about one VolumeSnapshot depends.
type Facts struct {
	Snapshot *snapshotv1.VolumeSnapshot
	// Class is the class that the snapshot names; nil if there is none of that name.
	Class *snapshotv1.VolumeSnapshotClass
	// Classes are all classes, of which one may be the default.
	Classes []*snapshotv1.VolumeSnapshotClass
	// Content is the content with the name that ContentName returns, or nil.
	Content *snapshotv1.VolumeSnapshotContent
	// Absent says that the API server itself has said that there is no such content: a cache may not have it yet.
	Absent bool
	// Claim is the claim that the snapshot is to be taken of, and Volume that claim's volume; or nil.
	Claim  *corev1.PersistentVolumeClaim
	Volume *corev1.PersistentVolume
	// Restores are the claims without a volume whose data are to come from the snapshot.
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

// Step is the next step for a VolumeSnapshot, its content or its claim.
type Step int

const (
	// Nothing is to be done now.
	Nothing Step = iota
	// WriteSnapshot writes Plan.Snapshot, except its status.
	WriteSnapshot
	// WriteStatus writes the status of Plan.Snapshot.
	WriteStatus
	// WriteClaim writes Plan.Claim.
	WriteClaim
	// CreateContent creates Plan.Content; AfterCreate judges the answer.
	CreateContent
	// WriteContent writes Plan.Content, except its status; AfterBind judges the answer if Plan.Binds.
	WriteContent
	// DeleteContent deletes the content.
	DeleteContent
	// Confirm asks the API server itself whether the content exists, or the snapshot of a content.
	Confirm
)

// Plan is the next step and its reason.
type Plan struct {
	Step     Step
	Snapshot *snapshotv1.VolumeSnapshot
	Content  *snapshotv1.VolumeSnapshotContent
	Claim    *corev1.PersistentVolumeClaim
	// Binds says that the written content gets the snapshot's identity.
	Binds   bool
	Because volume.Because
	// Warn says that something is wrong, and Tell that the reason is recorded as an event when the step is done: at
	// once if there is none.
	Warn, Tell bool
	// Also are further reasons that are told with the step.
	Also []volume.Because
}

// ContentName returns the name of a snapshot's content: the one that the snapshot is bound to or names, or else that
// of the content that is made for it.
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

// itsGroup names the group that a snapshot is a member of, as far as it is known.
func itsGroup(s *snapshotv1.VolumeSnapshot) string {
	if owner := cluster.GroupOf(s); owner != nil {
		return "group snapshot " + owner.Name
	}
	return "its group snapshot"
}

// MemberNames returns the names of the snapshot and of the content that stand for one volume in a group.
func MemberNames(group types.UID, handle string) (name, content string) {
	sum := fmt.Sprintf("%x", sha256.Sum256([]byte(string(group)+handle)))
	return memberName + sum, memberContent + sum
}

// ClaimOf returns the name of the claim that a snapshot is taken of; "" for a snapshot of a content that exists.
func ClaimOf(s *snapshotv1.VolumeSnapshot) string {
	return ptr.Deref(s.Spec.Source.PersistentVolumeClaimName, "")
}

func boundTo(s *snapshotv1.VolumeSnapshot) string {
	if s.Status == nil {
		return ""
	}
	return ptr.Deref(s.Status.BoundVolumeSnapshotContentName, "")
}

// IsReady says whether a volume can be made from a snapshot.
func IsReady(s *snapshotv1.VolumeSnapshot) bool {
	return s.Status != nil && ptr.Deref(s.Status.ReadyToUse, false)
}

// ErrorOf returns the error in the status of a snapshot, or "".
func ErrorOf(s *snapshotv1.VolumeSnapshot) string {
	if s.Status == nil || s.Status.Error == nil {
		return ""
	}
	return ptr.Deref(s.Status.Error.Message, "")
}

// problemOf returns the error in the status of a content.
func problemOf(c *snapshotv1.VolumeSnapshotContent) string {
	if c.Status == nil || c.Status.Error == nil {
		return ""
	}
	return ptr.Deref(c.Status.Error.Message, "")
}

// pointsTo says whether a content refers to a snapshot, by its identity or, before they are bound, by its name.
func pointsTo(c *snapshotv1.VolumeSnapshotContent, s *snapshotv1.VolumeSnapshot) bool {
	ref := c.Spec.VolumeSnapshotRef
	return ref.Namespace == s.Namespace && ref.Name == s.Name && (ref.UID == "" || ref.UID == s.UID)
}

// isOf says whether a content is bound to a snapshot.
func isOf(c *snapshotv1.VolumeSnapshotContent, s *snapshotv1.VolumeSnapshot) bool {
	return c != nil && pointsTo(c, s) && c.Spec.VolumeSnapshotRef.UID == s.UID
}

// deletes says whether the driver's snapshot is deleted with a content.
func deletes(c *snapshotv1.VolumeSnapshotContent) bool {
	return c.Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentDelete
}

// isValid says whether a content names exactly one source.
func isValid(c *snapshotv1.VolumeSnapshotContent) bool {
	return (c.Spec.Source.VolumeHandle == nil) != (c.Spec.Source.SnapshotHandle == nil)
}

func invalid(c *snapshotv1.VolumeSnapshotContent) string {
	return "content " + c.Name + " must name either a volume or a snapshot of the driver as its source"
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

// without takes finalizers from an object, which is the caller's.
func without(o metav1.Object, finalizers ...string) {
	o.SetFinalizers(volume.Without(o.GetFinalizers(), finalizers...))
}

func nothing(r volume.Reason, next volume.Actor, message string) Plan {
	return Plan{Because: volume.Say(r, next, message)}
}
