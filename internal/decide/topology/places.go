package topology

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

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
