package topology

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// Errors of Require.
var (
	// ErrNode says that the selected node has no segment; another node must be selected.
	ErrNode = errors.New("selected node has no topology of the driver")
	// ErrNone says that no node has a segment.
	ErrNone = errors.New("no node has a topology of the driver")
	// ErrSource says that the volume's data cannot be read from any segment in which the volume may be.
	ErrSource = errors.New("no allowed topology has the data from which the volume is to be created")
)

// Segment is a CSI topology segment: topology keys and their values.
type Segment map[string]string

// Facts is what the requirement depends on.
type Facts struct {
	// Driver is the driver's name.
	Driver string
	// Claim is the claim's name.
	Claim string
	// Selected is the name of the claim's selected node; "" with immediate binding.
	Selected string
	// Only is the one node on which the volume can be created; "" means any.
	Only string
	// Strict means that the volume must be created where the selected node is, not anywhere else that its class allows.
	Strict bool
	// NotImmediate means that the driver gets no topology if neither a node nor the class says where the volume belongs.
	NotImmediate bool
	// Source are the nodes that can read the data from which the volume is created; nil means all.
	Source *corev1.VolumeNodeAffinity
	// Allowed are the class's allowed topologies.
	Allowed []corev1.TopologySelectorTerm
	// Nodes are the nodes by name.
	Nodes map[string]*corev1.Node
	// CSINodes are the CSINodes by name.
	CSINodes map[string]*storagev1.CSINode
}

// Requirement is CSI's TopologyRequirement. Both lists have the same segments, in different orders.
type Requirement struct{ Requisite, Preferred []Segment }

// Require returns the requirement for a new volume: the class's allowed segments, otherwise those of all nodes of the
// driver. The segment of the selected node is preferred. Without a selected node, the claim's name determines the
// preferred segment, so that the claims of a StatefulSet are spread (S1-027 to S1-038). If only one node can make the
// volume, or the selected one is to, there is only its segment.
func Require(f Facts) (Requirement, error) {
	var own Segment
	selected := cmp.Or(f.Selected, f.Only)
	if selected != "" {
		var err error
		if own, err = segmentOf(f, selected); err != nil {
			return Requirement{}, err
		}
	}
	if f.isAnywhere(selected) {
		return Requirement{}, nil
	}
	all := Flatten(f.Allowed)
	if len(all) == 0 {
		all = aggregate(f, own)
	}
	if len(all) == 0 {
		return Requirement{}, ErrNone
	}
	if all = sorted(f.withSource(all)); len(all) == 0 {
		return Requirement{}, ErrSource
	}
	hash, index := spread(f.Claim)
	first := int((hash + index) % uint32(len(all)))
	if own != nil {
		if first = slices.IndexFunc(all, func(s Segment) bool { return s.Matches(own) }); first < 0 {
			return Requirement{}, fmt.Errorf("node %s: %w: it is not in any allowed topology", selected, ErrNode)
		}
	}
	if own != nil && (f.Only != "" || f.Strict) {
		return Requirement{Requisite: []Segment{own}, Preferred: []Segment{own}}, nil
	}
	return Requirement{Requisite: all, Preferred: slices.Concat(all[first:], all[:first])}, nil
}

// isAnywhere says whether the driver chooses the place of a volume, because no node, class or source limits it.
func (f Facts) isAnywhere(selected string) bool {
	return f.NotImmediate && selected == "" && len(Flatten(f.Allowed)) == 0 && f.Source == nil
}

// withSource returns the segments that have a node from which the data can be read.
func (f Facts) withSource(all []Segment) []Segment {
	if f.Source == nil {
		return all
	}
	return slices.DeleteFunc(all, func(s Segment) bool {
		for _, n := range f.Nodes {
			if s.Matches(n.Labels) && Selects(f.Source.Required, n) {
				return false
			}
		}
		return true
	})
}

// segmentOf returns the segment of a node: the driver's topology keys there, with the values of the
// node's labels.
func segmentOf(f Facts, name string) (Segment, error) {
	keys := keysOf(f.CSINodes[name], f.Driver)
	node := f.Nodes[name]
	if len(keys) == 0 || node == nil {
		return nil, fmt.Errorf("node %s: %w", name, ErrNode)
	}
	s, missing := place(keys, node.Labels)
	if missing != "" {
		return nil, fmt.Errorf("node %s: %w: label %s is missing", name, ErrNode, missing)
	}
	return s, nil
}

func keysOf(n *storagev1.CSINode, driver string) []string {
	if n == nil {
		return nil
	}
	for _, d := range n.Spec.Drivers {
		if d.Name == driver {
			return d.TopologyKeys
		}
	}
	return nil
}

// aggregate returns the segments of all nodes; with a selected node, only those with the same keys
// as its segment.
func aggregate(f Facts, own Segment) []Segment {
	var out []Segment
	for _, name := range slices.Sorted(maps.Keys(f.CSINodes)) {
		s, err := segmentOf(f, name)
		if err != nil || own != nil && !sameKeys(own, s) {
			continue
		}
		out = append(out, s)
	}
	return out
}

// Flatten returns the segments of allowed topologies: each combination of the values of a term.
func Flatten(terms []corev1.TopologySelectorTerm) []Segment {
	var out []Segment
	for _, t := range terms {
		combined := []Segment{{}}
		for _, e := range t.MatchLabelExpressions {
			var next []Segment
			for _, s := range combined {
				for _, v := range e.Values {
					c := maps.Clone(s)
					c[e.Key] = v
					next = append(next, c)
				}
			}
			combined = next
		}
		if len(t.MatchLabelExpressions) > 0 {
			out = append(out, combined...)
		}
	}
	return out
}

// sorted orders segments by length, then by keys and values, and removes duplicates, so that equal
// clusters have equal lists.
func sorted(all []Segment) []Segment {
	slices.SortFunc(all, func(a, b Segment) int {
		return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(text(a), text(b)))
	})
	return slices.CompactFunc(all, func(a, b Segment) bool { return maps.Equal(a, b) })
}

func text(s Segment) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(s)) {
		b.WriteString(k + "\x00" + s[k] + "\x00")
	}
	return b.String()
}

// Matches says whether labels, or another segment, have all values of the segment.
func (s Segment) Matches(labels map[string]string) bool {
	for k, v := range s {
		if labels[k] != v {
			return false
		}
	}
	return true
}

// Meets says whether a volume that is accessible from the given segments meets a requirement: a segment must not
// contradict one that was required. They may have different keys, because a driver may know a place by several.
func Meets(accessible, requisite []Segment) bool {
	return len(accessible) == 0 || len(requisite) == 0 || slices.ContainsFunc(accessible, func(a Segment) bool {
		return slices.ContainsFunc(requisite, func(r Segment) bool { return !a.contradicts(r) })
	})
}

func (s Segment) contradicts(other Segment) bool {
	for k, v := range s {
		if w, ok := other[k]; ok && v != w {
			return true
		}
	}
	return false
}

// Describe returns a segment for a message.
func Describe(s Segment) string {
	if len(s) == 0 {
		return "all places"
	}
	parts := make([]string, 0, len(s))
	for _, k := range slices.Sorted(maps.Keys(s)) {
		parts = append(parts, k+"="+s[k])
	}
	return strings.Join(parts, ",")
}

func sameKeys(a, b Segment) bool {
	return slices.Equal(slices.Sorted(maps.Keys(a)), slices.Sorted(maps.Keys(b)))
}

// spread returns the hash and the ordinal of a claim's name. The claims of a StatefulSet,
// "volume-set-ordinal", have the hash of the set's name: so the claims of one Pod get the same
// segment, and those of the next Pod the next one.
func spread(claim string) (hash, index uint32) {
	name := claim
	if i := strings.LastIndexByte(claim, '-'); i >= 0 {
		if n, err := strconv.ParseUint(claim[i+1:], 10, 32); err == nil {
			name, index = claim[:i], uint32(n)
			name = name[strings.LastIndexByte(name, '-')+1:]
		}
	}
	h := fnv.New32()
	_, _ = h.Write([]byte(name))
	return h.Sum32(), index
}

// AffinityOf returns the node affinity that says the same as the terms of a topology selector.
func AffinityOf(terms []corev1.TopologySelectorTerm) *corev1.VolumeNodeAffinity {
	required := &corev1.NodeSelector{}
	for _, t := range terms {
		var term corev1.NodeSelectorTerm
		for _, e := range t.MatchLabelExpressions {
			term.MatchExpressions = append(term.MatchExpressions,
				corev1.NodeSelectorRequirement{Key: e.Key, Operator: corev1.NodeSelectorOpIn, Values: e.Values})
		}
		required.NodeSelectorTerms = append(required.NodeSelectorTerms, term)
	}
	return &corev1.VolumeNodeAffinity{Required: required}
}

// TermsOf returns the terms of a topology selector that match the given segments, each of them once.
func TermsOf(segments []Segment) (out []corev1.TopologySelectorTerm) {
	for _, s := range sorted(slices.Clone(segments)) {
		if len(s) == 0 {
			// A term without expressions matches nothing.
			continue
		}
		var t corev1.TopologySelectorTerm
		for _, k := range slices.Sorted(maps.Keys(s)) {
			t.MatchLabelExpressions = append(t.MatchLabelExpressions,
				corev1.TopologySelectorLabelRequirement{Key: k, Values: []string{s[k]}})
		}
		out = append(out, t)
	}
	return out
}

// Affinity returns the node affinity of a volume with the given segments; nil means all nodes.
func Affinity(segments []Segment) *corev1.VolumeNodeAffinity {
	var terms []corev1.NodeSelectorTerm
	for _, s := range segments {
		if len(s) == 0 {
			// A term without expressions selects nothing.
			continue
		}
		var t corev1.NodeSelectorTerm
		for _, k := range slices.Sorted(maps.Keys(s)) {
			t.MatchExpressions = append(t.MatchExpressions,
				corev1.NodeSelectorRequirement{Key: k, Operator: corev1.NodeSelectorOpIn, Values: []string{s[k]}})
		}
		terms = append(terms, t)
	}
	if len(terms) == 0 {
		return nil
	}
	return &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: terms}}
}

// Selects says whether a node selector matches a node: all expressions of one of its terms must
// match. A nil selector matches every node, a selector without terms none.
func Selects(s *corev1.NodeSelector, n *corev1.Node) bool {
	if s == nil {
		return true
	}
	return slices.ContainsFunc(s.NodeSelectorTerms, func(t corev1.NodeSelectorTerm) bool {
		if len(t.MatchExpressions)+len(t.MatchFields) == 0 {
			return false
		}
		return all(t.MatchExpressions, n.Labels) && all(t.MatchFields, map[string]string{"metadata.name": n.Name})
	})
}

func all(exprs []corev1.NodeSelectorRequirement, labels map[string]string) bool {
	for _, e := range exprs {
		if !matches(e, labels) {
			return false
		}
	}
	return true
}

func matches(e corev1.NodeSelectorRequirement, labels map[string]string) bool {
	value, has := labels[e.Key]
	switch e.Operator {
	case corev1.NodeSelectorOpIn:
		return has && slices.Contains(e.Values, value)
	case corev1.NodeSelectorOpNotIn:
		return !has || !slices.Contains(e.Values, value)
	case corev1.NodeSelectorOpExists:
		return has
	case corev1.NodeSelectorOpDoesNotExist:
		return !has
	case corev1.NodeSelectorOpGt:
		return compare(value, e.Values) > 0
	case corev1.NodeSelectorOpLt:
		return compare(value, e.Values) < 0
	}
	return false
}

// compare compares a label's value with the only value of an expression. It returns 0 if they are
// equal, or if one of them is missing or not a number.
func compare(value string, want []string) int {
	if len(want) != 1 {
		return 0
	}
	a, err1 := strconv.ParseInt(value, 10, 64)
	b, err2 := strconv.ParseInt(want[0], 10, 64)
	if err1 != nil || err2 != nil {
		return 0
	}
	return cmp.Compare(a, b)
}

// Places returns the segments of all nodes on which the driver is registered, each once, in a fixed
// order. A node for which the driver has no topology keys is in the empty segment. A node whose
// labels lack a key is in none.
func Places(driver string, nodes []*corev1.Node, csiNodes []*storagev1.CSINode) []Segment {
	labels := make(map[string]map[string]string, len(nodes))
	for _, n := range nodes {
		labels[n.Name] = n.Labels
	}
	var out []Segment
	for _, n := range csiNodes {
		values, exists := labels[n.Name]
		for _, d := range n.Spec.Drivers {
			if s, missing := place(d.TopologyKeys, values); exists && missing == "" && d.Name == driver {
				out = append(out, s)
			}
		}
	}
	return sorted(out)
}

// place returns the segment that labels have for the keys, or a key that is missing.
func place(keys []string, labels map[string]string) (s Segment, missing string) {
	s = Segment{}
	for _, k := range keys {
		v, ok := labels[k]
		if !ok {
			return nil, k
		}
		s[k] = v
	}
	return s, ""
}
