package apiserver

import (
	"fmt"
	"maps"
	"slices"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kubernetes/pkg/features"
)

// gates are the features that differ from Kubernetes' defaults: the node agent and the controllers write the health of
// volumes and of drivers' storage into the fields of KEP-1432, which the server would otherwise drop.
func gates() map[string]bool {
	return map[string]bool{string(features.CSIVolumeHealth): true}
}

// setGates sets features for the whole process; the requested ones override its own. It must be called before any part
// of the server is created, because some parts read their features at that time. It may be repeated.
func setGates(asked map[string]bool) error {
	all := gates()
	maps.Copy(all, asked)
	unknown := maps.Clone(all)
	for feature := range utilfeature.DefaultMutableFeatureGate.GetAll() {
		delete(unknown, string(feature))
	}
	// The gate would remember an unknown name, and refuse everything after it.
	if names := slices.Sorted(maps.Keys(unknown)); len(names) > 0 {
		return fmt.Errorf("feature gate %.80q: Kubernetes has no such feature", names[0])
	}
	if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(all); err != nil {
		return fmt.Errorf("feature gates: %w", err)
	}
	return nil
}
