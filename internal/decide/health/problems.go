package health

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/volume"
)

// maxText limits the text about a volume in one event, in bytes.
const maxText = 800

// VolumeProblem returns the reason of a volume that its driver reports as unhealthy, and whether it does. The node is
// empty for what the driver's controller says.
func VolumeProblem(driver, name, node string, all []corev1.VolumeHealthCondition) (volume.Because, bool) {
	var words []string
	for _, c := range all {
		words = append(words, phrase(string(c.Status), c.Reason, c.Message, ""))
	}
	what := "volume " + name
	if node != "" {
		what += " on node " + node
	}
	return problemOf(driver, what, words)
}

// StorageProblem returns the reason of a volume whose driver reports unhealthy storage on a node, and whether the
// report concerns volumes like this one. A nil volume matches every report.
func StorageProblem(c *storagev1.CSINode, driver string, v *corev1.PersistentVolume) (volume.Because, bool) {
	var words []string
	for _, h := range c.Status.StorageHealth {
		for _, s := range h.HealthConditions {
			if h.Name == driver && affects(s, v) {
				words = append(words, phrase(string(s.Status), s.Reason, s.Message, scope(s)))
			}
		}
	}
	return problemOf(driver, "its storage, seen from node "+c.Name, words)
}

// affects says whether a problem of a storage concerns a volume.
func affects(s storagev1.StorageHealthCondition, v *corev1.PersistentVolume) bool {
	if v == nil {
		return true
	}
	return (s.AccessMode == nil || slices.Contains(v.Spec.AccessModes, *s.AccessMode)) &&
		(s.VolumeMode == nil || cluster.IsBlock(s.VolumeMode) == cluster.IsBlock(v.Spec.VolumeMode))
}

// scope names the volumes that a problem of a storage concerns, if it does not concern all.
func scope(s storagev1.StorageHealthCondition) string {
	var words []string
	if s.AccessMode != nil {
		words = append(words, string(*s.AccessMode))
	}
	if s.VolumeMode != nil {
		words = append(words, string(*s.VolumeMode))
	}
	return strings.Join(words, " ")
}

// phrase returns one problem in words.
func phrase(status, reason, message, of string) string {
	if of != "" {
		status += " for " + of
	}
	if message = line(message); message != "" {
		message = ": " + message
	}
	return fmt.Sprintf("%s (%s)%s", status, line(reason), message)
}

func problemOf(driver, what string, words []string) (volume.Because, bool) {
	if len(words) == 0 {
		return volume.Because{}, false
	}
	return volume.Say(volume.ReasonUnhealthy, volume.Driver(driver),
		"driver "+driver+" says of "+what+": "+cut(strings.Join(words, "; "), maxText)), true
}
