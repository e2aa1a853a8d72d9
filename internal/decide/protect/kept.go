package protect

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/volume"
)

// Owners say of each finalizer of ours what its owner waits for.
type Owners map[string]func() volume.Because

// Kept returns why an object that is being deleted is still there: because of the first
// of its finalizers whose owner we know, or else because of those of somebody else.
func Kept(what string, o metav1.Object, owners Owners) volume.Condition {
	terminating := func(next, message string) volume.Condition {
		return volume.Condition{Because: volume.Because{
			Reason: volume.ReasonTerminating, Next: next, Message: what + " is being deleted; " + message,
		}}
	}
	all := o.GetFinalizers()
	if i := slices.IndexFunc(all, func(f string) bool { return owners[f] != nil }); i >= 0 {
		b := owners[all[i]]()
		return terminating(cmp.Or(b.Next, "owner of "+all[i]), b.Message+" ("+all[i]+")")
	}
	switch len(all) {
	case 0:
		return terminating("API server", "nothing holds it")
	case 1:
		return terminating("owner of "+all[0], "finalizer "+all[0]+" is held by somebody else")
	}
	return terminating("owner of "+all[0], "finalizers "+strings.Join(all, ", ")+" are held by somebody else")
}

// names names Pods with the places where they have volumes.
func names(pods []*corev1.Pod) string {
	all := make([]string, 0, len(pods))
	for _, p := range pods {
		name := "pod " + p.Name + " on node " + p.Spec.NodeName
		if dir := p.Annotations[volume.AnnMountAt]; dir != "" {
			name += " at " + dir
		}
		all = append(all, name)
	}
	return strings.Join(all, ", ")
}
