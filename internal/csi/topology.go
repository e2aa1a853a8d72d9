package csi

import csipb "github.com/container-storage-interface/spec/lib/go/csi"

// Topologies returns segments as CSI has them.
func Topologies[S ~map[string]string](segments []S) (out []*csipb.Topology) {
	for _, s := range segments {
		out = append(out, &csipb.Topology{Segments: s})
	}
	return out
}

// Segments returns the segments of topologies.
func Segments[S ~map[string]string](topologies []*csipb.Topology) (out []S) {
	for _, t := range topologies {
		out = append(out, t.GetSegments())
	}
	return out
}
