package orphans

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/volume"
)

// Request says how to adopt a volume.
type Request struct {
	Driver, Handle string
	// Claim is the name of the claim to create; none is created if it is empty.
	Claim types.NamespacedName
	// Name is the name of the PersistentVolume; "" means the name under which the volume was created, or one derived from
	// the handle.
	Name string
	// Modes are the access modes; empty means ReadWriteOnce.
	Modes []corev1.PersistentVolumeAccessMode
	// Bytes is the size of the volume if the driver does not report it.
	Bytes  int64
	FSType string
	// Mode is the volume mode; "" means the one in the driver's records, or Filesystem.
	Mode       corev1.PersistentVolumeMode
	Attributes map[string]string
	// Class is the class of the PersistentVolume and the claim; nil means the bundled driver's own class for a volume of
	// the bundled driver, and otherwise no class.
	Class *string
	// Force adopts a volume that may be in use.
	Force bool
}

// Contents is what is on a volume.
type Contents struct {
	// Known means that the volume could be read.
	Known bool
	// Holds is the filesystem's type, or "".
	Holds string
	// Blank means that nothing was ever written.
	Blank bool
}

// AdoptionFacts is what the decision to adopt one volume depends on.
type AdoptionFacts struct {
	Facts
	Request  Request
	Contents Contents
	// Claim is the existing claim with the name, or nil.
	Claim *corev1.PersistentVolumeClaim
	// Default says that the bundled driver's own class exists.
	Default bool
}

// Adoption holds the objects to write, in this order. It is empty when all is done.
type Adoption struct {
	// Create is the PersistentVolume to create.
	Create *corev1.PersistentVolume
	// Link is the PersistentVolume, adopted earlier, whose claimRef must be set.
	Link *corev1.PersistentVolume
	// Claim is the claim to create.
	Claim *corev1.PersistentVolumeClaim
	// Object is the resulting PersistentVolume; nil if the adoption is refused.
	Object *corev1.PersistentVolume
}

// Adopt decides with which objects a volume is adopted.
func Adopt(f AdoptionFacts) (Adoption, volume.Because) {
	var a Adoption
	i := slices.IndexFunc(f.First, func(e Entry) bool { return e.Handle == f.Request.Handle })
	if i < 0 {
		return a, refuse(volume.ReasonVolumeMissing, "driver "+f.Driver+" does not list volume "+Printable(f.Request.Handle))
	}
	e := f.First[i]
	at := slices.IndexFunc(f.After, func(v *corev1.PersistentVolume) bool {
		return v.Spec.CSI != nil && v.Spec.CSI.Driver == f.Driver && v.Spec.CSI.VolumeHandle == e.Handle
	})
	var because volume.Because
	if at >= 0 {
		a, because = f.existing(f.After[at])
	} else {
		a, because = f.create(e)
	}
	if a.Object == nil || f.Request.Claim.Name == "" {
		return a, because
	}
	if f.Claim == nil {
		a.Claim = claimOf(a.Object)
		return a, because
	}
	if f.Claim.Spec.VolumeName != a.Object.Name || f.Claim.DeletionTimestamp != nil {
		return Adoption{}, refuse(volume.ReasonClaimMisbound,
			"claim "+f.Request.Claim.String()+" already exists and is not for this volume: choose another name, or delete it")
	}
	return a, because
}

func refuse(r volume.Reason, message string) volume.Because {
	return volume.Say(r, volume.User(), message)
}

// existing decides about a volume that has an object.
func (f AdoptionFacts) existing(v *corev1.PersistentVolume) (Adoption, volume.Because) {
	want, ref := f.Request.Claim, v.Spec.ClaimRef
	done := volume.Because{
		Reason: volume.ReasonNothingToDo, Message: "volume " + Printable(f.Request.Handle) + " has its object pv/" + v.Name,
	}
	switch {
	case v.DeletionTimestamp != nil:
		return Adoption{}, refuse(volume.ReasonTerminating,
			"pv/"+v.Name+" of this volume is being deleted: try again when it is gone")
	case want.Name == "" || ref != nil && ref.Namespace == want.Namespace && ref.Name == want.Name &&
		(ref.UID == "" || f.Claim != nil && f.Claim.UID == ref.UID):
		return Adoption{Object: v}, done
	case ref != nil:
		return Adoption{}, refuse(volume.ReasonInUse,
			fmt.Sprintf("pv/%s of this volume is for claim %s/%s: when that no longer needs it, remove claimRef from the object",
				v.Name, ref.Namespace, ref.Name))
	}
	linked := v.DeepCopy()
	linked.Spec.ClaimRef = refOf(want)
	return Adoption{Link: linked, Object: linked},
		volume.Because{Reason: volume.ReasonAdopted, Message: "pv/" + v.Name + " is bound to claim " + want.String()}
}

// create decides about a volume without an object.
func (f AdoptionFacts) create(e Entry) (Adoption, volume.Because) {
	p := Find(f.Facts)
	i := slices.IndexFunc(p.Findings, func(o Finding) bool { return o.Kind == Volume && o.Handle == e.Handle })
	switch {
	case i < 0:
		return Adoption{}, refuse(volume.ReasonProvisioning,
			"volume "+Printable(e.Handle)+" is being created or deleted: check again with 'volplane orphans'")
	case p.Findings[i].Doubt && !f.Request.Force:
		return Adoption{}, refuse(p.Findings[i].Reason, p.Findings[i].Message+"; use --force to adopt it anyway")
	}
	if problem := f.problem(e); problem != "" {
		return Adoption{}, refuse(volume.ReasonVolumeMismatch, problem)
	}
	v := f.object(e)
	if slices.ContainsFunc(f.After, func(other *corev1.PersistentVolume) bool { return other.Name == v.Name }) {
		return Adoption{}, refuse(volume.ReasonVolumeMismatch,
			"there is already a pv/"+v.Name+" for another volume: choose another name with --name")
	}
	return Adoption{Create: v, Object: v}, volume.Because{
		Reason: volume.ReasonAdopted, Message: "volume " + Printable(e.Handle) + " is adopted as pv/" + v.Name,
	}
}

// problem returns what is missing in a Request, or contradicts the facts; or "".
func (f AdoptionFacts) problem(e Entry) string {
	w := f.Request
	switch {
	case e.Bytes == 0 && w.Bytes == 0:
		return "driver " + f.Driver + " does not report the size of volume " + Printable(e.Handle) + ": set it with --size"
	case e.Bytes != 0 && w.Bytes != 0 && e.Bytes != w.Bytes:
		return fmt.Sprintf("driver %s says that volume %s has %d bytes, not %d: omit --size", f.Driver,
			Printable(e.Handle), e.Bytes, w.Bytes)
	case w.Mode == corev1.PersistentVolumeBlock && w.FSType != "":
		return "a raw block volume has no filesystem: omit --fs-type"
	case f.Driver == volume.LocalDriver:
		return f.localProblem()
	}
	return ""
}

// localProblem is problem for the bundled driver's volumes.
func (f AdoptionFacts) localProblem() string {
	w, name := f.Request, Printable(f.Request.Handle)
	odd := slices.IndexFunc(w.Modes, func(m corev1.PersistentVolumeAccessMode) bool {
		return m == corev1.ReadWriteMany || m == corev1.ReadOnlyMany
	})
	files := w.Mode == corev1.PersistentVolumeFilesystem || w.FSType != ""
	switch {
	case odd >= 0:
		return fmt.Sprintf("a volume of driver %s is on one node at a time, not %s: ask for ReadWriteOnce or "+
			"ReadWriteOncePod", f.Driver, w.Modes[odd])
	case f.Contents.Holds != "" && w.FSType != "" && w.FSType != f.Contents.Holds:
		return fmt.Sprintf("volume %s holds %s, not %s: omit --fs-type", name, f.Contents.Holds, w.FSType)
	case !f.Contents.Known && w.FSType == "" && w.Mode != corev1.PersistentVolumeBlock:
		// One that only its writer can read would be formatted.
		return "it is not known from here what is on volume " + name +
			": run this as root on the host of its pool, or set --fs-type or --volume-mode Block"
	case f.Contents.raw() && files:
		return "volume " + name + " holds data and no filesystem: it is a raw block volume"
	}
	return ""
}

// raw says that there is data but no filesystem.
func (c Contents) raw() bool { return c.Known && !c.Blank && c.Holds == "" }

// shape returns the volume mode and the filesystem's type.
func (f AdoptionFacts) shape() (corev1.PersistentVolumeMode, string) {
	w, c := f.Request, f.Contents
	if w.Mode == corev1.PersistentVolumeBlock || c.raw() && f.Driver == volume.LocalDriver {
		return corev1.PersistentVolumeBlock, ""
	}
	fsType := cmp.Or(w.FSType, c.Holds)
	if fsType == "" && f.Driver == volume.LocalDriver {
		fsType = "ext4"
	}
	return corev1.PersistentVolumeFilesystem, fsType
}

// object returns the PersistentVolume of a volume.
func (f AdoptionFacts) object(e Entry) *corev1.PersistentVolume {
	w := f.Request
	modes := w.Modes
	if len(modes) == 0 {
		modes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	}
	class := ""
	switch {
	case w.Class != nil:
		class = *w.Class
	case f.Driver == volume.LocalDriver && f.Default:
		class = volume.DefaultClass
	}
	mode, fsType := f.shape()
	attributes := map[string]string{}
	maps.Copy(attributes, e.Context)
	maps.Copy(attributes, w.Attributes)
	v := &corev1.PersistentVolume{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolume"},
		ObjectMeta: metav1.ObjectMeta{
			Name: f.name(e), Annotations: map[string]string{volume.AnnProvisionedBy: f.Driver},
			Finalizers: []string{volume.FinalizerVolumeProtection},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{
				corev1.ResourceStorage: *resource.NewQuantity(cmp.Or(e.Bytes, w.Bytes), resource.BinarySI),
			},
			AccessModes:                   modes,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			StorageClassName:              class,
			VolumeMode:                    &mode,
			NodeAffinity:                  topology.Affinity(e.Segments),
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: f.Driver, VolumeHandle: e.Handle, FSType: fsType, VolumeAttributes: attributes,
			}},
		},
	}
	if w.Claim.Name != "" {
		v.Spec.ClaimRef = refOf(w.Claim)
	}
	return v
}

// name returns the name of the PersistentVolume. The name with which the volume was created is only
// the driver's word: it is used only if nothing else has it.
func (f AdoptionFacts) name(e Entry) string {
	if f.Request.Name != "" {
		return f.Request.Name
	}
	made := f.nameOf(e)
	taken := slices.ContainsFunc(f.After, func(v *corev1.PersistentVolume) bool { return v.Name == made })
	if !taken && len(validation.IsDNS1123Subdomain(made)) == 0 {
		return made
	}
	sum := sha256.Sum256([]byte(f.Driver + "\x00" + e.Handle))
	return "adopted-" + hex.EncodeToString(sum[:16])
}

func refOf(claim types.NamespacedName) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name,
	}
}

// claimOf returns the claim that a PersistentVolume is reserved for.
func claimOf(v *corev1.PersistentVolume) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"},
		ObjectMeta: metav1.ObjectMeta{Namespace: v.Spec.ClaimRef.Namespace, Name: v.Spec.ClaimRef.Name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: v.Spec.AccessModes, StorageClassName: &v.Spec.StorageClassName, VolumeMode: v.Spec.VolumeMode,
			VolumeName: v.Name,
			Resources:  corev1.VolumeResourceRequirements{Requests: v.Spec.Capacity},
		},
	}
}
