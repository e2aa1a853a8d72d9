package groupsnapshot

import (
	"encoding/json"
	"slices"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/decide/snapshot"
	"volplane.dev/volplane/internal/volume"
)

const (
	// kindGroup begins the keys of what a driver is told of a group, and namePrefix usually the name under which it is
	// asked to take it.
	kindGroup, namePrefix = "volumegroupsnapshot", "groupsnapshot"
	// forGetting is the purpose of the Secret of a class for calls that look for a group.
	forGetting = "group-snapshotter-get"
	// capability is what a driver needs to take, find and delete groups.
	capability = "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT"
)

// Driver decides about the driver's part of a content. It is called again after each step.
func Driver(f DriverFacts) DriverPlan {
	c := f.Content
	driver := c.Spec.Driver
	switch {
	case c.DeletionTimestamp != nil && !isKept(c):
		return rest(volume.ReasonTerminating, volume.APIServer(),
			"content "+c.Name+" is being deleted, and no driver is asked")
	case f.Options.Rest && isGoing(c) && volume.IsLost(c.Annotations, Home(c)):
		p := release(c, "the driver's snapshot of content "+c.Name+" was lost with node "+Home(c)+
			", and driver "+driver+" has not deleted anything")
		p.Because.Reason, p.Warn, p.Tell = volume.ReasonNodeGone, true, true
		return p
	case !f.Ours:
		return rest(volume.ReasonDriverMissing, volume.Driver(driver), "driver "+driver+" has not registered")
	case !isValid(c):
		return rest(volume.ReasonGroupContentInvalid, volume.User(), invalid(c))
	case isGoing(c):
		return remove(f)
	}
	return keep(f)
}

// keep decides about a content that is not being deleted, or that stays until its group snapshot is deleted.
func keep(f DriverFacts) DriverPlan {
	c := f.Content
	switch {
	case isIntended(c) && isTaken(c):
		return DriverPlan{
			Step: snapshot.Forget, Content: snapshot.Noted(c, volume.AnnGroupCreating, ""), Because: volume.Say(
				volume.ReasonGroupPending, volume.Driver(c.Spec.Driver),
				"content "+c.Name+" names the driver's group of snapshots"),
		}
	case c.Status != nil && ptr.Deref(c.Status.ReadyToUse, false) && c.DeletionTimestamp != nil:
		return rest(volume.ReasonTerminating, volume.Controller("snapshot-controller"), "content "+c.Name+
			" is being deleted; it stays until group snapshot "+c.Spec.VolumeGroupSnapshotRef.Name+" is deleted")
	case c.Status != nil && ptr.Deref(c.Status.ReadyToUse, false):
		return rest(volume.ReasonGroupReady, volume.Actor{}, "content "+c.Name+" is ready to use")
	case c.Spec.Source.GroupSnapshotHandles != nil:
		return look(f)
	case c.Spec.VolumeGroupSnapshotRef.UID == "":
		return rest(volume.ReasonGroupContentInvalid, volume.Controller("snapshot-controller"),
			"content "+c.Name+" is bound to no group snapshot, so what the driver takes would have no name")
	}
	return record(f)
}

// record writes the intent to take a group, unless it is there, and has it taken. A group that is taken needs no
// intent: the driver is asked with the same arguments whether it is ready.
func record(f DriverFacts) DriverPlan {
	c := f.Content
	parameters, problem := f.parameters()
	if problem.Reason != "" {
		return f.failed(problem.Reason, problem.Next, problem.Message)
	}
	asked := f.Options.Ask(c, c.Spec.VolumeGroupSnapshotRef, kindGroup, namePrefix, parameters)
	rival := snapshot.Rival{Content: c.Name, Name: asked.Name, Intended: isIntended(c)}
	if other := snapshot.Blocks(rival, f.Rivals); other != "" && !isTaken(c) {
		return f.failed(volume.ReasonGroupFailed, volume.User(), snapshot.SameName(asked.Name, other)).Again()
	}
	p := DriverPlan{
		Step: snapshot.Take, First: !isIntended(c) && !isTaken(c),
		Request: snapshot.Request{
			Name: asked.Name, Sources: c.Spec.Source.VolumeHandles,
			Secret: takingSecret(c),
		},
		Because: volume.Sayf(volume.ReasonGroupPending, volume.Driver(c.Spec.Driver),
			"driver %s is asked for snapshots of %d volumes at one moment", c.Spec.Driver, len(c.Spec.Source.VolumeHandles)),
	}
	if json.Unmarshal([]byte(asked.Parameters), &p.Request.Parameters) != nil {
		return f.failed(volume.ReasonGroupFailed, volume.User(),
			"annotation "+volume.AnnSnapshotParameters+" of content "+c.Name+" is no JSON object of texts")
	}
	next := snapshot.NoteAsked(asked, c)
	if !isTaken(c) {
		next = snapshot.Noted(next, volume.AnnGroupCreating, yes)
	}
	if !isKept(next) {
		next.Finalizers = append(slices.Clone(next.Finalizers), volume.FinalizerGroupContentBound)
	}
	if snapshot.Changed(c, next) {
		p.Step, p.Content = snapshot.Record, next
	}
	return p
}

// parameters returns the parameters for the driver as JSON, as they were written down or as the class has them now, or
// why there are none.
func (f DriverFacts) parameters() (parameters string, problem volume.Because) {
	c := f.Content
	parameters, recorded := c.Annotations[volume.AnnSnapshotParameters]
	switch {
	case !f.Takes:
		return "", volume.Say(volume.ReasonGroupFailed, volume.User(),
			"driver "+c.Spec.Driver+" cannot take groups of snapshots: it does not have the capability "+capability)
	case recorded:
		return parameters, problem
	case f.Class == nil:
		return "", volume.Say(volume.ReasonGroupFailed, volume.User(), "VolumeGroupSnapshotClass "+
			ptr.Deref(c.Spec.VolumeGroupSnapshotClassName, "")+" of content "+c.Name+" does not exist")
	case f.Class.Driver != c.Spec.Driver:
		return "", volume.Say(volume.ReasonGroupFailed, volume.User(), "VolumeGroupSnapshotClass "+f.Class.Name+
			" is of driver "+f.Class.Driver+", and content "+c.Name+" of driver "+c.Spec.Driver)
	}
	parameters, err := snapshot.ParametersOf(f.Class.Name, f.Class.Parameters)
	if err != nil {
		return "", volume.Say(volume.ReasonGroupFailed, volume.User(), err.Error())
	}
	return parameters, problem
}

// takingSecret returns the Secret for taking and deleting the driver's group.
func takingSecret(c *groupv1.VolumeGroupSnapshotContent) *corev1.SecretReference {
	return snapshot.RecordedSecret(c, volume.AnnGroupSecretName, volume.AnnGroupSecretNamespace)
}

// look has the driver say how a group is that somebody else has taken.
func look(f DriverFacts) DriverPlan {
	c, handle := f.Content, f.Content.Spec.Source.GroupSnapshotHandles.VolumeGroupSnapshotHandle
	if !f.Takes {
		return f.failed(volume.ReasonGroupCheckFailed, volume.User(),
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
			return f.failed(volume.ReasonGroupCheckFailed, volume.User(), err.Error())
		}
	}
	return p
}

// isGoing says whether a content is being deleted and may be let go: somebody has deleted its group snapshot, or it
// never had one.
func isGoing(c *groupv1.VolumeGroupSnapshotContent) bool {
	return c.DeletionTimestamp != nil && (c.Annotations[volume.AnnGroupDeleting] == yes ||
		c.Spec.Source.GroupSnapshotHandles != nil && c.Spec.VolumeGroupSnapshotRef.UID == "")
}

// remove decides about a content that is going. A group that the driver may be taking is settled first: only
// then it is known what to delete.
func remove(f DriverFacts) DriverPlan {
	c, handle := f.Content, HandleOf(f.Content)
	driver := c.Spec.Driver
	switch {
	case isIntended(c) && handle == "" && f.Refused:
		return release(c, "driver "+driver+" has taken no group of snapshots for content "+c.Name)
	case isIntended(c) && handle == "":
		return record(f)
	case handle == "":
		return release(c, "driver "+driver+" was never asked for the group of content "+c.Name)
	case !deletes(c):
		return release(c, "the driver's group of content "+c.Name+" is retained")
	case f.Removed:
		return release(c, "driver "+driver+" has deleted group "+handle)
	case len(f.Others) > 0:
		p := release(c, "group "+handle+" of driver "+driver+" is kept: content "+f.Others[0]+
			" names it or a snapshot in it, too")
		p.Because.Reason, p.Warn, p.Tell = volume.ReasonRetained, true, true
		return p
	case !f.Takes:
		return f.failed(volume.ReasonGroupDeleteFailed, volume.User(),
			"driver "+driver+" cannot delete groups of snapshots: it does not have the capability "+capability)
	}
	return DriverPlan{
		Step: snapshot.Remove, Request: snapshot.Request{Handle: handle, Members: MembersOf(c), Secret: takingSecret(c)},
		Because: volume.Say(volume.ReasonTerminating, volume.Driver(driver),
			"driver "+driver+" is asked to delete group "+handle),
	}
}

// release takes the finalizer from a content, and with it the intent, if it has one.
func release(c *groupv1.VolumeGroupSnapshotContent, message string) DriverPlan {
	next := snapshot.Noted(c, volume.AnnGroupCreating, "")
	next.Finalizers = volume.Without(next.Finalizers, volume.FinalizerGroupContentBound)
	return DriverPlan{Step: snapshot.Release, Content: next, Because: volume.Say(volume.ReasonTerminating, volume.Actor{},
		message)}
}

// failed notes an error in the status of a content, unless it is there already.
func (f DriverFacts) failed(r volume.Reason, next volume.Actor, message string) DriverPlan {
	return f.tell(volume.Say(r, next, message))
}

// callFailed is failed after a call of the driver.
func (f DriverFacts) callFailed(a volume.Answer, r volume.Reason, message string) DriverPlan {
	return f.tell(a.Because(r, volume.Driver(f.Content.Spec.Driver), message))
}

// tell returns the plan that notes an explanation as the error of the content.
func (f DriverFacts) tell(b volume.Because) DriverPlan {
	return snapshot.Failed(f.Content, f.Now, b,
		func(c *groupv1.VolumeGroupSnapshotContent) (problem **snapshotv1.VolumeSnapshotError, ready **bool) {
			if c.Status == nil {
				c.Status = &groupv1.VolumeGroupSnapshotContentStatus{}
			}
			return &c.Status.Error, &c.Status.ReadyToUse
		})
}

// RivalsOf returns the contents of a driver for which nothing is taken yet.
func RivalsOf(o snapshot.Options, driver string, all []*groupv1.VolumeGroupSnapshotContent) []snapshot.Rival {
	var out []snapshot.Rival
	for _, c := range all {
		if c.Spec.Driver == driver && c.Spec.Source.GroupSnapshotHandles == nil && !isTaken(c) {
			asked := o.Ask(c, c.Spec.VolumeGroupSnapshotRef, kindGroup, namePrefix, "")
			out = append(out, snapshot.Rival{Content: c.Name, Name: asked.Name, Intended: isIntended(c)})
		}
	}
	return out
}
