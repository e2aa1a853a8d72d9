package provision

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/volume"
)

// Step is what is done next about a claim.
type Step int

// Steps, in the order of a claim's life.
const (
	// Nothing: it is not ours, or not yet, or no more.
	Nothing Step = iota
	// Record writes the plan's intent to the log; Create follows.
	Record
	// Create calls CreateVolume with the intent and saves the volume.
	Create
	// Finish resolves the intent: the volume is saved.
	Finish
	// Undo finds what CreateVolume made, deletes it, and resolves the intent:
	// nobody wants the volume any more.
	Undo
)

// ClaimFacts is everything that a decision about one claim looks at.
type ClaimFacts struct {
	// Claim is nil when there is an intent whose claim is gone.
	Claim  *corev1.PersistentVolumeClaim
	Class  *storagev1.StorageClass
	Intent *Intent
	// Doubtful says that the driver has said a no to the intent that does not
	// prove that it made nothing.
	Doubtful bool
	// Driver is the one that the binder has asked for the claim's volume; ""
	// is none.
	Driver string
	// Saved is the volume object of the claim's name for volumes; nil when
	// there is none, or none yet that is seen.
	Saved *corev1.PersistentVolume
	// Ours says that the driver that the claim asks for is reached by this
	// process. Lacks names the capability of CSI that it would need to make
	// volumes; "" is none.
	Ours  bool
	Lacks string
	// Topology says that the driver's volumes are not reachable everywhere;
	// Places is what a requirement follows from then.
	Topology bool
	Places   topology.Facts
	// Source is what is there of the object that the claim's data come from.
	Source Source
	// Attributes is the class of attributes that the claim names; nil when it
	// names none, or there is none of that name. Modifies says that the driver
	// knows such attributes.
	Attributes *storagev1.VolumeAttributesClass
	Modifies   bool
	// Partial says that the driver's capabilities, the topology, and the sources of
	// data were not looked at: the plan takes for granted that nothing is wrong there.
	Partial bool
}

// Plan is the next step and its reason.
type Plan struct {
	Step    Step
	Intent  *Intent
	Because volume.Because
	// Reschedule says that the selected node cannot have the volume.
	Reschedule bool
	// Fault says that the reason is somebody's mistake, worth a warning.
	Fault bool
}

func because(step Step, reason volume.Reason, next, message string) Plan {
	return Plan{Step: step, Because: volume.Because{Reason: reason, Message: message, Next: next}}
}

func fault(next, message string) Plan {
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
		return because(Nothing, volume.ReasonTerminating, "", "claim "+c.Name+" is being deleted")
	case c.Spec.VolumeName != "" || f.Saved != nil:
		return because(Nothing, volume.ReasonBound, "", "claim "+c.Name+" has its volume")
	case driver == "":
		return because(Nothing, volume.ReasonNotMine, "binder", "claim "+c.Name+" asks no provisioner yet")
	case !f.Ours:
		return because(Nothing, volume.ReasonDriverMissing, driver, "driver "+driver+" has not registered")
	case f.Lacks != "":
		return fault("user", "driver "+driver+
			" has registered, but makes no volumes: it does not have the capability "+f.Lacks)
	}
	return ask(f, driver)
}

// ask decides about a claim whose driver could make its volume.
func ask(f ClaimFacts, driver string) Plan {
	c := f.Claim
	switch {
	case f.Class == nil:
		name, _ := bind.ClassOf(c)
		return fault("user", fmt.Sprintf("storageclass.storage.k8s.io %q not found", name))
	case f.Class.Provisioner != driver:
		return because(Nothing, volume.ReasonNotMine, "binder", "class "+f.Class.Name+" has another provisioner now")
	case bind.BindsLate(f.Class) && c.Annotations[volume.AnnSelectedNode] == "":
		return because(Nothing, volume.ReasonWaitForFirstConsumer, "placement", "claim "+c.Name+" waits for a node")
	case c.Spec.Selector != nil:
		return fault("user", "claim Selector is not supported")
	}
	return request(f)
}

// Reopens says that a claim is looked at anew although its intent is not
// resolved, because what the driver said no to may have been mended.
func (f ClaimFacts) Reopens() bool {
	return f.Intent != nil && f.Doubtful && !unwanted(f.Claim, f.Intent)
}

// again decides about an intent that the driver may have refused. Only the same
// question tells what came of it: it is asked again before another one is.
func again(old *Intent, p Plan) Plan {
	if p.Intent.Question() == old.Question() {
		p.Step, p.Intent = Create, old
		return p
	}
	p = because(Undo, volume.ReasonDeleting, old.Driver,
		"volume "+old.Name+" may have been made, and something else is wanted now")
	p.Intent = old
	return p
}

// resolve decides about a claim for which CreateVolume may have been called.
func resolve(f ClaimFacts) Plan {
	c, in := f.Claim, f.Intent
	p, settled := settle(f)
	switch {
	case settled:
	case !f.Ours:
		p = because(Nothing, volume.ReasonDriverMissing, in.Driver,
			"driver "+in.Driver+" has not registered, and may have made a volume")
	case f.Lacks != "":
		p = fault(in.Driver, "driver "+in.Driver+" does not have the capability "+f.Lacks+
			" any more, and may have made volume "+in.Name)
	case !unwanted(c, in):
		p = because(Create, volume.ReasonProvisioning, in.Driver, "volume "+in.Name+" is being made")
	case in.Reclaim != corev1.PersistentVolumeReclaimDelete:
		// A volume of this name may hold data that its object, which has gone
		// since, had retained: what is there becomes a volume object again.
		p = because(Create, volume.ReasonProvisioning, in.Driver,
			"volume "+in.Name+" may have been made, and is to be retained")
	default:
		p = because(Undo, volume.ReasonDeleting, in.Driver,
			"volume "+in.Name+" may have been made, and is not wanted any more")
	}
	p.Intent = in
	return p
}

// settle decides about an intent whose volume object was written.
func settle(f ClaimFacts) (p Plan, settled bool) {
	c, in := f.Claim, f.Intent
	switch {
	case f.Saved != nil && Owns(in.Claim.UID, f.Saved):
		return because(Finish, volume.ReasonProvisioningSucceeded, "", "volume "+in.Name+" is saved"), true
	case c != nil && c.Spec.VolumeName == in.Name && c.Annotations[volume.AnnBindCompleted] != "":
		// The claim had its volume. If the object has gone since, its reclaim
		// policy has said what becomes of the data.
		return because(Finish, volume.ReasonProvisioningSucceeded, "", "volume "+in.Name+" was saved"), true
	}
	return Plan{}, false
}

// unwanted says that nobody waits for an intent's volume any more.
func unwanted(c *corev1.PersistentVolumeClaim, in *Intent) bool {
	return c == nil || c.DeletionTimestamp != nil || c.Spec.VolumeName != "" && c.Spec.VolumeName != in.Name
}

// ProvisionerOf returns the driver that the binder named, in either spelling;
// "" when it has not named any.
func ProvisionerOf(c *corev1.PersistentVolumeClaim) string {
	if p := c.Annotations[volume.AnnStorageProvisioner]; p != "" {
		return p
	}
	return c.Annotations[volume.AnnBetaStorageProvisioner]
}

// request makes the intent of a new volume.
func request(f ClaimFacts) Plan {
	c, class := f.Claim, f.Class
	bytes, err := Bytes(c.Spec.Resources.Requests.Storage())
	if err != nil {
		return fault("user", "the claim's request of "+err.Error())
	}
	in := &Intent{
		Driver: class.Provisioner, Claim: *bind.Reference(c), Name: NameOf(c), Bytes: bytes, Class: class.Name,
		Options: class.MountOptions, Reclaim: corev1.PersistentVolumeReclaimDelete,
		Block: cluster.IsBlock(c.Spec.VolumeMode),
		Modes: c.Spec.AccessModes,
	}
	if class.ReclaimPolicy != nil {
		in.Reclaim = *class.ReclaimPolicy
	}
	if in.Parameters, err = driverParameters(class.Parameters); err != nil {
		return fault("user", err.Error())
	}
	if in.FSType, err = fsType(class.Parameters); err != nil {
		return fault("user", err.Error())
	}
	if in.Secrets, err = secrets(class.Parameters, c, in.Name); err != nil {
		return fault("user", err.Error())
	}
	if p, ok := f.live(in); !ok {
		return p
	}
	p := because(Record, volume.ReasonProvisioning, in.Driver,
		"External provisioner is provisioning volume for claim \""+c.Namespace+"/"+c.Name+"\"")
	p.Intent = in
	if f.Intent != nil {
		return again(f.Intent, p)
	}
	return p
}

// live writes to the intent what follows from what the driver and the cluster say at
// this moment; false, with the plan, when the volume cannot be asked for.
func (f ClaimFacts) live(in *Intent) (Plan, bool) {
	if f.Partial {
		return Plan{}, true
	}
	if err := f.Source.into(in, f.Claim); err != nil {
		return fault("user", err.Error()), false
	}
	if err := f.attributes(in); err != nil {
		return fault("user", err.Error()), false
	}
	if !f.Topology {
		return Plan{}, true
	}
	where, err := topology.Require(f.Places)
	if err != nil {
		p := fault("placement", err.Error())
		p.Reschedule = f.Places.Selected != ""
		return p, false
	}
	in.Requisite, in.Preferred = where.Requisite, where.Preferred
	return Plan{}, true
}

// AttributesOf returns the name of the class of attributes that a claim wants;
// "" is none.
func AttributesOf(c *corev1.PersistentVolumeClaim) string {
	if n := c.Spec.VolumeAttributesClassName; n != nil {
		return *n
	}
	return ""
}

// attributes writes to the intent what the volume's class of attributes says.
func (f ClaimFacts) attributes(in *Intent) error {
	name := AttributesOf(f.Claim)
	switch {
	case name == "":
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

var errAttributes = errors.New("VolumeAttributesClass")
