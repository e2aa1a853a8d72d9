package snapshot

import (
	"cmp"
	"fmt"
	"slices"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/volume"
)

// maxPlaces is how many places a driver may name for a snapshot: they are all written to its content.
const maxPlaces = 1000

// Taken is a driver's description of a snapshot.
type Taken struct {
	Handle string
	// Source is the handle of its source volume; "" if the driver does not say.
	Source string
	// Created is the time at which it was taken, in nanoseconds since 1970, and Bytes the minimum size of a volume
	// restored from it; 0 if the driver does not say.
	Created, Bytes int64
	Ready          bool
	// Group is the handle of the driver's group that it belongs to, or "".
	Group string
	// Places are the segments in which it can be used; empty if it can be used in all, or if the driver does not say.
	Places []topology.Segment
}

// Answer is the result of a call of the driver about a snapshot.
type Answer = AnswerAbout[Taken]

// AnswerAbout is the result of a driver call. T describes what was taken: a snapshot, or a group of them.
type AnswerAbout[T any] struct {
	volume.Answer
	// Taken is what the driver has taken, unless the call failed.
	Taken T
	// TakenBy is the name of another content that refers to what was taken, or to a part of it; "" if there is none.
	TakenBy string
}

// NothingTaken says whether the driver has certainly taken nothing: neither in this call, nor, unless this is the first
// one, in an earlier one. The codes about the arguments prove it, since a driver must answer OK for the arguments of an
// existing snapshot. The codes about whether the driver serves the caller at all prove it only for this call.
func (a AnswerAbout[T]) NothingTaken(first bool) bool {
	switch {
	case a.Outcome != volume.Failed || a.Missing != "":
		return false
	case slices.Contains([]string{"InvalidArgument", "NotFound", "OutOfRange", "ResourceExhausted"}, a.Code):
		return true
	}
	return first && slices.Contains([]string{"AlreadyExists", "Unimplemented", "PermissionDenied", "Unauthenticated"},
		a.Code)
}

// AfterTake decides about the answer to CreateSnapshot.
func AfterTake(f DriverFacts, p DriverPlan, a Answer) DriverPlan {
	driver := f.Content.Spec.Driver
	if a.Outcome == volume.Done {
		return afterTaken(f, a, p.Request.Sources[0])
	}
	return Single().CallProblem(f, a.Answer, volume.ReasonSnapshotFailed,
		"driver "+driver+" did not take a snapshot of volume "+p.Request.Sources[0]+": "+a.Failure()).
		NotTaken(a.NothingTaken(p.First), Single().MayRelease(f.Content))
}

// afterTaken decides about a snapshot of a volume that the driver reports as taken.
func afterTaken(f DriverFacts, a Answer, source string) DriverPlan {
	driver, t := f.Content.Spec.Driver, a.Taken
	problem := ""
	switch {
	case t.Source != "" && t.Source != source:
		problem = "driver " + driver + " was asked for a snapshot of volume " + source + ", and names " + t.Handle +
			", which is a snapshot of volume " + t.Source
	case viewOf(f.Content).Taken && t.Handle != *f.Content.Status.SnapshotHandle:
		problem = "driver " + driver + " was asked whether snapshot " + *f.Content.Status.SnapshotHandle +
			" is ready, and names " + t.Handle
	case len(t.Places) > maxPlaces:
		problem = fmt.Sprintf("driver %s names %d places in which snapshot %s can be used: %d are allowed", driver,
			len(t.Places), t.Handle, maxPlaces)
	case a.TakenBy != "" && !viewOf(f.Content).Taken: // A content with a handle may share it with one made by hand.
		problem = "driver " + driver + " names snapshot " + t.Handle + ", which content " + a.TakenBy + " stands for"
	}
	if problem != "" {
		return Single().Problem(f, volume.Say(volume.ReasonSnapshotFailed, volume.Driver(driver), problem)).Again()
	}
	t.Created = cmp.Or(t.Created, f.Now.UnixNano())
	return noteTaken(f, t)
}

// noteTaken writes to a content what is known of its snapshot. A known time and a known size stay, as they do in the
// VolumeSnapshot, which would otherwise differ.
func noteTaken(f DriverFacts, t Taken) DriverPlan {
	c := f.Content.DeepCopy()
	s := &snapshotv1.VolumeSnapshotContentStatus{SnapshotHandle: &t.Handle, ReadyToUse: &t.Ready}
	if t.Created != 0 {
		s.CreationTime = &t.Created
	}
	if t.Bytes > 0 {
		s.RestoreSize = &t.Bytes
	}
	if t.Group != "" && c.Spec.Source.SnapshotHandle != nil {
		// Only a snapshot taken by another program can belong to a group that volplane did not request.
		s.VolumeGroupSnapshotHandle = &t.Group
	}
	if c.Status != nil {
		s.VolumeGroupSnapshotHandle = cmp.Or(c.Status.VolumeGroupSnapshotHandle, s.VolumeGroupSnapshotHandle)
		s.CreationTime = cmp.Or(c.Status.CreationTime, s.CreationTime)
		s.RestoreSize = cmp.Or(c.Status.RestoreSize, s.RestoreSize)
	}
	out := DriverPlan{Step: Note, Content: c}
	if affinity := topology.TermsOf(t.Places); len(affinity) > 0 && len(c.Spec.NodeAffinity) == 0 {
		c.Spec.NodeAffinity = affinity
		out.Placed = c.DeepCopy()
	}
	out.Because = volume.Say(volume.ReasonSnapshotReady, volume.Actor{},
		"snapshot "+t.Handle+" of driver "+c.Spec.Driver+" is ready to use")
	if !t.Ready {
		out.Repeat, out.Poll = !Single().MayRelease(c), true
		out.Because = volume.Say(volume.ReasonSnapshotPending, volume.Driver(c.Spec.Driver),
			"snapshot "+t.Handle+" of driver "+c.Spec.Driver+" is not ready to use yet")
	}
	if unchanged(c.Status, s) && out.Placed == nil {
		out.Step, out.Content = Rest, nil
	}
	c.Status = s
	return out
}

// unchanged says whether a status says the same of a snapshot, and no error.
func unchanged(a, b *snapshotv1.VolumeSnapshotContentStatus) bool {
	return a != nil && a.Error == nil && ptr.Equal(a.SnapshotHandle, b.SnapshotHandle) &&
		ptr.Equal(a.ReadyToUse, b.ReadyToUse) && ptr.Equal(a.CreationTime, b.CreationTime) &&
		ptr.Equal(a.RestoreSize, b.RestoreSize) && ptr.Equal(a.VolumeGroupSnapshotHandle, b.VolumeGroupSnapshotHandle)
}

// look queries the driver about a snapshot that existed before its content.
func look(f DriverFacts) DriverPlan {
	c := f.Content
	p := DriverPlan{
		Request: Request{Handle: *c.Spec.Source.SnapshotHandle},
		Because: volume.Say(volume.ReasonSnapshotPending, volume.Driver(c.Spec.Driver),
			"driver "+c.Spec.Driver+" is asked about snapshot "+*c.Spec.Source.SnapshotHandle),
	}
	switch {
	case f.Lists:
		// Drivers are written for upstream's sidecar, which lists: some report only in the list to which group a snapshot
		// belongs.
		p.Step = Look
	case f.Gets:
		p.Step = Get
	default:
		// The report of a driver that cannot be queried is trusted.
		return noteTaken(f, Taken{Handle: p.Request.Handle, Ready: true})
	}
	if f.Class != nil {
		var err error
		if p.Request.Secret, err = secretOf(f.Class, forLooking, c.Name, nil); err != nil {
			return Single().UserProblem(f, volume.ReasonSnapshotCheckFailed, err.Error())
		}
	}
	return p
}

// AfterLook decides about the answer to GetSnapshot or ListSnapshots. A snapshot that is not there has no handle.
func AfterLook(f DriverFacts, p DriverPlan, a Answer) DriverPlan {
	driver := f.Content.Spec.Driver
	answer := a.Answer
	switch {
	case a.Outcome == volume.Done && a.Taken.Handle == p.Request.Handle:
		return noteTaken(f, a.Taken)
	case a.Outcome == volume.Done && a.Taken.Handle != "":
		answer.Code, answer.Text = "", "the driver answers about snapshot "+a.Taken.Handle
	case a.Outcome == volume.Done:
		answer.Code, answer.Text = "NotFound", "NotFound: the driver has no such snapshot"
	}
	return Single().CallProblem(f, answer, volume.ReasonSnapshotCheckFailed,
		"driver "+driver+" was asked about snapshot "+p.Request.Handle+": "+answer.Failure()).Again()
}
