package groupsnapshot

import (
	"slices"
	"strings"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/decide/snapshot"
	"volplane.dev/volplane/internal/volume"
)

// Taken describes a group of snapshots as its driver does. Each member is a snapshot of one volume, and each volume
// that was named has one: package csi refuses other answers.
type Taken struct {
	Handle string
	// Created is the time at which it was taken, in nanoseconds since 1970; 0 if the driver does not say.
	Created int64
	Ready   bool
	Members []snapshot.Taken
}

// Answer is the result of a call of the driver about a group.
type Answer = snapshot.AnswerAbout[Taken]

// AfterTake decides about the answer to CreateVolumeGroupSnapshot.
func AfterTake(f DriverFacts, p DriverPlan, a Answer) DriverPlan {
	c, driver := f.Content, f.Content.Spec.Driver
	if a.Outcome == volume.Done {
		return afterTaken(f, a)
	}
	return f.callFailed(a.Answer, volume.ReasonGroupFailed,
		"driver "+driver+" took no group of snapshots for content "+c.Name+": "+a.Told()).
		NotTaken(a.NothingTaken(p.First), isGoing(c))
}

// afterTaken decides about a group that the driver says it has taken.
func afterTaken(f DriverFacts, a Answer) DriverPlan {
	c, driver, t := f.Content, f.Content.Spec.Driver, a.Taken
	problem := ""
	switch {
	case isTaken(c) && (t.Handle != HandleOf(c) || !slices.Equal(infosOf(c), handlesOf(t))):
		problem = "driver " + driver + " was asked whether group " + HandleOf(c) + " is ready, and names group " + t.Handle +
			" with other snapshots"
	case a.TakenBy != "" && !isTaken(c):
		problem = "driver " + driver + " names group " + t.Handle + ", and content " + a.TakenBy +
			" stands for it or for a snapshot in it"
	}
	if problem != "" {
		return f.failed(volume.ReasonGroupFailed, volume.Driver(driver), problem).Again()
	}
	return f.taken(t)
}

// infosOf returns the snapshots in the status of a content, and handlesOf those of an answer, as "VOLUME SNAPSHOT", in
// order.
func infosOf(c *groupv1.VolumeGroupSnapshotContent) []string {
	var out []string
	for _, s := range c.Status.VolumeSnapshotInfoList {
		out = append(out, s.VolumeHandle+" "+s.SnapshotHandle)
	}
	slices.Sort(out)
	return out
}

func handlesOf(t Taken) []string {
	var out []string
	for _, s := range t.Members {
		out = append(out, s.Source+" "+s.Handle)
	}
	slices.Sort(out)
	return out
}

// taken writes to a content what is known of its group. A time that is known stays, as it does in the group snapshot.
// Of a group that somebody else has taken the members are in the source of the content, and are not repeated.
func (f DriverFacts) taken(t Taken) DriverPlan {
	c := f.Content.DeepCopy()
	s := &groupv1.VolumeGroupSnapshotContentStatus{
		VolumeGroupSnapshotHandle: &t.Handle, ReadyToUse: &t.Ready, CreationTime: createdAt(f, t),
	}
	if c.Spec.Source.GroupSnapshotHandles == nil {
		for _, m := range t.Members {
			s.VolumeSnapshotInfoList = append(s.VolumeSnapshotInfoList, info(m))
		}
		slices.SortFunc(s.VolumeSnapshotInfoList, func(a, b groupv1.VolumeSnapshotInfo) int {
			return strings.Compare(a.VolumeHandle, b.VolumeHandle)
		})
	}
	out := DriverPlan{Step: snapshot.Note, Content: c, Because: volume.Say(volume.ReasonGroupReady, volume.Actor{},
		"group "+t.Handle+" of driver "+c.Spec.Driver+" is ready to use")}
	if !t.Ready {
		out.Repeat, out.Poll = !isGoing(c), true
		out.Because = volume.Say(volume.ReasonGroupPending, volume.Driver(c.Spec.Driver),
			"group "+t.Handle+" of driver "+c.Spec.Driver+" is not ready to use yet")
	}
	if equality.Semantic.DeepEqual(c.Status, s) {
		out.Step, out.Content = snapshot.Rest, nil
	}
	c.Status = s
	return out
}

// createdAt returns the time at which a group was taken, in whole seconds: the API has no others.
func createdAt(f DriverFacts, t Taken) *metav1.Time {
	const second = 1e9
	switch {
	case f.Content.Status != nil && f.Content.Status.CreationTime != nil:
		return f.Content.Status.CreationTime
	case t.Created != 0:
		return ptr.To(metav1.Unix(t.Created/second, 0))
	}
	return ptr.To(metav1.Unix(f.Now.Unix(), 0))
}

func info(m snapshot.Taken) groupv1.VolumeSnapshotInfo {
	out := groupv1.VolumeSnapshotInfo{VolumeHandle: m.Source, SnapshotHandle: m.Handle, ReadyToUse: &m.Ready}
	if m.Created != 0 {
		out.CreationTime = &m.Created
	}
	if m.Bytes > 0 {
		out.RestoreSize = &m.Bytes
	}
	return out
}

// AfterGet decides about the answer to GetVolumeGroupSnapshot, which is about the group that was asked for.
func AfterGet(f DriverFacts, p DriverPlan, a Answer) DriverPlan {
	if a.Outcome == volume.Done {
		return f.taken(a.Taken)
	}
	driver := f.Content.Spec.Driver
	return f.callFailed(a.Answer, volume.ReasonGroupCheckFailed,
		"driver "+driver+" was asked about group "+p.Request.Handle+": "+a.Told()).Again()
}

// AfterRemove decides about the answer to DeleteVolumeGroupSnapshot.
func AfterRemove(f DriverFacts, p DriverPlan, a Answer) DriverPlan {
	driver := f.Content.Spec.Driver
	if a.Outcome == volume.Done {
		return release(f.Content, "driver "+driver+" has deleted group "+p.Request.Handle)
	}
	return f.callFailed(a.Answer, volume.ReasonGroupDeleteFailed,
		"driver "+driver+" did not delete group "+p.Request.Handle+": "+a.Told()).Again()
}

// SecretUnread is the plan for a call that was not made because its Secret could not be read.
func SecretUnread(f DriverFacts, a volume.Answer) DriverPlan {
	return f.callFailed(a, volume.ReasonGroupFailed,
		"driver "+f.Content.Spec.Driver+" was not asked: "+a.Text).Again()
}
