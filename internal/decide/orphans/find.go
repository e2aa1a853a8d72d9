package orphans

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/bind"
	"volplane.dev/volplane/internal/decide/provision"
	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/volume"
)

// Keys of a volume's context in which provisioners record the object and the claim.
const (
	keyVolume    = "csi.storage.k8s.io/pv/name"
	keyClaim     = "csi.storage.k8s.io/pvc/name"
	keyNamespace = "csi.storage.k8s.io/pvc/namespace"
)

// Find returns the volumes and objects that have no counterpart.
func Find(f Facts) Plan {
	var p Plan
	known, tails := f.objects()
	again := handles(f.Second)
	making := f.beingCreated()
	// The bundled driver's handles follow from names. For other drivers, any volume may be the one being created.
	unknown := f.Hidden || f.Driver != volume.LocalDriver && slices.ContainsFunc(making, func(name string) bool {
		return !slices.ContainsFunc(f.First, func(e Entry) bool { return f.madeAs(e, name) })
	})
	seen := map[string]bool{}
	for _, e := range f.First {
		// What is gone at the second listing is being deleted by another client.
		if e.Handle == "" || seen[e.Handle] || known[e.Handle] || tails[lastComponent(e.Handle)] || !again[e.Handle] {
			continue
		}
		seen[e.Handle] = true
		if slices.ContainsFunc(making, func(name string) bool { return f.madeAs(e, name) }) {
			p.Creating++
			continue
		}
		p.Findings = append(p.Findings, f.orphan(e, unknown))
	}
	f.missing(&p, again)
	slices.SortFunc(p.Findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(b.Kind, a.Kind), cmp.Compare(a.Handle, b.Handle), cmp.Compare(a.Object, b.Object))
	})
	return p
}

func handles(all []Entry) map[string]bool {
	out := map[string]bool{}
	for _, e := range all {
		out[e.Handle] = true
	}
	return out
}

// objects returns the handles in PersistentVolumes. An in-tree source may have a path or an address
// that ends in the handle: those are in tails, by their last component.
func (f Facts) objects() (known, tails map[string]bool) {
	known, tails = map[string]bool{}, map[string]bool{}
	for _, v := range slices.Concat(f.Before, f.After) {
		switch {
		case v.Spec.CSI == nil:
			for _, id := range cluster.InTreeIDs(v) {
				tails[lastComponent(id)] = true
			}
		case v.Spec.CSI.Driver == f.Driver:
			known[v.Spec.CSI.VolumeHandle] = true
		}
	}
	delete(tails, "")
	return known, tails
}

func lastComponent(id string) string { return id[strings.LastIndex(id, "/")+1:] }

// beingCreated returns the names of volumes that are being created: volplane's provisioner writes an
// intent, for others an unbound claim counts.
func (f Facts) beingCreated() []string {
	var out []string
	for _, in := range f.Intents {
		if in.Driver == f.Driver {
			out = append(out, in.Name)
		}
	}
	for _, c := range f.Claims {
		by := cmp.Or(c.Annotations[volume.AnnStorageProvisioner], c.Annotations[volume.AnnBetaStorageProvisioner])
		if c.Spec.VolumeName == "" && by == f.Driver {
			out = append(out, provision.NameOf(c))
		}
	}
	return out
}

// madeAs says whether a volume was created with a name, as far as is known.
func (f Facts) madeAs(e Entry, name string) bool {
	return e.Name == name || e.Context[keyVolume] == name || strings.Contains(e.Handle, name) ||
		f.Driver == volume.LocalDriver && e.Handle == localHandle(name)
}

// localHandle returns the bundled driver's handle for a name.
func localHandle(name string) string {
	sum := sha256.Sum256([]byte(name))
	return "vol-" + hex.EncodeToString(sum[:16])
}

// orphan returns the finding about a volume without an object.
func (f Facts) orphan(e Entry, unknown bool) Finding {
	out := Finding{
		Kind: Volume, Driver: f.Driver, Handle: e.Handle, Bytes: e.Bytes, Nodes: e.Nodes, Doubt: true,
		Object: f.nameOf(e), By: e.Context[volume.KeyIdentity],
	}
	if ns, name := e.Context[keyNamespace], e.Context[keyClaim]; ns != "" && name != "" {
		out.Claim = ns + "/" + name
	}
	for _, c := range f.Claims {
		if out.Object == provision.NameOf(c) {
			out.Claim = c.Namespace + "/" + c.Name
		}
	}
	stranger := slices.IndexFunc(e.Nodes, func(id string) bool { return !f.NodeIDs[id] })
	inline := inlineHandle.MatchString(e.Handle)
	name := "volume " + Printable(e.Handle)
	switch {
	case inline:
		out.Reason, out.Message = volume.ReasonNotMine, name+" is part of a Pod, as its handle says"
	case stranger >= 0:
		out.Reason, out.Next = volume.ReasonInUse, volume.User()
		out.Message = fmt.Sprintf("%s is in use on node %s, which is not part of this cluster: it belongs to another one",
			name,
			Printable(e.Nodes[stranger]))
	case f.Hidden:
		out.Reason, out.Next = volume.ReasonProvisioning, volume.User()
		out.Message = name + " may be one that is being created: you may not list the ConfigMaps that record this"
	case unknown:
		out.Reason, out.Next = volume.ReasonProvisioning, volume.Driver(f.Driver)
		out.Message = name + " has no object, and may be one that is being created: try again when no claim waits for " +
			"driver " +
			f.Driver
	default:
		out.Doubt, out.Reason, out.Next = false, volume.ReasonOrphaned, volume.User()
		out.Message = name + " has no object in this cluster; another one that uses the same driver may have one"
	}
	return out
}

var (
	inlineHandle = regexp.MustCompile(`^csi-[0-9a-f]{64}$`)
	pvName       = regexp.MustCompile(`pvc-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)
)

// nameOf returns the name of the object for which a volume was created; "" if it is unknown.
func (f Facts) nameOf(e Entry) string {
	for _, name := range []string{
		e.Name, e.Context[keyVolume],
		pvName.FindString(e.Handle),
	} {
		if name != "" {
			return name
		}
	}
	for _, c := range f.Claims {
		if name := provision.NameOf(c); f.madeAs(e, name) {
			return name
		}
	}
	return ""
}

// missing adds the objects without a volume: those that existed before the driver's first list, and
// are in none of its lists.
func (f Facts) missing(p *Plan, listed map[string]bool) {
	first, after := handles(f.First), map[string]*corev1.PersistentVolume{}
	for _, v := range f.After {
		after[v.Name] = v
	}
	for _, before := range f.Before {
		v := after[before.Name]
		if v == nil || v.UID != before.UID || v.Spec.CSI == nil || v.Spec.CSI.Driver != f.Driver || isDeleting(v) {
			continue
		}
		handle := v.Spec.CSI.VolumeHandle
		switch {
		case first[handle] || listed[handle]:
		case !reaches(v, f.Own):
			p.Elsewhere++
		default:
			out := Finding{
				Kind: Object, Driver: f.Driver, Handle: handle, Object: v.Name, Reason: volume.ReasonVolumeMissing,
				Next:    volume.User(),
				Message: fmt.Sprintf("driver %s does not list volume %s of pv/%s", f.Driver, Printable(handle), v.Name),
			}
			size := v.Spec.Capacity[corev1.ResourceStorage]
			out.Bytes = size.Value()
			if ref := v.Spec.ClaimRef; ref != nil {
				out.Claim = ref.Namespace + "/" + ref.Name
			}
			p.Findings = append(p.Findings, out)
		}
	}
}

// isDeleting says whether the volume of an object is being deleted.
func isDeleting(v *corev1.PersistentVolume) bool {
	deletes := v.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete
	return v.DeletionTimestamp != nil || deletes && bind.IsReleased(v)
}

// reaches says whether a volume may be in a segment; otherwise it belongs to another instance of
// the driver.
func reaches(v *corev1.PersistentVolume, own topology.Segment) bool {
	if v.Spec.NodeAffinity == nil || v.Spec.NodeAffinity.Required == nil {
		return true
	}
	return slices.ContainsFunc(v.Spec.NodeAffinity.Required.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool {
		return !slices.ContainsFunc(t.MatchExpressions, func(r corev1.NodeSelectorRequirement) bool {
			value, ok := own[r.Key]
			return ok && r.Operator == corev1.NodeSelectorOpIn && !slices.Contains(r.Values, value)
		})
	})
}

// Printable returns a name that a driver or user has chosen, quoted if it could be mistaken for
// something else on a line.
func Printable(s string) string {
	odd := strings.ContainsFunc(s, func(r rune) bool {
		return !strconv.IsPrint(r) || r == ' ' || r == '"' || r == '\ufffd'
	})
	if odd || s == "" {
		return strconv.QuoteToASCII(s)
	}
	return s
}

// Entry is one volume as its driver lists it.
type Entry struct {
	Handle   string
	Bytes    int64
	Context  map[string]string
	Segments []topology.Segment
	// Nodes are the driver's ids of the nodes that the volume is published to.
	Nodes []string
	// Name is the name with which the volume was created, if the driver's own records have it.
	Name string
}

// Facts is what the decision about one driver depends on. The order of the reads matters: a volume that is created or
// deleted between them is neither an orphan nor missing.
type Facts struct {
	Driver string
	// Own is the topology segment of the driver's node, if it has one.
	Own topology.Segment
	// Before are the PersistentVolumes, which were read first. First is the driver's list, read after that. Then Claims
	// and Intents were read, then the PersistentVolumes again (After), and finally the driver's list (Second).
	Before, After []*corev1.PersistentVolume
	First, Second []Entry
	Claims        []*corev1.PersistentVolumeClaim
	Intents       []*provision.Intent
	// Hidden says that the intents could not be read.
	Hidden bool
	// NodeIDs are the driver's ids of the nodes of this cluster.
	NodeIDs map[string]bool
}

// Kind is the kind of a finding.
type Kind string

// Kinds of findings.
const (
	// Volume: the driver has a volume that no object names.
	Volume Kind = "volume"
	// Object: the driver does not have the volume of a PersistentVolume.
	Object Kind = "object"
)

// Finding is one volume or object without a counterpart.
type Finding struct {
	Kind   Kind   `json:"kind"`
	Driver string `json:"driver"`
	Handle string `json:"handle"`
	// Object is the name of the PersistentVolume, or the name with which the volume was created, if
	// known.
	Object string `json:"object,omitempty"`
	// Claim is "namespace/name" of the claim for which the volume was created, if known.
	Claim string `json:"claim,omitempty"`
	// By is the identity of the provisioner that created the volume, if known.
	By string `json:"by,omitempty"`
	// Bytes is the size of the volume; 0 if the driver does not report it.
	Bytes int64 `json:"bytes,omitempty"`
	// Nodes are the driver's ids of the nodes that the volume is published to.
	Nodes []string `json:"nodes,omitempty"`
	// Doubt means that the volume may be in use: it is adopted only with Force.
	Doubt   bool          `json:"doubt,omitempty"`
	Reason  volume.Reason `json:"reason"`
	Message string        `json:"message"`
	Next    volume.Actor  `json:"next,omitzero"`
}

// Plan is the result for one driver.
type Plan struct {
	Findings []Finding
	// Creating is the number of volumes that are being created. Elsewhere is the number of objects
	// whose volume is in a segment that this driver cannot reach.
	Creating, Elsewhere int
}
