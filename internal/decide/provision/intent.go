package provision

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/volume"
)

// Intent has everything that CreateVolume and the volume object need. It is written to the log
// before the call, so that the call can be repeated with the same arguments, or undone, after a
// crash and after changes of the claim and its class.
type Intent struct {
	Driver string `json:"driver"`
	// Claim is the reference to the claim for the volume object.
	Claim corev1.ObjectReference `json:"claim"`
	// Node is the node on which the volume is made, if the driver is node-local; otherwise "".
	Node string `json:"node,omitempty"`
	// Name is the name of the volume at the driver and of its object.
	Name       string                              `json:"name"`
	Bytes      int64                               `json:"bytes"`
	Parameters map[string]string                   `json:"parameters,omitempty"`
	Modes      []corev1.PersistentVolumeAccessMode `json:"modes"`
	Block      bool                                `json:"block,omitempty"`
	FSType     string                              `json:"fsType,omitempty"`
	ReadOnly   bool                                `json:"readOnly,omitempty"`
	Options    []string                            `json:"options,omitempty"`
	Source     string                              `json:"source,omitempty"`
	Snapshot   string                              `json:"snapshot,omitempty"`
	// SourceName is the name of the source claim or snapshot, and SourceNamespace its namespace if it is not the claim's.
	SourceName      string `json:"sourceName,omitempty"`
	SourceNamespace string `json:"sourceNamespace,omitempty"`

	Requisite  []topology.Segment `json:"requisite,omitempty"`
	Preferred  []topology.Segment `json:"preferred,omitempty"`
	Secrets    Secrets            `json:"secrets,omitzero"`
	Class      string             `json:"class,omitempty"`
	Attributes *string            `json:"attributesClass,omitempty"`
	// Mutable are the parameters of the VolumeAttributesClass.
	Mutable map[string]string                    `json:"mutable,omitempty"`
	Reclaim corev1.PersistentVolumeReclaimPolicy `json:"reclaim"`
	// Begun is when the intent was written; intents of earlier versions lack it.
	Begun metav1.Time `json:"begun,omitzero"`
}

// ParseIntent parses the result of String. It refuses an intent whose volume does not belong to its
// claim, because the intent decides what a driver creates and deletes.
func ParseIntent(text string) (*Intent, error) {
	in := &Intent{}
	if err := json.Unmarshal([]byte(text), in); err != nil {
		return nil, fmt.Errorf("read intent: %w", err)
	}
	if in.Driver == "" || in.Claim.UID == "" || !isNameOf(in.Claim.UID, in.Name) {
		return nil, fmt.Errorf("intent of claim %.80q for volume %.80q at driver %.80q makes no sense", in.Claim.UID,
			in.Name, in.Driver)
	}
	return in, nil
}

// ParseIntents reads the intents of a log. The error tells of those that cannot be read, and are left out.
func ParseIntents(log map[string]string) (all []*Intent, err error) {
	for _, text := range log {
		in, bad := ParseIntent(text)
		if bad != nil {
			err = errors.Join(err, bad)
			continue
		}
		all = append(all, in)
	}
	return all, err
}

// String returns the intent as it is written to the log.
func (in *Intent) String() string {
	text, err := json.Marshal(in)
	if err != nil {
		panic(err) // impossible: the fields are strings, numbers and lists of them
	}
	return string(text)
}

// Request returns a text that is equal for intents with the same arguments and the same volume
// object, whichever version of the claim they are from.
func (in *Intent) Request() string {
	c := *in
	c.Claim.ResourceVersion, c.Begun = "", metav1.Time{}
	return c.String()
}

// maxRefusals is how many nodes an annotation AnnRefusedOn names.
const maxRefusals = 16

// RefusedOn returns the nodes whose drivers could not make the volume of a claim, the latest one last.
func RefusedOn(claim *corev1.PersistentVolumeClaim) []string {
	text := claim.Annotations[volume.AnnRefusedOn]
	if text == "" || len(text) > maxRefusals*(validation.DNS1123SubdomainMaxLength+1) {
		return nil
	}
	return strings.Split(text, ",")
}

// Refused returns the claim without its selected node, and with that node among those that could not make its volume.
func Refused(claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	node := volume.SelectedNode(claim.Annotations)
	all := append(volume.Without(RefusedOn(claim), node), node)
	c := Unselected(claim)
	metav1.SetMetaDataAnnotation(&c.ObjectMeta, volume.AnnRefusedOn,
		strings.Join(all[max(0, len(all)-maxRefusals):], ","))
	return c
}

// Unselected returns the claim without its selected node.
func Unselected(claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	c := claim.DeepCopy()
	delete(c.Annotations, volume.AnnSelectedNode)
	delete(c.Annotations, volume.AnnAlphaSelectedNode)
	return c
}

// Copies says whether the intent creates a clone of a claim.
func (in *Intent) Copies(c *corev1.PersistentVolumeClaim) bool {
	return in.Source != "" && in.From().Key() == cluster.Key(c)
}

// Restores says whether the intent creates a volume from a snapshot.
func (in *Intent) Restores(namespace, name string) bool {
	return in.Snapshot != "" && in.From().Key() == namespace+"/"+name
}

// Protected returns the claim with the finalizer that keeps it while it is being cloned, or nil if
// it has the finalizer.
func Protected(c *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	if slices.Contains(c.Finalizers, volume.FinalizerCloning) {
		return nil
	}
	c = c.DeepCopy()
	c.Finalizers = append(c.Finalizers, volume.FinalizerCloning)
	return c
}

// Copied explains why the finalizer keeps a claim that is being deleted. open are the intents that
// are known, perhaps none.
func Copied(c *corev1.PersistentVolumeClaim, open []*Intent) volume.Because {
	b := volume.Say(volume.ReasonInUse, volume.Controller("provisioner"), "it stays until no copy of it is being created")
	if i := slices.IndexFunc(open, func(in *Intent) bool { return in.Copies(c) }); i >= 0 {
		b.Message, b.Next = "volume "+open[i].Name+" is being created as a copy of it", volume.Driver(open[i].Driver)
	}
	return b
}

// Released returns the claim without the finalizer, or nil. The finalizer stays until the claim is
// deleted, which saves a write for the next clone, and while one of the open intents creates a clone.
func Released(c *corev1.PersistentVolumeClaim, open []*Intent) *corev1.PersistentVolumeClaim {
	if c.DeletionTimestamp == nil || !slices.Contains(c.Finalizers, volume.FinalizerCloning) {
		return nil
	}
	if slices.ContainsFunc(open, func(in *Intent) bool { return in.Copies(c) }) {
		return nil
	}
	c = c.DeepCopy()
	c.Finalizers = volume.Without(c.Finalizers, volume.FinalizerCloning)
	return c
}
