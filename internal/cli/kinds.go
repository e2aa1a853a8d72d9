package cli

import (
	"context"
	"fmt"
	"strings"

	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/explain/chain"
	"volplane.dev/volplane/internal/explain/drivers"
	"volplane.dev/volplane/internal/explain/survey"
	"volplane.dev/volplane/internal/explain/why"
	"volplane.dev/volplane/internal/volume"
)

// kind is a type of objects that why explains.
type kind struct {
	// name is the name that the program prints.
	name string
	// aliases are the other names that kubectl has for the type.
	aliases []string
	// group is the API group.
	group string
	// namespaced says that objects of the type have a namespace.
	namespaced bool
	// read reads the objects that an answer needs.
	read func(r *reading, ctx context.Context, ns, name string) error
	// tell returns the answer from these objects.
	tell func(w why.Walk, ns, name string) (chain.Chain, bool)
}

// kinds returns the types that can be explained.
func kinds() []kind {
	const storage, snapshots = storagev1.GroupName, volume.GroupSnapshot
	return []kind{
		{"pvc", []string{"persistentvolumeclaim", "persistentvolumeclaims"}, "", true, (*reading).aboutClaim, why.Walk.Claim},
		{
			"pv",
			[]string{"persistentvolume", "persistentvolumes"},
			"", false, (*reading).aboutVolume,
			withoutNamespace(why.Walk.Volume),
		},
		{"pod", []string{"pods", "po"}, "", true, (*reading).aboutPod, why.Walk.Pod},
		{
			"storageclass",
			[]string{"storageclasses", "sc"},
			storage, false, (*reading).aboutClass,
			withoutNamespace(survey.Class),
		},
		{
			"volumeattachment",
			[]string{"volumeattachments", "va"},
			storage, false, (*reading).aboutAttachment,
			withoutNamespace(why.Walk.Attachment),
		},
		{"volumesnapshot", []string{"volumesnapshots", "vs"}, snapshots, true, (*reading).aboutSnapshot, why.Walk.Snapshot},
		{
			"volumegroupsnapshot",
			[]string{"volumegroupsnapshots", "vgs"},
			volume.GroupGroupSnapshot, true, (*reading).aboutGroup, why.Walk.Group,
		},
		{"csidriver", []string{"csidrivers"}, storage, false, (*reading).aboutDriver, withoutNamespace(survey.Driver)},
		{"node", []string{"nodes", "no"}, "", false, (*reading).aboutNode, withoutNamespace(survey.Node)},
		{"csinode", []string{"csinodes"}, storage, false, (*reading).aboutNode, withoutNamespace(survey.CSINode)},
		{"namespace", []string{"namespaces", "ns"}, "", false, (*reading).aboutNamespace, withoutNamespace(survey.Namespace)},
	}
}

// withoutNamespace adapts a function for objects without a namespace to the type of kind.tell.
func withoutNamespace(
	tell func(why.Walk, string) (chain.Chain, bool),
) func(why.Walk, string, string) (chain.Chain, bool) {
	return func(w why.Walk, _, name string) (chain.Chain, bool) { return tell(w, name) }
}

// kindOf finds a type by any of the names that kubectl has for it, also with a dot and
// its group.
func kindOf(name string) (kind, error) {
	word := strings.ToLower(name)
	var names []string
	for _, k := range kinds() {
		for _, n := range append([]string{k.name}, k.aliases...) {
			if word == n || k.group != "" && (word == n+"."+k.group || word == n+".v1."+k.group) {
				return k, nil
			}
			names = append(names, n)
		}
	}
	text := fmt.Sprintf("cannot explain a %q", name)
	if meant := drivers.Alike(word, names); meant != "" {
		text += ": did you mean " + meant + "?"
	}
	return kind{}, fmt.Errorf("%s: use %s", text, strings.Join(explained(), ", "))
}

// explained returns the types that can be explained.
func explained() []string {
	var out []string
	for _, k := range kinds() {
		out = append(out, k.name)
	}
	return out
}

// kindNamed is like kindOf, but returns false instead of an error.
func kindNamed(name string) (kind, bool) {
	k, err := kindOf(name)
	return k, err == nil
}
