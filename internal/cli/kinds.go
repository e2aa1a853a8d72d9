package cli

import (
	"context"
	"fmt"
	"strings"

	storagev1 "k8s.io/api/storage/v1"

	"volplane.dev/volplane/internal/decide/chain"
	"volplane.dev/volplane/internal/decide/drivers"
	"volplane.dev/volplane/internal/decide/survey"
	"volplane.dev/volplane/internal/decide/why"
	"volplane.dev/volplane/internal/volume"
)

// kind is a type of objects that why explains.
type kind struct {
	// name is what it is called here, which is what kubectl calls it shortly, if that
	// is a word.
	name string
	// full are its singular, its plural and its other short names.
	full  []string
	group string
	// spaced says that its objects are in a namespace.
	spaced bool
	// read reads what an answer needs, tell answers.
	read func(r *reading, ctx context.Context, ns, name string) error
	tell func(w why.Walk, ns, name string) (chain.Chain, bool)
}

// kinds returns the types that can be explained.
func kinds() []kind {
	const storage, snapshots = storagev1.GroupName, volume.GroupSnapshot
	return []kind{
		{"pvc", []string{"persistentvolumeclaim", "persistentvolumeclaims"}, "", true, (*reading).aboutClaim, why.Walk.Claim},
		{"pv", []string{"persistentvolume", "persistentvolumes"}, "", false, (*reading).aboutVolume, bare(why.Walk.Volume)},
		{"pod", []string{"pods", "po"}, "", true, (*reading).aboutPod, why.Walk.Pod},
		{"storageclass", []string{"storageclasses", "sc"}, storage, false, (*reading).aboutClass, bare(survey.Class)},
		{
			"volumeattachment",
			[]string{"volumeattachments", "va"},
			storage, false, (*reading).aboutAttachment,
			bare(why.Walk.Attachment),
		},
		{"volumesnapshot", []string{"volumesnapshots", "vs"}, snapshots, true, (*reading).aboutSnapshot, why.Walk.Snapshot},
		{"csidriver", []string{"csidrivers"}, storage, false, (*reading).aboutDriver, bare(survey.Driver)},
		{"node", []string{"nodes", "no"}, "", false, (*reading).aboutNode, bare(survey.Node)},
		{"csinode", []string{"csinodes"}, storage, false, (*reading).aboutNode, bare(survey.CSINode)},
		{"namespace", []string{"namespaces", "ns"}, "", false, (*reading).aboutNamespace, bare(survey.Namespace)},
	}
}

// bare makes an answer about objects without a namespace one of the common form.
func bare(tell func(why.Walk, string) (chain.Chain, bool)) func(why.Walk, string, string) (chain.Chain, bool) {
	return func(w why.Walk, _, name string) (chain.Chain, bool) { return tell(w, name) }
}

// kindOf finds a type by any of the names by which kubectl knows it, also with its
// group behind a dot.
func kindOf(name string) (kind, error) {
	word := strings.ToLower(name)
	var names []string
	for _, k := range kinds() {
		for _, n := range append([]string{k.name}, k.full...) {
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

// kindNamed is kindOf for those who go on without it.
func kindNamed(name string) (kind, bool) {
	k, err := kindOf(name)
	return k, err == nil
}
