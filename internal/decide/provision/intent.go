package provision

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/volume"
)

// Intent is everything that CreateVolume is called with and that the volume
// object follows from. It is written to the claim before the call, so that the
// call can be repeated with the same arguments, or undone, after a crash and
// whatever happened to the class meanwhile.
type Intent struct {
	Driver string `json:"driver"`
	// Name is the name of the volume at the driver and of its object.
	Name       string                               `json:"name"`
	Bytes      int64                                `json:"bytes"`
	Parameters map[string]string                    `json:"parameters,omitempty"`
	Modes      []string                             `json:"modes"`
	Block      bool                                 `json:"block,omitempty"`
	FSType     string                               `json:"fsType,omitempty"`
	Options    []string                             `json:"options,omitempty"`
	Source     string                               `json:"source,omitempty"`
	Requisite  []topology.Segment                   `json:"requisite,omitempty"`
	Preferred  []topology.Segment                   `json:"preferred,omitempty"`
	Secrets    Secrets                              `json:"secrets,omitzero"`
	Class      string                               `json:"class,omitempty"`
	Reclaim    corev1.PersistentVolumeReclaimPolicy `json:"reclaim"`
}

// IntentOf returns the intent that a claim carries; nil when there is none.
func IntentOf(claim *corev1.PersistentVolumeClaim) (*Intent, error) {
	text, ok := claim.Annotations[volume.AnnIntent]
	if !ok {
		return nil, nil
	}
	in := &Intent{}
	if err := json.Unmarshal([]byte(text), in); err != nil {
		return nil, fmt.Errorf("annotation %s: %w", volume.AnnIntent, err)
	}
	return in, nil
}

// WithIntent returns the claim with the intent on it.
func WithIntent(claim *corev1.PersistentVolumeClaim, in *Intent) (*corev1.PersistentVolumeClaim, error) {
	text, err := json.Marshal(in)
	if err != nil {
		return nil, fmt.Errorf("write intent: %w", err)
	}
	c := claim.DeepCopy()
	if c.Annotations == nil {
		c.Annotations = map[string]string{}
	}
	c.Annotations[volume.AnnIntent] = string(text)
	c.Finalizers = append(without(c.Finalizers, volume.FinalizerIntent), volume.FinalizerIntent)
	return c, nil
}

// WithoutIntent returns the claim after its intent is resolved. reschedule
// takes the selected node away too, so that another one is selected.
func WithoutIntent(claim *corev1.PersistentVolumeClaim, reschedule bool) *corev1.PersistentVolumeClaim {
	c := claim.DeepCopy()
	delete(c.Annotations, volume.AnnIntent)
	c.Finalizers = without(c.Finalizers, volume.FinalizerIntent)
	if reschedule {
		delete(c.Annotations, volume.AnnSelectedNode)
	}
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
