package snapshot

import (
	"encoding/json"
	"slices"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/volume"
)

// kindSnapshot begins the keys of what a driver is told of a snapshot, and namePrefix usually the name under which it
// is asked to take it.
const kindSnapshot, namePrefix = "volumesnapshot", "snapshot"

// DriverFacts is everything on which the decision about the driver's part of a VolumeSnapshotContent depends.
type DriverFacts struct {
	Content *snapshotv1.VolumeSnapshotContent
	// Class is the class that the content names, or nil.
	Class *snapshotv1.VolumeSnapshotClass
	// Ours says that the content's driver is called by this process; Takes, Lists and Gets what it can: take and delete
	// snapshots, list them, and look for one.
	Ours, Takes, Lists, Gets bool
	Known
	// Options are those of the snapshotter, and Rivals the contents that may have the same name at the driver by them.
	Options Options
	Rivals  []Rival
	// Others are the names of other contents of the driver that stand for the same snapshot of it, in order.
	Others []string
	// Now is the time at which errors are noted.
	Now metav1.Time
}

// DriverPlan is the next step of a content at its driver, and its reason: AfterTake judges what CreateSnapshot answers,
// AfterLook what GetSnapshot or ListSnapshots does, AfterRemove what DeleteSnapshot does.
type DriverPlan = PlanFor[*snapshotv1.VolumeSnapshotContent]

// HandleOf returns the driver's snapshot that a content stands for; "" if it is not known.
func HandleOf(c *snapshotv1.VolumeSnapshotContent) string {
	if c.Status != nil && c.Status.SnapshotHandle != nil {
		return *c.Status.SnapshotHandle
	}
	return ptr.Deref(c.Spec.Source.SnapshotHandle, "")
}

// isTaken says whether a content names the snapshot that its driver has taken for it.
func isTaken(c *snapshotv1.VolumeSnapshotContent) bool {
	return c.Status != nil && c.Status.SnapshotHandle != nil
}

// Home returns the node whose controllers call the driver for a content; "" if it belongs to none.
func Home(c *snapshotv1.VolumeSnapshotContent) string { return c.Annotations[volume.AnnProvisionedOn] }

// isMember says whether a content stands for a snapshot that is taken and deleted with a group.
func isMember(c *snapshotv1.VolumeSnapshotContent) bool {
	return c.Annotations[volume.AnnGroupSnapshotHandle] != "" && c.Spec.Source.VolumeHandle != nil
}

// isIntended says whether the driver may be taking the snapshot.
func isIntended(c *snapshotv1.VolumeSnapshotContent) bool {
	return c.Annotations[volume.AnnSnapshotCreating] == yes
}

func rest(r volume.Reason, next volume.Actor, message string) DriverPlan {
	return DriverPlan{Because: volume.Say(r, next, message)}
}

// Driver decides about the driver's part of a content. It is called again after each step.
func Driver(f DriverFacts) DriverPlan {
	c := f.Content
	driver := c.Spec.Driver
	switch {
	case c.DeletionTimestamp != nil && !has(c, volume.FinalizerContentBound):
		return rest(volume.ReasonTerminating, volume.APIServer(),
			"content "+c.Name+" is being deleted, and no driver is asked")
	case f.Options.Rest && isGoing(c) && volume.IsLost(c.Annotations, Home(c)):
		p := release(c, "the driver's snapshot of content "+c.Name+" was lost with node "+Home(c)+
			", and driver "+driver+" has not deleted anything")
		p.Because.Reason, p.Warn, p.Tell = volume.ReasonNodeGone, true, true
		return p
	case !f.Ours:
		return rest(volume.ReasonDriverMissing, volume.Driver(driver), "driver "+driver+" has not registered")
	case isMember(c) && c.DeletionTimestamp == nil:
		return rest(volume.ReasonSnapshotPending, groupController(), "content "+c.Name+" is a member of a group")
	case !isValid(c):
		return rest(volume.ReasonContentInvalid, volume.User(), invalid(c))
	case isGoing(c):
		return remove(f)
	}
	return keep(f)
}

// keep decides about a content that is not being deleted, or that stays until its snapshot is deleted.
func keep(f DriverFacts) DriverPlan {
	c := f.Content
	switch {
	case isIntended(c) && isTaken(c):
		return DriverPlan{Step: Forget, Content: Noted(c, volume.AnnSnapshotCreating, ""), Because: volume.Say(
			volume.ReasonSnapshotPending, volume.Driver(c.Spec.Driver),
			"content "+c.Name+" names the driver's snapshot")}
	case c.Status != nil && ptr.Deref(c.Status.ReadyToUse, false) && c.DeletionTimestamp != nil:
		return rest(volume.ReasonTerminating, controller(),
			"content "+c.Name+" is being deleted; it stays until snapshot "+c.Spec.VolumeSnapshotRef.Name+" is deleted")
	case c.Status != nil && ptr.Deref(c.Status.ReadyToUse, false):
		return rest(volume.ReasonSnapshotReady, volume.Actor{}, "content "+c.Name+" is ready to use")
	case c.Spec.Source.SnapshotHandle != nil:
		return look(f)
	}
	return record(f)
}

// record writes the intent to take a snapshot, unless it is there, and has it taken. A snapshot that is taken needs no
// intent: the driver is asked with the same arguments whether it is ready.
func record(f DriverFacts) DriverPlan {
	c := f.Content
	if c.Spec.VolumeSnapshotRef.UID == "" {
		// The driver would take all such contents for one: they would ask for a snapshot of the same name.
		return f.failed(volume.ReasonSnapshotFailed, volume.User(), "content "+c.Name+
			" is for no snapshot: its volumeSnapshotRef has no uid, of which the snapshot's name at the driver is made")
	}
	parameters, problem := f.parameters()
	if problem.Reason != "" {
		return f.failed(problem.Reason, problem.Next, problem.Message)
	}
	asked := f.Options.Ask(c, c.Spec.VolumeSnapshotRef, kindSnapshot, namePrefix, parameters)
	if other := Blocks(Rival{c.Name, asked.Name, isIntended(c)}, f.Rivals); other != "" && !isTaken(c) {
		return f.failed(volume.ReasonSnapshotFailed, volume.User(), SameName(asked.Name, other)).Again()
	}
	p := DriverPlan{
		Step: Take, First: !isIntended(c) && !isTaken(c),
		Request: Request{
			Name: asked.Name, Sources: []string{*c.Spec.Source.VolumeHandle},
			Secret: takingSecret(c),
		},
		Because: volume.Say(volume.ReasonSnapshotPending, volume.Driver(c.Spec.Driver),
			"driver "+c.Spec.Driver+" is asked for a snapshot of volume "+*c.Spec.Source.VolumeHandle),
	}
	if json.Unmarshal([]byte(asked.Parameters), &p.Request.Parameters) != nil {
		return f.failed(volume.ReasonSnapshotFailed, volume.User(),
			"annotation "+volume.AnnSnapshotParameters+" of content "+c.Name+" is no JSON object of texts")
	}
	next := NoteAsked(asked, c)
	if !isTaken(c) {
		next = Noted(next, volume.AnnSnapshotCreating, yes)
	}
	with(next, volume.FinalizerContentBound)
	if Changed(c, next) {
		p.Step, p.Content = Record, next
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
		return "", volume.Say(volume.ReasonSnapshotFailed, volume.User(),
			"driver "+c.Spec.Driver+" cannot take snapshots: it does not have the capability CREATE_DELETE_SNAPSHOT")
	case recorded:
		return parameters, problem
	case f.Class == nil:
		return "", volume.Say(volume.ReasonSnapshotClassFailed, volume.User(),
			"VolumeSnapshotClass "+ptr.Deref(c.Spec.VolumeSnapshotClassName, "")+" of content "+c.Name+" does not exist")
	case f.Class.Driver != c.Spec.Driver:
		return "", volume.Say(volume.ReasonSnapshotDriverMismatch, volume.User(), "VolumeSnapshotClass "+f.Class.Name+
			" is of driver "+f.Class.Driver+", and content "+c.Name+" of driver "+c.Spec.Driver)
	}
	parameters, err := ParametersOf(f.Class.Name, f.Class.Parameters)
	if err != nil {
		return "", volume.Say(volume.ReasonSnapshotFailed, volume.User(), err.Error())
	}
	return parameters, problem
}

// takingSecret returns the Secret for taking and deleting the driver's snapshot.
func takingSecret(c *snapshotv1.VolumeSnapshotContent) *corev1.SecretReference {
	return RecordedSecret(c, volume.AnnSnapshotSecretName, volume.AnnSnapshotSecretNamespace)
}

// look has the driver say how a snapshot is that somebody else has taken.
func look(f DriverFacts) DriverPlan {
	c := f.Content
	p := DriverPlan{
		Request: Request{Handle: *c.Spec.Source.SnapshotHandle},
		Because: volume.Say(volume.ReasonSnapshotPending, volume.Driver(c.Spec.Driver),
			"driver "+c.Spec.Driver+" is asked about snapshot "+*c.Spec.Source.SnapshotHandle),
	}
	switch {
	case f.Lists:
		// Drivers are made for upstream's sidecar, which lists: some tell only then of which group a snapshot is a part.
		p.Step = Look
	case f.Gets:
		p.Step = Get
	default:
		// A driver that cannot be asked is believed.
		return f.taken(Taken{Handle: p.Request.Handle, Ready: true})
	}
	if f.Class != nil {
		var err error
		if p.Request.Secret, err = secretOf(f.Class, forLooking, c.Name, nil); err != nil {
			return f.failed(volume.ReasonSnapshotCheckFailed, volume.User(), err.Error())
		}
	}
	return p
}

// isGoing says whether a content is being deleted and may be let go: somebody has deleted its snapshot, or it never
// had one.
func isGoing(c *snapshotv1.VolumeSnapshotContent) bool {
	return c.DeletionTimestamp != nil && (c.Annotations[volume.AnnSnapshotDeleting] == yes ||
		c.Spec.Source.SnapshotHandle != nil && c.Spec.VolumeSnapshotRef.UID == "")
}

// remove decides about a content that is going. A snapshot that the driver may be taking is settled first: only
// then it is known what to delete.
func remove(f DriverFacts) DriverPlan {
	c, handle := f.Content, HandleOf(f.Content)
	switch {
	case isIntended(c) && handle == "" && f.Refused:
		return release(c, "driver "+c.Spec.Driver+" has taken no snapshot for content "+c.Name)
	case isIntended(c) && handle == "":
		return record(f)
	case handle == "":
		return release(c, "driver "+c.Spec.Driver+" was never asked for the snapshot of content "+c.Name)
	case !deletes(c):
		return release(c, "the driver's snapshot of content "+c.Name+" is retained")
	}
	return removeHandle(f, handle)
}

// removeHandle decides about the driver's snapshot of a content that is being deleted.
func removeHandle(f DriverFacts, handle string) DriverPlan {
	c := f.Content
	switch {
	case f.Removed:
		return release(c, "driver "+c.Spec.Driver+" has deleted snapshot "+handle)
	case isMember(c) || c.Status != nil && c.Status.VolumeGroupSnapshotHandle != nil:
		return release(c, "the driver's snapshot of content "+c.Name+" is deleted with its group")
	case len(f.Others) > 0:
		p := release(c, "snapshot "+handle+" of driver "+c.Spec.Driver+" is kept: content "+f.Others[0]+" names it, too")
		p.Because.Reason, p.Warn, p.Tell = volume.ReasonRetained, true, true
		return p
	case !f.Takes:
		return f.failed(volume.ReasonSnapshotDeleteFailed, volume.User(), "driver "+c.Spec.Driver+
			" cannot delete snapshots: it does not have the capability CREATE_DELETE_SNAPSHOT")
	}
	return DriverPlan{
		Step: Remove, Request: Request{Handle: handle, Secret: takingSecret(c)},
		Because: volume.Say(volume.ReasonTerminating, volume.Driver(c.Spec.Driver),
			"driver "+c.Spec.Driver+" is asked to delete snapshot "+handle),
	}
}

// release takes the finalizer from a content, and with it the intent, if it has one.
func release(c *snapshotv1.VolumeSnapshotContent, message string) DriverPlan {
	next := Noted(c, volume.AnnSnapshotCreating, "")
	without(next, volume.FinalizerContentBound)
	return DriverPlan{Step: Release, Content: next, Because: volume.Say(volume.ReasonTerminating, volume.Actor{}, message)}
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
	return Failed(f.Content, f.Now, b,
		func(c *snapshotv1.VolumeSnapshotContent) (problem **snapshotv1.VolumeSnapshotError, ready **bool) {
			if c.Status == nil {
				c.Status = &snapshotv1.VolumeSnapshotContentStatus{}
			}
			return &c.Status.Error, &c.Status.ReadyToUse
		})
}

// OthersOf returns the names of contents, other than c, that stand for a snapshot of c's driver, in order.
func OthersOf(
	c *snapshotv1.VolumeSnapshotContent, handle string, all []*snapshotv1.VolumeSnapshotContent,
) []string {
	var names []string
	for _, other := range all {
		if handle != "" && other.Name != c.Name && other.Spec.Driver == c.Spec.Driver && HandleOf(other) == handle {
			names = append(names, other.Name)
		}
	}
	slices.Sort(names)
	return names
}

// RivalsOf returns the contents of a driver for which nothing is taken yet.
func RivalsOf(o Options, driver string, all []*snapshotv1.VolumeSnapshotContent) []Rival {
	var out []Rival
	for _, c := range all {
		if c.Spec.Driver == driver && c.Spec.Source.VolumeHandle != nil && !isMember(c) && !isTaken(c) {
			asked := o.Ask(c, c.Spec.VolumeSnapshotRef, kindSnapshot, namePrefix, "")
			out = append(out, Rival{c.Name, asked.Name, isIntended(c)})
		}
	}
	return out
}
