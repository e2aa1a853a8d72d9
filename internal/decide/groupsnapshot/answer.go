package groupsnapshot

import (
	"encoding/json"
	"slices"
	"strings"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/decide/snapshot"
	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/volume"
)

// Taken describes a group of snapshots as its driver does. Each member is a snapshot of one volume, and each requested
// volume has one: package csi refuses other answers.
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
	return Groups().CallProblem(f, a.Answer, volume.ReasonGroupFailed,
		"driver "+driver+" did not take a group of snapshots for content "+c.Name+": "+a.Failure()).
		NotTaken(a.NothingTaken(p.First), Groups().MayRelease(c))
}

// afterTaken decides about a group that the driver reports as taken.
func afterTaken(f DriverFacts, a Answer) DriverPlan {
	c, driver, t := f.Content, f.Content.Spec.Driver, a.Taken
	problem := ""
	switch {
	case viewOf(c).Taken && (t.Handle != HandleOf(c) || !slices.Equal(infosOf(c), handlesOf(t))):
		problem = "driver " + driver + " was asked whether group " + HandleOf(c) + " is ready, and names group " + t.Handle +
			" with other snapshots"
	case a.TakenBy != "" && !viewOf(c).Taken:
		problem = "driver " + driver + " names group " + t.Handle + ", and content " + a.TakenBy +
			" stands for it or for a snapshot in it"
	}
	if problem != "" {
		return Groups().Problem(f, volume.Say(volume.ReasonGroupFailed, volume.Driver(driver), problem)).Again()
	}
	return noteTaken(f, t)
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

// noteTaken writes to a content what is known of its group. A known time stays, as it does in the group snapshot. The
// members of a group that existed before its content are in the source of the content, and are not repeated.
func noteTaken(f DriverFacts, t Taken) DriverPlan {
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
	places := placesOf(t)
	if s.VolumeSnapshotInfoList != nil && places != "" && c.Annotations[volume.AnnSnapshotPlaces] == "" {
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, volume.AnnSnapshotPlaces, places)
		out.Placed = c.DeepCopy()
	}
	if !t.Ready {
		out.Repeat, out.Poll = !Groups().MayRelease(c), true
		out.Because = volume.Say(volume.ReasonGroupPending, volume.Driver(c.Spec.Driver),
			"group "+t.Handle+" of driver "+c.Spec.Driver+" is not ready to use yet")
	}
	if equality.Semantic.DeepEqual(c.Status, s) && out.Placed == nil {
		out.Step, out.Content = snapshot.Rest, nil
	}
	c.Status = s
	return out
}

// maxPlaces is how long the places of a group may be. All annotations of an object share 256 KiB.
const maxPlaces = 128 << 10

// placesOf returns, as JSON, from where the snapshots of a group can be used, by the volume; "" if from everywhere, or
// if that is too much to be recorded: then the driver refuses what cannot be.
func placesOf(t Taken) string {
	places := map[string][]corev1.TopologySelectorTerm{}
	for _, m := range t.Members {
		if terms := topology.TermsOf(m.Places); len(terms) > 0 {
			places[m.Source] = terms
		}
	}
	text, _ := json.Marshal(places) // strings always marshal
	if len(places) == 0 || len(text) > maxPlaces {
		return ""
	}
	return string(text)
}

// affinityOf returns from where the snapshot of a volume in a group can be used; nil for everywhere.
func affinityOf(c *groupv1.VolumeGroupSnapshotContent, handle string) []corev1.TopologySelectorTerm {
	text, places := c.Annotations[volume.AnnSnapshotPlaces], map[string][]corev1.TopologySelectorTerm{}
	if json.Unmarshal([]byte(text), &places) != nil {
		return nil
	}
	return places[handle]
}

// createdAt returns the time at which a group was taken, in whole seconds: the API has no fractions.
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

// look queries the driver about a group that existed before its content.
func look(f DriverFacts) DriverPlan {
	c, handle := f.Content, f.Content.Spec.Source.GroupSnapshotHandles.VolumeGroupSnapshotHandle
	if !f.Takes {
		return Groups().UserProblem(f, volume.ReasonGroupCheckFailed,
			"driver "+c.Spec.Driver+" cannot be asked about groups of snapshots: it does not have the capability "+capability)
	}
	p := DriverPlan{
		Step: snapshot.Get, Request: snapshot.Request{Handle: handle, Members: MembersOf(c)},
		Because: volume.Say(volume.ReasonGroupPending, volume.Driver(c.Spec.Driver),
			"driver "+c.Spec.Driver+" is asked about group "+handle),
	}
	if f.Class != nil {
		tokens := map[string]string{"volumegroupsnapshotcontent.name": c.Name}
		var err error
		if p.Request.Secret, err = snapshot.SecretOf(f.Class.Name, forGetting, f.Class.Parameters, tokens,
			tokens); err != nil {
			return Groups().UserProblem(f, volume.ReasonGroupCheckFailed, err.Error())
		}
	}
	return p
}

// AfterGet decides about the answer to GetVolumeGroupSnapshot, which is about the requested group.
func AfterGet(f DriverFacts, p DriverPlan, a Answer) DriverPlan {
	if a.Outcome == volume.Done {
		return noteTaken(f, a.Taken)
	}
	driver := f.Content.Spec.Driver
	return Groups().CallProblem(f, a.Answer, volume.ReasonGroupCheckFailed,
		"driver "+driver+" was asked about group "+p.Request.Handle+": "+a.Failure()).Again()
}
