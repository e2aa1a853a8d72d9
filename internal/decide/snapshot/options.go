package snapshot

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/volume"
)

// Options are what the user of a snapshotter has chosen. With the zero value, no choice can conflict with another
// snapshotter's, and none is recorded.
type Options struct {
	// NamePrefix begins the names at the driver; empty means the usual prefix.
	NamePrefix string
	// NameLength cuts the UID in the names, without its hyphens, to this many characters; 0 keeps all of it.
	NameLength int
	// ExtraMetadata adds the names of the snapshot, or of the group, and of its content to the parameters.
	ExtraMetadata bool
	// Node restricts the work to the contents of one node; empty means all contents.
	Node string
	// Rest means that this process serves the contents that belong to no node.
	Rest bool
	// Topology says that requests and answers of drivers have the topology in which snapshots can be used.
	Topology bool
}

// Has says whether a content is for a snapshotter with these options.
func (o Options) Has(content metav1.Object) bool {
	return o.Node == "" || content.GetLabels()[volume.LabelSnapshotsOf] == o.Node
}

// nameOf returns the name that a request to the driver uses for an object with the UID.
func (o Options) nameOf(usual, uid string) string {
	return volume.CutName(cmp.Or(o.NamePrefix, usual), uid, o.NameLength)
}

// Asked is the request to the driver for a content.
type Asked struct {
	Name string
	// Parameters is JSON, and Topologies as well, unless it is empty: the driver chooses.
	Parameters, Topologies string
	// Noted says that both are written to the content with the intent.
	Noted bool
}

// Ask returns the request to the driver. Once a content has recorded the name, it was used and must be used again,
// whatever the options are now: another name would create another snapshot, and other parameters are an error. kind is
// "volumesnapshot" or "volumegroupsnapshot", and usual the usual prefix.
func (o Options) Ask(
	content metav1.Object, ref corev1.ObjectReference, kind, usual, parameters string,
) Asked {
	topologies := content.GetAnnotations()[volume.AnnSnapshotTopologies]
	if name := content.GetAnnotations()[volume.AnnSnapshotName]; name != "" {
		return Asked{Name: name, Parameters: parameters, Topologies: topologies, Noted: true}
	}
	out := Asked{
		Name: o.nameOf(usual, string(ref.UID)), Parameters: parameters, Topologies: topologies,
		Noted: o != Options{Rest: o.Rest, Topology: o.Topology},
	}
	if o.ExtraMetadata {
		out.Parameters = withMetadata(parameters, map[string]string{
			keyPrefix + kind + "/name": ref.Name, keyPrefix + kind + "/namespace": ref.Namespace,
			keyPrefix + kind + "content/name": content.GetName(),
		})
	}
	return out
}

// NoteAsked records the driver request in a content.
func NoteAsked[C Object[C]](a Asked, content C) C {
	content = Noted(content, volume.AnnSnapshotParameters, a.Parameters)
	content = Noted(content, volume.AnnSnapshotTopologies, a.Topologies)
	if a.Noted {
		content = Noted(content, volume.AnnSnapshotName, a.Name)
	}
	return content
}

// withMetadata adds to parameters, which are JSON. Anything but a JSON object of strings is left as it is, and refused.
func withMetadata(parameters string, more map[string]string) string {
	all := map[string]string{}
	if json.Unmarshal([]byte(parameters), &all) != nil {
		return parameters
	}
	maps.Copy(all, more)
	text, _ := json.Marshal(all) // strings always marshal
	return string(text)
}

// Rival is a content of the same driver for which nothing has been taken yet.
type Rival struct {
	// Content is its name, and Name the name in the driver request.
	Content, Name string
	// Intended means that the driver may have been called.
	Intended bool
}

// before says whether a rival has precedence.
func (r Rival) before(other Rival) bool {
	if r.Intended != other.Intended {
		return r.Intended
	}
	return r.Content < other.Content
}

// Blocks returns the name of the content that one with the same, cut name waits for, or "": a driver would answer both
// with one snapshot.
func Blocks(own Rival, all []Rival) string {
	i := slices.IndexFunc(all, func(r Rival) bool {
		return r.Content != own.Content && r.Name == own.Name && r.before(own)
	})
	if i < 0 {
		return ""
	}
	return all[i].Content
}
