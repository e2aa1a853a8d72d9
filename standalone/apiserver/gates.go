package apiserver

import (
	"fmt"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// openGates sets the feature gates of the process: Kubernetes' packages read them from one place. It returns an error
// for a gate that this version of Kubernetes does not have, or has locked to another value.
func openGates(wanted map[string]bool) error {
	if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(wanted); err != nil {
		return fmt.Errorf("feature gates: %w", err)
	}
	return nil
}
