package snapshot

import (
	"encoding/json"
	"slices"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/volume"
)

// DriverFactsOf is everything on which the decision about the driver's part of a content depends.
type DriverFactsOf[C Object[C]] struct {
	Content C
	// Class is the class that the content names, or nil.
	Class *Class
	// Reachable says that the content's driver is called by this process; Takes, Lists and Gets are its capabilities:
	// take and delete, list, and look for one.
	Reachable, Takes, Lists, Gets bool
	// Places means that requests to the driver carry the topology in which a snapshot must be usable.
	Places bool
	Known
	// Options are those of the snapshotter, and Rivals the contents that may have the same name at the driver by them.
	Options Options
	Rivals  []Rival
	// Others are the names of other contents of the driver that refer to the same snapshot as this one or to a part of it,
	// in order.
	Others []string
	// Now is the time at which errors are noted.
	Now metav1.Time
}

// Class is what decisions about a content read of its class.
type Class struct {
	Name, Driver string
	Parameters   map[string]string
	// Topologies are the places in which the snapshot must be usable.
	Topologies []corev1.TopologySelectorTerm
}

func rest[C any](r volume.Reason, next volume.Actor, message string) PlanFor[C] {
	return PlanFor[C]{Because: volume.Say(r, next, message)}
}

func (k *ContentKind[C]) isIntended(c C) bool { return c.GetAnnotations()[k.Creating] == yes }

// MayRelease says whether a content is being deleted and need not be kept: the user's object is being deleted, or never
// existed.
func (k *ContentKind[C]) MayRelease(c C) bool {
	v := k.View(c)
	return c.GetDeletionTimestamp() != nil &&
		(c.GetAnnotations()[k.Deleting] == yes || v.Given && v.Ref.UID == "")
}

// Driver decides about the driver's part of a content. It is called again after each step.
func (k *ContentKind[C]) Driver(f DriverFactsOf[C]) PlanFor[C] {
	c, v := f.Content, k.View(f.Content)
	content, home := "content "+c.GetName(), c.GetAnnotations()[volume.AnnProvisionedOn]
	switch {
	case c.GetDeletionTimestamp() != nil && !has(c, k.Finalizer):
		return rest[C](volume.ReasonTerminating, volume.APIServer(),
			content+" is being deleted, and no driver is asked")
	case f.Options.Rest && k.MayRelease(c) && volume.IsLost(c.GetAnnotations(), home):
		p := k.release(c, "the driver's snapshot of "+content+" was lost with node "+home+
			", and driver "+v.Driver+" did not delete anything")
		p.Because.Reason, p.Warn, p.Event = volume.ReasonNodeGone, true, true
		return p
	case !f.Reachable:
		return rest[C](volume.ReasonDriverMissing, volume.Driver(v.Driver), "driver "+v.Driver+" has not registered")
	case v.Member && c.GetDeletionTimestamp() == nil:
		return rest[C](k.Pending, groupController(), content+" is a member of a group")
	case !v.Valid:
		return rest[C](k.Invalid, volume.User(), content+" must name "+k.Sources)
	case k.MayRelease(c):
		return k.remove(f)
	}
	return k.keep(f)
}

// keep decides about a content that is not being deleted, or that stays until the user's object is deleted.
func (k *ContentKind[C]) keep(f DriverFactsOf[C]) PlanFor[C] {
	c, v := f.Content, k.View(f.Content)
	content := "content " + c.GetName()
	switch {
	case k.isIntended(c) && v.Taken:
		return PlanFor[C]{Step: Forget, Content: Noted(c, k.Creating, ""), Because: volume.Say(
			k.Pending, volume.Driver(v.Driver), content+" names the driver's "+k.One)}
	case v.Ready && c.GetDeletionTimestamp() != nil:
		return rest[C](volume.ReasonTerminating, k.Controller,
			content+" is being deleted; it stays until "+k.Noun+" "+v.Ref.Name+" is deleted")
	case v.Ready:
		return rest[C](k.Ready, volume.Actor{}, content+" is ready to use")
	case v.Given:
		return k.Look(f)
	}
	return k.record(f)
}

// record writes the intent to take what a content refers to, unless it is recorded already, and then takes it. What has
// been taken needs no intent: the driver is called again with the same arguments to see whether it is ready.
func (k *ContentKind[C]) record(f DriverFactsOf[C]) PlanFor[C] {
	c, v := f.Content, k.View(f.Content)
	if v.Ref.UID == "" {
		// The driver would consider all such contents the same: they would request the same name.
		return k.UserProblem(f, k.TakeFailed, "content "+c.GetName()+" is for no "+k.Noun+
			": its reference has no uid, of which the name of the "+k.One+" at the driver is made")
	}
	parameters, problem := k.parameters(f)
	if problem.Reason != "" {
		return k.Problem(f, problem)
	}
	asked := k.first(f, parameters)
	if other := Blocks(Rival{c.GetName(), asked.Name, k.isIntended(c)}, f.Rivals); other != "" && !v.Taken {
		return k.UserProblem(f, k.TakeFailed,
			"content "+other+" is to be taken with the same, cut name "+asked.Name).Again()
	}
	p := PlanFor[C]{
		Step: Take, First: !k.isIntended(c) && !v.Taken,
		Request: Request{Name: asked.Name, Sources: v.Sources, Secret: k.secret(c)},
		Because: volume.Say(k.Pending, volume.Driver(v.Driver), "driver "+v.Driver+" is asked for "+k.Wanted(v)),
	}
	if json.Unmarshal([]byte(asked.Parameters), &p.Request.Parameters) != nil {
		return k.UserProblem(f, k.TakeFailed,
			"annotation "+volume.AnnSnapshotParameters+" of content "+c.GetName()+" is not a JSON object of strings")
	}
	if asked.Topologies != "" && json.Unmarshal([]byte(asked.Topologies), &p.Request.Places) != nil {
		return k.UserProblem(f, k.TakeFailed,
			"annotation "+volume.AnnSnapshotTopologies+" of content "+c.GetName()+" is not a JSON list of topology segments")
	}
	next := NoteAsked(asked, c)
	if !v.Taken {
		next = Noted(next, k.Creating, yes)
	}
	with(next, k.Finalizer)
	if Changed(c, next) {
		p.Step, p.Content = Record, next
	}
	return p
}

// first returns the driver request for a content, with the places of its class if they have not been recorded before.
func (k *ContentKind[C]) first(f DriverFactsOf[C], parameters string) Asked {
	asked := k.ask(f.Options, f.Content, parameters)
	if f.Places && f.Class != nil && !k.isIntended(f.Content) && !k.View(f.Content).Taken {
		asked.Topologies = topologiesOf(f.Class)
	}
	return asked
}

// ask returns the driver request for a content.
func (k *ContentKind[C]) ask(o Options, c C, parameters string) Asked {
	return o.Ask(c, k.View(c).Ref, k.Keys, k.Prefix, parameters)
}

// secret returns the Secret for taking and deleting what a content refers to.
func (k *ContentKind[C]) secret(c C) *corev1.SecretReference {
	return RecordedSecret(c, k.SecretName, k.SecretNamespace)
}

// parameters returns the parameters for the driver as JSON, as recorded or as the class has them now, or why there are
// none.
func (k *ContentKind[C]) parameters(f DriverFactsOf[C]) (parameters string, problem volume.Because) {
	c, v := f.Content, k.View(f.Content)
	user := func(r volume.Reason, message string) (string, volume.Because) {
		return "", volume.Say(r, volume.User(), message)
	}
	parameters, recorded := c.GetAnnotations()[volume.AnnSnapshotParameters]
	switch {
	case !f.Takes:
		return user(k.TakeFailed, k.cannot(v, "take"))
	case recorded:
		return parameters, problem
	case f.Class == nil:
		return user(k.ClassMissing, k.ClassKind+" "+v.Class+" of content "+c.GetName()+" does not exist")
	case f.Class.Driver != v.Driver:
		return user(k.ClassMismatch, k.ClassKind+" "+f.Class.Name+
			" belongs to driver "+f.Class.Driver+", and content "+c.GetName()+" to driver "+v.Driver)
	}
	parameters, err := ParametersOf(f.Class.Name, f.Class.Parameters)
	if err != nil {
		return user(k.TakeFailed, err.Error())
	}
	return parameters, problem
}

// NotesOf returns the annotations of a new content: everything needed to take and to delete what it refers to, without
// the class. purpose is that of the class's Secret, whose templates may contain inName and inNamespace.
func (k *ContentKind[C]) NotesOf(
	class *Class, purpose string, of *corev1.PersistentVolume, inName, inNamespace map[string]string,
) (map[string]string, error) {
	secret, err := SecretOf(class.Name, purpose, class.Parameters, inName, inNamespace)
	if err != nil {
		return nil, err
	}
	parameters, err := ParametersOf(class.Name, class.Parameters)
	if err != nil {
		return nil, err
	}
	notes := map[string]string{volume.AnnSnapshotParameters: parameters}
	if secret != nil {
		notes[k.SecretName], notes[k.SecretNamespace] = secret.Name, secret.Namespace
	}
	if node := provision.MadeOn(of); node != "" {
		notes[volume.AnnProvisionedOn] = node
	}
	return notes, nil
}

// cannot says that a driver lacks the capability for a request.
func (k *ContentKind[C]) cannot(v View, verb string) string {
	return "driver " + v.Driver + " cannot " + verb + " " + k.Several + ": it does not have the capability " + k.Capability
}

// remove decides about a content that must be released. A creation that may be in flight is settled first: only then is
// it known what to delete.
func (k *ContentKind[C]) remove(f DriverFactsOf[C]) PlanFor[C] {
	c, v := f.Content, k.View(f.Content)
	driver, content := "driver "+v.Driver, "content "+c.GetName()
	switch {
	case k.isIntended(c) && v.Handle == "" && f.Refused:
		return k.release(c, driver+" has not taken a "+k.One+" for "+content)
	case k.isIntended(c) && v.Handle == "":
		return k.record(f)
	case v.Handle == "":
		return k.release(c, driver+" was never asked for the "+k.One+" of "+content)
	case !v.Deletes:
		return k.release(c, "the driver's "+k.One+" of "+content+" is retained")
	}
	return k.removeHandle(f)
}

// removeHandle decides about the driver's snapshot of a content that is being deleted.
func (k *ContentKind[C]) removeHandle(f DriverFactsOf[C]) PlanFor[C] {
	c, v := f.Content, k.View(f.Content)
	one := k.One + " " + v.Handle
	switch {
	case f.Removed:
		return k.release(c, "driver "+v.Driver+" has deleted "+one)
	case v.Grouped:
		return k.release(c, "the driver's snapshot of content "+c.GetName()+" is deleted with its group")
	case len(f.Others) > 0:
		p := k.release(c, one+" of driver "+v.Driver+" is kept: content "+f.Others[0]+" names it"+k.Part+", too")
		p.Because.Reason, p.Warn, p.Event = volume.ReasonRetained, true, true
		return p
	case !f.Takes:
		return k.UserProblem(f, k.DeleteFailed, k.cannot(v, "delete"))
	}
	return PlanFor[C]{
		Step: Remove, Request: Request{Handle: v.Handle, Members: v.Members, Secret: k.secret(c)},
		Because: volume.Say(volume.ReasonTerminating, volume.Driver(v.Driver),
			"driver "+v.Driver+" is asked to delete "+one),
	}
}

// release removes the finalizer of a content, and the intent, if it has one.
func (k *ContentKind[C]) release(c C, message string) PlanFor[C] {
	next := Noted(c, k.Creating, "")
	without(next, k.Finalizer)
	return PlanFor[C]{Step: Release, Content: next, Because: volume.Say(volume.ReasonTerminating, volume.Actor{}, message)}
}

// UserProblem records a problem that only a user can fix as the error of a content.
func (k *ContentKind[C]) UserProblem(f DriverFactsOf[C], r volume.Reason, message string) PlanFor[C] {
	return k.Problem(f, volume.Say(r, volume.User(), message))
}

// CallProblem notes the answer to a call of the driver as the error of a content.
func (k *ContentKind[C]) CallProblem(f DriverFactsOf[C], a volume.Answer, r volume.Reason, message string) PlanFor[C] {
	return k.Problem(f, a.Because(r, volume.Driver(k.View(f.Content).Driver), message))
}

// Problem records an explanation as the error in the status of a content, unless it is there already.
func (k *ContentKind[C]) Problem(f DriverFactsOf[C], b volume.Because) PlanFor[C] {
	p := PlanFor[C]{Because: b, Warn: true}
	next := f.Content.DeepCopy()
	problem, ready := k.ContentState(next)
	if *problem != nil && ErrorIn(*problem) == b.Message {
		return p
	}
	p.Step, p.Event, p.Content = Note, true, next
	*problem = &snapshotv1.VolumeSnapshotError{Time: &f.Now, Message: &b.Message}
	if f.Content.GetDeletionTimestamp() == nil {
		*ready = ptr.To(false)
	}
	return p
}

// AfterRemove decides about the answer to the deletion of what a content refers to.
func (k *ContentKind[C]) AfterRemove(f DriverFactsOf[C], p PlanFor[C], a volume.Answer) PlanFor[C] {
	driver, one := "driver "+k.View(f.Content).Driver, k.One+" "+p.Request.Handle
	if a.Outcome == volume.Done {
		return k.release(f.Content, driver+" has deleted "+one)
	}
	return k.CallProblem(f, a, k.DeleteFailed, driver+" did not delete "+one+": "+a.Failure()).Again()
}

// SecretUnread is the plan for a call that was not made because its Secret could not be read.
func (k *ContentKind[C]) SecretUnread(f DriverFactsOf[C], a volume.Answer) PlanFor[C] {
	return k.CallProblem(f, a, k.TakeFailed, "driver "+k.View(f.Content).Driver+" was not asked: "+a.Text).Again()
}

// RivalsOf returns the contents of a driver for which nothing has been taken yet.
func (k *ContentKind[C]) RivalsOf(o Options, driver string, all []C) []Rival {
	var out []Rival
	for _, c := range all {
		if v := k.View(c); v.Driver == driver && !v.Given && !v.Member && !v.Taken {
			out = append(out, Rival{c.GetName(), k.ask(o, c, "").Name, k.isIntended(c)})
		}
	}
	return out
}

// SameAs returns the names of contents, other than c, that refer to a handle of c's driver, in order. If c is being
// released, those that keep nothing are left out.
func (k *ContentKind[C]) SameAs(c C, handle string, all []C) []string {
	var names []string
	driver, leaves := k.View(c).Driver, k.MayRelease(c)
	for _, other := range all {
		if v := k.View(other); handle != "" && other.GetName() != c.GetName() && v.Driver == driver &&
			v.Handle == handle && !(leaves && k.KeepsNothing(other)) {
			names = append(names, other.GetName())
		}
	}
	slices.Sort(names)
	return names
}

// KeepsNothing says whether a content is being deleted together with what its driver has for it, or was released.
// Otherwise each of two such contents would leave the deletion to the other.
func (k *ContentKind[C]) KeepsNothing(c C) bool {
	v := k.View(c)
	return c.GetDeletionTimestamp() != nil && (!has(c, k.Finalizer) || k.MayRelease(c) && v.Deletes && !v.Grouped)
}
