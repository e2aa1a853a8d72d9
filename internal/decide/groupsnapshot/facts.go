package groupsnapshot

import (
	"slices"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/decide/snapshot"
	"volplane.dev/volplane/internal/volume"
)

// yes is the value of the annotations that say something by being there.
const yes = "yes"

// DriverFacts is everything on which the decision about the driver's part of a VolumeGroupSnapshotContent depends.
type DriverFacts struct {
	Content *groupv1.VolumeGroupSnapshotContent
	// Class is the class that the content names, or nil.
	Class *groupv1.VolumeGroupSnapshotClass
	// Ours says that the content's driver is called by this process, and Takes that it takes, finds and deletes groups.
	Ours, Takes bool
	snapshot.Known
	// Options are those of the snapshotter, and Rivals the contents that may have the same name at the driver by them.
	Options snapshot.Options
	Rivals  []snapshot.Rival
	// Others are the names of other contents, of groups or of snapshots, that stand for the same group of the driver or
	// for a snapshot in it, in order.
	Others []string
	// Now is the time at which errors are noted.
	Now metav1.Time
}

// DriverPlan is the next step of a content at its driver, and its reason: AfterTake judges what
// CreateVolumeGroupSnapshot answers, AfterGet what GetVolumeGroupSnapshot does, AfterRemove what
// DeleteVolumeGroupSnapshot does.
type DriverPlan = snapshot.PlanFor[*groupv1.VolumeGroupSnapshotContent]

// HandleOf returns the driver's group that a content stands for; "" if it is not known.
func HandleOf(c *groupv1.VolumeGroupSnapshotContent) string {
	if isTaken(c) {
		return *c.Status.VolumeGroupSnapshotHandle
	}
	if given := c.Spec.Source.GroupSnapshotHandles; given != nil {
		return given.VolumeGroupSnapshotHandle
	}
	return ""
}

// MembersOf returns the handles of the snapshots in the group that a content stands for, as far as they are known.
func MembersOf(c *groupv1.VolumeGroupSnapshotContent) []string {
	if given := c.Spec.Source.GroupSnapshotHandles; given != nil {
		return given.VolumeSnapshotHandles
	}
	var out []string
	if c.Status != nil {
		for _, s := range c.Status.VolumeSnapshotInfoList {
			out = append(out, s.SnapshotHandle)
		}
	}
	return out
}

// OthersOf returns the names of contents, other than c and those of its own members, that stand for a group of c's
// driver or for a snapshot in it, in order.
func OthersOf(
	c *groupv1.VolumeGroupSnapshotContent, handle string, members []string,
	groups []*groupv1.VolumeGroupSnapshotContent, snapshots []*snapshotv1.VolumeSnapshotContent,
) []string {
	var names []string
	for _, other := range groups {
		if handle != "" && other.Name != c.Name && other.Spec.Driver == c.Spec.Driver && HandleOf(other) == handle {
			names = append(names, other.Name)
		}
	}
	for _, s := range snapshots {
		if s.Spec.Driver == c.Spec.Driver && slices.Contains(members, snapshot.HandleOf(s)) && groupOf(s) != handle {
			names = append(names, s.Name)
		}
	}
	slices.Sort(names)
	return names
}

// groupOf returns the handle of the group that the content of a snapshot says it is a member of.
func groupOf(s *snapshotv1.VolumeSnapshotContent) string {
	if group := s.Annotations[volume.AnnGroupSnapshotHandle]; group != "" {
		return group
	}
	return toldGroup(s)
}

// toldGroup returns the handle of the group that a snapshot is a part of, as its driver has said; "" if there is none.
func toldGroup(s *snapshotv1.VolumeSnapshotContent) string {
	if s.Status == nil {
		return ""
	}
	return ptr.Deref(s.Status.VolumeGroupSnapshotHandle, "")
}

// Home returns the node whose controllers call the driver for a content; "" if it belongs to none.
func Home(c *groupv1.VolumeGroupSnapshotContent) string {
	return c.Annotations[volume.AnnProvisionedOn]
}

// isTaken says whether a content names the group that its driver has taken for it.
func isTaken(c *groupv1.VolumeGroupSnapshotContent) bool {
	return c.Status != nil && ptr.Deref(c.Status.VolumeGroupSnapshotHandle, "") != ""
}

// isIntended says whether the driver may be taking the group.
func isIntended(c *groupv1.VolumeGroupSnapshotContent) bool {
	return c.Annotations[volume.AnnGroupCreating] == yes
}

// isValid says whether a content names exactly one source.
func isValid(c *groupv1.VolumeGroupSnapshotContent) bool {
	return (len(c.Spec.Source.VolumeHandles) == 0) != (c.Spec.Source.GroupSnapshotHandles == nil)
}

func invalid(c *groupv1.VolumeGroupSnapshotContent) string {
	return "content " + c.Name + " must name either volumes or a group of snapshots of the driver as its source"
}

// deletes says whether the driver's group is deleted with a content.
func deletes(c *groupv1.VolumeGroupSnapshotContent) bool {
	return c.Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentDelete
}

func isKept(c *groupv1.VolumeGroupSnapshotContent) bool {
	return slices.Contains(c.Finalizers, volume.FinalizerGroupContentBound)
}

func rest(r volume.Reason, next volume.Actor, message string) DriverPlan {
	return DriverPlan{Because: volume.Say(r, next, message)}
}
