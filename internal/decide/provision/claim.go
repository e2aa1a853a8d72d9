package provision

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/volume"
)

// Step is the next step for a claim.
type Step int

// Steps, in the order of a claim's life.
const (
	// Nothing does nothing.
	Nothing Step = iota
	// Record writes the plan's intent to the log; Create follows.
	Record
	// Create calls CreateVolume with the intent and saves the volume.
	Create
	// Finish resolves the intent, because the volume is saved.
	Finish
	// Undo deletes the volume that CreateVolume may have created, because it is not wanted any
	// more, and resolves the intent.
	Undo
	// Take selects the node of this provisioner for the claim.
	Take
)

// ClaimFacts is what the decision about one claim depends on.
type ClaimFacts struct {
	// Claim is nil if the claim of an intent was deleted.
	Claim *corev1.PersistentVolumeClaim
	Class *storagev1.StorageClass
	// Intent is the unresolved intent of the claim, or nil.
	Intent *Intent
	// MayExist says whether the driver has refused the intent in a way that does not prove that there is no volume.
	MayExist bool
	// Withdrawn says that no grant allows the source of the intent's data, which is in another namespace, any more.
	Withdrawn bool
	// Driver is the driver from which the binder has requested the volume, or "".
	Driver string
	// Saved is the volume object of the claim, or with the name in the intent; nil if the cache shows none.
	Saved *corev1.PersistentVolume
	// Taken is an object of another claim that has the name of the claim's volume, or nil.
	Taken *corev1.PersistentVolume
	// Options are those of the provisioner.
	Options Options
	// BlockDriver says whether what the driver's volumes are on a node is certainly a block device.
	BlockDriver bool
	// Reachable says whether this process can call the driver for this claim.
	Reachable bool
	// Scope says for which claims and volumes of the driver it does so.
	Scope volume.Scope
	// Contest has the facts for a claim that the provisioners of several nodes compete for; nil if it is no such claim.
	Contest *Contest
	// Here is the node of the scope, or else the selected node, if it is known; otherwise nil. Local says that its driver
	// has data of its own, and Scheduled that a cluster's scheduler has selected it.
	Here             *corev1.Node
	Local, Scheduled bool
	// Lacks is a CSI capability that the driver lacks and needs to create volumes, or "".
	Lacks string
	// Topology says whether the driver's volumes are accessible from some nodes only.
	Topology bool
	// Places has the facts for the topology requirement.
	Places topology.Facts
	// Source has the facts about the source of the claim's data.
	Source Source
	// Attributes is the claim's VolumeAttributesClass, or nil.
	Attributes *storagev1.VolumeAttributesClass
	// Modifies says whether the driver supports VolumeAttributesClasses.
	Modifies bool
	// Partial says that the driver's capabilities, the topology, and the source of the data are not
	// known. The plan assumes that there is no problem with them.
	Partial bool
}

// Plan is the decision about a claim.
type Plan struct {
	Step    Step
	Intent  *Intent
	Because volume.Because
	// Reschedule says whether the selected node is to be removed, because it cannot have the volume.
	Reschedule bool
	// Wait is when to decide again; 0 for when a fact changes. Full says that this node cannot have the volume now.
	Wait time.Duration
	Full bool
	// Node is the node that is to be selected.
	Node string
	// Fault says whether Because is recorded as a warning; Event, whether it is recorded otherwise although nothing is
	// done.
	Fault, Event bool
}

func because(step Step, reason volume.Reason, next volume.Actor, message string) Plan {
	return Plan{Step: step, Because: volume.Say(reason, next, message)}
}

func fault(next volume.Actor, message string) Plan {
	p := because(Nothing, volume.ReasonProvisioningFailed, next, message)
	p.Fault = true
	return p
}

// Claim decides about one claim.
func Claim(f ClaimFacts) Plan {
	if f.Intent != nil && (f.Settles() || f.Saved != nil) {
		return resolve(f)
	}
	c, driver := f.Claim, f.Driver
	switch {
	case c.DeletionTimestamp != nil:
		return because(Nothing, volume.ReasonTerminating, volume.Actor{}, "claim "+c.Name+" is being deleted")
	case c.Spec.VolumeName != "" || f.Saved != nil:
		return because(Nothing, volume.ReasonBound, volume.Actor{}, "claim "+c.Name+" has its volume")
	case driver == "":
		return because(Nothing, volume.ReasonNotMine, volume.Controller("binder"), "claim "+c.Name+" does not ask a "+
			"provisioner yet")
	case f.Contest != nil:
		return f.compete()
	case !f.Reachable:
		return because(Nothing, volume.ReasonDriverMissing, volume.Driver(driver), "driver "+driver+" has not registered")
	case f.Lacks != "":
		return fault(volume.User(), "driver "+driver+
			" has registered, but does not create volumes: it does not have the capability "+f.Lacks)
	}
	return ask(f, driver)
}

// ask decides about a claim whose driver can create volumes.
func ask(f ClaimFacts, driver string) Plan {
	c := f.Claim
	switch {
	case f.Class == nil:
		name, _ := bind.ClassOf(c)
		return fault(volume.User(), fmt.Sprintf("storageclass.storage.k8s.io %q not found", name))
	case f.Class.Provisioner != driver && isInTree(f.Class.Provisioner):
		return fault(volume.User(), "class "+f.Class.Name+" is one of Kubernetes' former plugin "+f.Class.Provisioner+
			", whose place driver "+driver+" has taken, and is not translated here: the claim needs a class of "+driver)
	case f.Class.Provisioner != driver:
		return because(Nothing, volume.ReasonNotMine, volume.Controller("binder"),
			"class "+f.Class.Name+" now has another provisioner")
	case bind.BindsLate(f.Class) && volume.SelectedNode(c.Annotations) == "":
		return because(Nothing, volume.ReasonWaitForFirstConsumer, volume.Controller("placement"),
			"claim "+c.Name+" waits for a node")
	case c.Spec.Selector != nil:
		return fault(volume.User(), "claim Selector is not supported")
	case f.isPopulated():
		return populating(c)
	case f.Taken != nil:
		return fault(volume.User(), "volume object "+f.Taken.Name+" exists, and is not for this claim")
	}
	return request(f)
}

// isInTree says whether a class is one of a plugin that Kubernetes once had itself. Kubernetes then writes the driver
// that has taken the plugin's place to the claim, and csi-provisioner translates the class.
func isInTree(provisioner string) bool {
	return strings.HasPrefix(provisioner, "kubernetes.io/") && provisioner != volume.NoProvisioner
}

// Reopens says whether the claim is decided about again although its intent is not resolved: the
// driver has refused the intent, and its cause may have been removed.
func (f ClaimFacts) Reopens() bool {
	return f.Intent != nil && f.MayExist && !f.unwanted()
}

// reopen decides about an old intent when p has a new one. If both have the same request, the old
// one is repeated. Otherwise it is undone first, because its volume may exist.
func reopen(old *Intent, p Plan) Plan {
	if p.Intent.Request() == old.Request() {
		p.Step, p.Intent = Create, old
		return p
	}
	p = because(Undo, volume.ReasonDeleting, volume.Driver(old.Driver),
		"volume "+old.Name+" may have been created, and the request has changed since")
	p.Intent = old
	return p
}

// resolve decides about a claim for which CreateVolume may have been called.
func resolve(f ClaimFacts) Plan {
	in := f.Intent
	p, settled := settle(f)
	switch {
	case settled:
	case !f.Reachable:
		p = because(Nothing, volume.ReasonDriverMissing, volume.Driver(in.Driver),
			"driver "+in.Driver+" has not registered, and may have created a volume")
	case f.Lacks != "":
		p = fault(volume.Driver(in.Driver), "driver "+in.Driver+" does not have the capability "+f.Lacks+
			" any more, and may have created volume "+in.Name)
	case in.isElsewhere(f.Saved):
		p = because(Undo, volume.ReasonDeleting, volume.Driver(in.Driver),
			"volume "+in.Name+" may have been created on node "+in.Node+
				", and the claim has one on node "+MadeOn(f.Saved))
	case f.left():
		p = because(Undo, volume.ReasonDeleting, volume.Driver(in.Driver),
			"volume "+in.Name+" may have been created on node "+in.Node+", and is now needed on another node")
	case f.withdrawn():
		p = because(Undo, volume.ReasonDeleting, volume.Driver(in.Driver),
			"volume "+in.Name+" may have been made of "+refused(in.Claim.Namespace, in.From())+" any more")
	case !f.unwanted():
		p = because(Create, volume.ReasonProvisioning, volume.Driver(in.Driver), "volume "+in.Name+" is being created")
	case in.Reclaim != corev1.PersistentVolumeReclaimDelete:
		// The volume may exist with data that must be retained, and its object may have been
		// deleted. CreateVolume returns it, and it gets an object again.
		p = because(Create, volume.ReasonProvisioning, volume.Driver(in.Driver),
			"volume "+in.Name+" may have been created, and is to be retained")
	default:
		p = because(Undo, volume.ReasonDeleting, volume.Driver(in.Driver),
			"volume "+in.Name+" may have been created, and is no longer needed")
	}
	p.Intent = in
	return p
}

// settle decides about an intent whose volume object was written.
func settle(f ClaimFacts) (p Plan, settled bool) {
	c, in := f.Claim, f.Intent
	switch {
	case in.isElsewhere(f.Saved):
	case f.Saved != nil && Owns(in.Claim.UID, f.Saved):
		return because(Finish, volume.ReasonProvisioningSucceeded, volume.Actor{}, "volume "+in.Name+" is saved"), true
	case c != nil && c.Spec.VolumeName == in.Name && c.Annotations[volume.AnnBindCompleted] != "":
		// The claim was bound to the volume. If the volume object was deleted since, its reclaim policy was applied.
		return because(Finish, volume.ReasonProvisioningSucceeded, volume.Actor{}, "volume "+in.Name+" was saved"), true
	}
	return Plan{}, false
}

// unwanted says whether no claim waits for the volume of an intent any more.
func (f ClaimFacts) unwanted() bool { return f.Intent.isUnwanted(f.Claim) || f.left() || f.withdrawn() }

// withdrawn says whether the claim may not have the data of the intent's volume any more. Its claim has not had the
// volume, so the volume is deleted even if it was to be retained.
func (f ClaimFacts) withdrawn() bool { return f.Withdrawn && f.Claim != nil }

// isUnwanted says whether the claim of an intent is gone, is going, or has another volume.
func (in *Intent) isUnwanted(c *corev1.PersistentVolumeClaim) bool {
	return c == nil || c.DeletionTimestamp != nil || c.Spec.VolumeName != "" && c.Spec.VolumeName != in.Name
}

// left says whether the claim, which has no volume, waits for one on another node than the intent's. Nobody can have
// used the intent's volume, so it is deleted even if it was to be retained.
func (f ClaimFacts) left() bool {
	c := f.Claim
	return c != nil && c.Spec.VolumeName == "" && !f.Scope.Has(volume.SelectedNode(c.Annotations))
}

// ProvisionerOf returns the driver in a claim's annotation storage-provisioner, in either spelling, or "".
func ProvisionerOf(c *corev1.PersistentVolumeClaim) string {
	return cmp.Or(c.Annotations[volume.AnnStorageProvisioner], c.Annotations[volume.AnnBetaStorageProvisioner])
}

// request returns the plan with the intent of a new volume.
func request(f ClaimFacts) Plan {
	c, class := f.Claim, f.Class
	bytes, err := Bytes(c.Spec.Resources.Requests.Storage())
	if err != nil {
		return fault(volume.User(), "the claim's request of "+err.Error())
	}
	in := &Intent{
		Driver: class.Provisioner, Claim: *bind.Reference(c), Node: f.Scope.Node, Name: f.Options.NameOf(c), Bytes: bytes,
		Class:   class.Name,
		Options: class.MountOptions, Reclaim: corev1.PersistentVolumeReclaimDelete,
		Block: cluster.IsBlock(c.Spec.VolumeMode),
		Modes: c.Spec.AccessModes,
	}
	in.ReadOnly = f.Options.PublishReadOnly && slices.Equal(in.Modes, onlyRead)
	if class.ReclaimPolicy != nil {
		in.Reclaim = *class.ReclaimPolicy
	}
	if in.Parameters, err = driverParameters(class.Parameters); err != nil {
		return fault(volume.User(), err.Error())
	}
	if in.FSType, err = fsType(class.Parameters); err != nil {
		return fault(volume.User(), err.Error())
	}
	in.FSType = cmp.Or(in.FSType, f.defaultFSType())
	if err = checkName(in.Name); err != nil {
		return fault(volume.User(), err.Error())
	}
	in.Parameters = f.Options.metadata(in)
	if in.Secrets, err = secrets(class.Parameters, c, in.Name); err != nil {
		return fault(volume.User(), err.Error())
	}
	if p, ok := f.live(in); !ok {
		return p
	}
	p := because(Record, volume.ReasonProvisioning, volume.Driver(in.Driver),
		"External provisioner is provisioning volume for claim \""+c.Namespace+"/"+c.Name+"\"")
	p.Intent = in
	if f.Intent != nil {
		return reopen(f.Intent, p)
	}
	return p
}

// live completes the intent with facts that are known only with a driver: the source of the data, attributes and
// topology. If the volume cannot be requested, it returns the plan with the reason and false.
func (f ClaimFacts) live(in *Intent) (Plan, bool) {
	if f.Partial {
		return Plan{}, true
	}
	if err := f.Source.into(in, f.Claim); err != nil {
		return fault(volume.User(), err.Error()), false
	}
	from := f.origin()
	if why := f.elsewhere(from); why != "" {
		return f.reselected(why), false
	}
	if err := f.attributes(in); err != nil {
		return fault(volume.User(), err.Error()), false
	}
	if !f.Topology {
		return Plan{}, true
	}
	if from.Only && !f.Local {
		f.Places.Source = from.Affinity
	}
	where, err := topology.Require(f.Places)
	if err != nil {
		p := fault(volume.Controller("placement"), err.Error())
		p.Reschedule = f.Places.Selected != ""
		return p, false
	}
	in.Requisite, in.Preferred = where.Requisite, where.Preferred
	return Plan{}, true
}

// origin returns where the data of the claim are. The name of another node is not a reason to give a claim back to
// a cluster's scheduler, which would select the same node again: nodes of one segment have the same data.
func (f ClaimFacts) origin() Origin {
	o := f.Source.Origin(f.Claim, f.Driver, f.Local)
	if f.Scheduled {
		o.Node = ""
	}
	return o
}

// elsewhere returns why the driver is not asked for a volume on this node whose data are on another one, or "".
func (f ClaimFacts) elsewhere(from Origin) string {
	if f.Here == nil {
		return ""
	}
	return from.Elsewhere(f.Claim.Name, f.Here)
}

// reselected returns the plan for a claim whose volume cannot be made on this node: another one is to be selected.
func (f ClaimFacts) reselected(why string) Plan {
	if volume.SelectedNode(f.Claim.Annotations) == "" {
		return fault(volume.User(), why)
	}
	p := fault(volume.Controller("placement"), "node "+f.Here.Name+" cannot create it: "+why)
	p.Reschedule = true
	return p
}

// AttributesOf returns the name of a claim's VolumeAttributesClass, or "".
func AttributesOf(c *corev1.PersistentVolumeClaim) string {
	if n := c.Spec.VolumeAttributesClassName; n != nil {
		return *n
	}
	return ""
}

// attributes completes the intent with the claim's VolumeAttributesClass.
func (f ClaimFacts) attributes(in *Intent) error {
	name := AttributesOf(f.Claim)
	switch {
	case name == "" || f.Options.WithoutAttributes:
		return nil
	case !f.Modifies:
		return fmt.Errorf("%w %s: driver %s does not have the capability MODIFY_VOLUME", errAttributes, name, in.Driver)
	case f.Attributes == nil:
		return fmt.Errorf("%w %s does not exist", errAttributes, name)
	case f.Attributes.DriverName != in.Driver:
		return fmt.Errorf("%w %s is for driver %s, not for %s", errAttributes, name, f.Attributes.DriverName, in.Driver)
	}
	in.Attributes, in.Mutable = &name, f.Attributes.Parameters
	return nil
}

var (
	errAttributes = errors.New("VolumeAttributesClass")
	errName       = errors.New("volumes cannot have the name")
)

// onlyRead are the access modes of a claim that only reads.
var onlyRead = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany} //nolint:gochecknoglobals // a constant
