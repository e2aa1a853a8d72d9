package topology

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// Places returns the segments of all nodes that the driver is registered on,
// each once, in an order that depends on nothing else. Nodes for which it has
// no topology keys are in the empty segment; one whose labels do not tell all
// keys (yet) is in none.
func Places(driver string, nodes []*corev1.Node, csiNodes []*storagev1.CSINode) []Segment {
	labels := make(map[string]map[string]string, len(nodes))
	for _, n := range nodes {
		labels[n.Name] = n.Labels
	}
	var out []Segment
	for _, n := range csiNodes {
		of, there := labels[n.Name]
		for _, d := range n.Spec.Drivers {
			if s, ok := place(d.TopologyKeys, of); there && ok && d.Name == driver {
				out = append(out, s)
			}
		}
	}
	return sorted(out)
}

// place returns the values that labels have for the keys; false when one is
// missing.
func place(keys []string, labels map[string]string) (Segment, bool) {
	s := Segment{}
	for _, k := range keys {
		v, ok := labels[k]
		if !ok {
			return nil, false
		}
		s[k] = v
	}
	return s, true
}
