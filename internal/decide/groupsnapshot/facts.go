package groupsnapshot

import (
	"maps"
	"slices"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
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
	// Refused says that the driver's last answer was that it has not taken the group, and proves it.
	Refused bool
	// Removed says that the driver has deleted the group, and that this is not written yet.
	Removed bool
	// Others are the names of other contents, of groups or of snapshots, that stand for the same group of the driver or
	// for a snapshot in it, in order.
	Others []string
	// Now is the time at which errors are noted.
	Now metav1.Time
}

// DriverStep is the next step for the driver's part of a content.
type DriverStep int

const (
	// Rest does nothing now.
	Rest DriverStep = iota
	// Record writes DriverPlan.Content, the intent to take the group, and goes on with Take.
	Record
	// Take calls CreateVolumeGroupSnapshot; AfterTake judges the answer.
	Take
	// Get calls GetVolumeGroupSnapshot; AfterGet judges the answer.
	Get
	// Note writes the status of DriverPlan.Content.
	Note
	// Forget writes DriverPlan.Content, which has no intent any more.
	Forget
	// Remove calls DeleteVolumeGroupSnapshot; AfterRemove judges the answer.
	Remove
	// Release writes DriverPlan.Content, which the driver does not keep any more.
	Release
)

// Request is what a driver is asked for.
type Request struct {
	// Name is the name of the group that is to be taken of the volumes with the handles Sources.
	Name       string
	Sources    []string
	Parameters map[string]string
	// Handle is the group that is looked for or deleted, and Members are the handles of its snapshots.
	Handle  string
	Members []string
	// Secret is for the call, or nil.
	Secret *corev1.SecretReference
}

// DriverPlan is the next step of a content at its driver, and its reason.
type DriverPlan struct {
	Step    DriverStep
	Content *groupv1.VolumeGroupSnapshotContent
	Request Request
	Because volume.Because
	// Warn says that something is wrong, and Tell that the reason is recorded as an event with the step.
	Warn, Tell bool
	// Repeat says that the call is made again after a back-off, and Poll that this is no failure.
	Repeat, Poll bool
	// First says that no earlier call can have taken the group, and Refused that the driver has certainly not.
	First, Refused bool
}

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
	if group := s.Annotations[volume.AnnGroupSnapshotHandle]; group != "" || s.Status == nil {
		return group
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

// deletes says whether the driver's group is deleted with a content.
func deletes(c *groupv1.VolumeGroupSnapshotContent) bool {
	return c.Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentDelete
}

func isKept(c *groupv1.VolumeGroupSnapshotContent) bool {
	return slices.Contains(c.Finalizers, volume.FinalizerGroupContentBound)
}

// problemOf returns the error in the status of a content.
func problemOf(c *groupv1.VolumeGroupSnapshotContent) string {
	if c.Status == nil || c.Status.Error == nil {
		return ""
	}
	return ptr.Deref(c.Status.Error.Message, "")
}

// noted returns a copy of a content with annotations; an empty value takes one away.
func noted(c *groupv1.VolumeGroupSnapshotContent, all map[string]string) *groupv1.VolumeGroupSnapshotContent {
	c = c.DeepCopy()
	if c.Annotations == nil {
		c.Annotations = map[string]string{}
	}
	maps.Copy(c.Annotations, all)
	maps.DeleteFunc(c.Annotations, func(key, value string) bool { _, set := all[key]; return set && value == "" })
	return c
}

func because(r volume.Reason, next, message string) volume.Because {
	return volume.Because{Reason: r, Message: message, Next: next}
}

func rest(r volume.Reason, next, message string) DriverPlan {
	return DriverPlan{Because: because(r, next, message)}
}
