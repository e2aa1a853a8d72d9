package provision

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/volume"
)

// Intent is everything that CreateVolume is called with and that the volume
// object follows from. It is on disk before the call, so that the call can be
// repeated with the same arguments, or undone, after a crash and whatever
// became of the claim and its class meanwhile.
type Intent struct {
	Driver string `json:"driver"`
	// Claim is the reference to the claim as the volume object keeps it.
	Claim corev1.ObjectReference `json:"claim"`
	// Name is the name of the volume at the driver and of its object.
	Name       string                              `json:"name"`
	Bytes      int64                               `json:"bytes"`
	Parameters map[string]string                   `json:"parameters,omitempty"`
	Modes      []corev1.PersistentVolumeAccessMode `json:"modes"`
	Block      bool                                `json:"block,omitempty"`
	FSType     string                              `json:"fsType,omitempty"`
	Options    []string                            `json:"options,omitempty"`
	Source     string                              `json:"source,omitempty"`
	Snapshot   string                              `json:"snapshot,omitempty"`
	// SourceName is the name of the claim or snapshot that the data come from,
	// in the claim's namespace.
	SourceName string             `json:"sourceName,omitempty"`
	Requisite  []topology.Segment `json:"requisite,omitempty"`
	Preferred  []topology.Segment `json:"preferred,omitempty"`
	Secrets    Secrets            `json:"secrets,omitzero"`
	Class      string             `json:"class,omitempty"`
	Attributes *string            `json:"attributesClass,omitempty"`
	// Mutable are the parameters of that class.
	Mutable map[string]string                    `json:"mutable,omitempty"`
	Reclaim corev1.PersistentVolumeReclaimPolicy `json:"reclaim"`
	// Begun is when it was written down; those of earlier versions do not know.
	Begun metav1.Time `json:"begun,omitzero"`
}

// ParseIntent reads what String wrote. What is read decides what a driver
// makes and deletes: an intent that names no volume of its own is an error.
func ParseIntent(text string) (*Intent, error) {
	in := &Intent{}
	if err := json.Unmarshal([]byte(text), in); err != nil {
		return nil, fmt.Errorf("read intent: %w", err)
	}
	if in.Driver == "" || in.Claim.UID == "" || in.Name != nameOf(in.Claim.UID) {
		return nil, fmt.Errorf("intent of claim %.80q for volume %.80q at driver %.80q makes no sense", in.Claim.UID,
			in.Name, in.Driver)
	}
	return in, nil
}

// String returns the intent as it is kept.
func (in *Intent) String() string {
	text, err := json.Marshal(in)
	if err != nil {
		// Strings, numbers and lists of them are always written.
		panic(err)
	}
	return string(text)
}

// Question returns what is asked of the driver, and what becomes of the answer,
// whichever version of the claim asks.
func (in *Intent) Question() string {
	c := *in
	c.Claim.ResourceVersion, c.Begun = "", metav1.Time{}
	return c.String()
}

// NameOf returns the name of the volume for a claim (S1-024).
func NameOf(claim *corev1.PersistentVolumeClaim) string { return nameOf(claim.UID) }

func nameOf(uid types.UID) string { return "pvc-" + string(uid) }

// Unselected returns the claim without its selected node, so that another one
// is selected.
func Unselected(claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	c := claim.DeepCopy()
	delete(c.Annotations, volume.AnnSelectedNode)
	return c
}

func without(all []string, one string) []string {
	var out []string
	for _, s := range all {
		if s != one {
			out = append(out, s)
		}
	}
	return out
}
