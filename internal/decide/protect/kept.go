package protect

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/volume"
)

// Owners maps each finalizer of a known owner to a function that returns what the owner waits for.
type Owners map[string]func() volume.Because

// Kept returns why an object that is being deleted still exists: because of the first of its
// finalizers that has a known owner, or else because of all of them.
func Kept(what string, o metav1.Object, owners Owners) volume.Condition {
	terminating := func(next volume.Actor, message string) volume.Condition {
		return volume.Condition{Because: volume.Say(volume.ReasonTerminating, next, what+" is being deleted; "+message)}
	}
	all := o.GetFinalizers()
	if i := slices.IndexFunc(all, func(f string) bool { return owners[f] != nil }); i >= 0 {
		b := owners[all[i]]()
		return terminating(cmp.Or(b.Next, volume.OwnerOf(all[i])), b.Message+" ("+all[i]+")")
	}
	switch len(all) {
	case 0:
		return terminating(volume.APIServer(), "nothing holds it")
	case 1:
		return terminating(volume.OwnerOf(all[0]), "finalizer "+all[0]+" is held by somebody else")
	}
	return terminating(volume.OwnerOf(all[0]), "finalizers "+strings.Join(all, ", ")+" are held by somebody else")
}

// names returns the names of Pods with their nodes and with host paths of mounts.
func names(pods []*corev1.Pod) string {
	all := make([]string, 0, len(pods))
	for _, p := range pods {
		name := "pod " + p.Name + " on node " + p.Spec.NodeName
		if dir := volume.AskedPath(p.Annotations); dir != "" {
			name += " at " + dir
		}
		all = append(all, name)
	}
	return strings.Join(all, ", ")
}
