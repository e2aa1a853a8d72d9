package gather

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

// Kind is a type of objects that why explains.
type Kind struct {
	// Name is the name that the program prints.
	Name string
	// aliases are the other names that kubectl has for the type.
	aliases []string
	// Group is the API group.
	Group string
	// Namespaced says that objects of the type have a namespace.
	Namespaced bool
	// read reads the objects that an answer needs.
	read func(r *Facts, ctx context.Context, ns, name string) error
	// Tell returns the answer from these objects.
	Tell func(w why.Walk, ns, name string) (chain.Chain, bool)
}

// Kinds returns the types that can be explained.
func Kinds() []Kind {
	const storage, snapshots = storagev1.GroupName, volume.GroupSnapshot
	return []Kind{
		{"pvc", []string{"persistentvolumeclaim", "persistentvolumeclaims"}, "", true, (*Facts).aboutClaim, why.Walk.Claim},
		{
			"pv",
			[]string{"persistentvolume", "persistentvolumes"},
			"", false, (*Facts).aboutVolume,
			withoutNamespace(why.Walk.Volume),
		},
		{"pod", []string{"pods", "po"}, "", true, (*Facts).aboutPod, why.Walk.Pod},
		{
			"storageclass",
			[]string{"storageclasses", "sc"},
			storage, false, (*Facts).aboutClass,
			withoutNamespace(survey.Class),
		},
		{
			"volumeattachment",
			[]string{"volumeattachments", "va"},
			storage, false, (*Facts).aboutAttachment,
			withoutNamespace(why.Walk.Attachment),
		},
		{"volumesnapshot", []string{"volumesnapshots", "vs"}, snapshots, true, (*Facts).aboutSnapshot, why.Walk.Snapshot},
		{
			"volumegroupsnapshot",
			[]string{"volumegroupsnapshots", "vgs"},
			volume.GroupGroupSnapshot, true, (*Facts).aboutGroup, why.Walk.Group,
		},
		{"csidriver", []string{"csidrivers"}, storage, false, (*Facts).aboutDriver, withoutNamespace(survey.Driver)},
		{"node", []string{"nodes", "no"}, "", false, (*Facts).aboutNode, withoutNamespace(survey.Node)},
		{"csinode", []string{"csinodes"}, storage, false, (*Facts).aboutNode, withoutNamespace(survey.CSINode)},
		{"namespace", []string{"namespaces", "ns"}, "", false, (*Facts).aboutNamespace, withoutNamespace(survey.Namespace)},
	}
}

// withoutNamespace adapts a function for objects without a namespace to the type of Kind.Tell.
func withoutNamespace(
	tell func(why.Walk, string) (chain.Chain, bool),
) func(why.Walk, string, string) (chain.Chain, bool) {
	return func(w why.Walk, _, name string) (chain.Chain, bool) { return tell(w, name) }
}

// KindOf finds a type by any of the names that kubectl has for it, also with a dot and
// its group.
func KindOf(name string) (Kind, error) {
	word := strings.ToLower(name)
	var names []string
	for _, k := range Kinds() {
		for _, n := range append([]string{k.Name}, k.aliases...) {
			if word == n || k.Group != "" && (word == n+"."+k.Group || word == n+".v1."+k.Group) {
				return k, nil
			}
			names = append(names, n)
		}
	}
	text := fmt.Sprintf("cannot explain a %q", name)
	if meant := drivers.Alike(word, names); meant != "" {
		text += ": did you mean " + meant + "?"
	}
	return Kind{}, fmt.Errorf("%s: use %s", text, strings.Join(Names(), ", "))
}

// Names returns the types that can be explained.
func Names() []string {
	var out []string
	for _, k := range Kinds() {
		out = append(out, k.Name)
	}
	return out
}

// KindNamed is like KindOf, but returns false instead of an error.
func KindNamed(name string) (Kind, bool) {
	k, err := KindOf(name)
	return k, err == nil
}

// Explain reads what concerns an object and explains it; found is false if the object
// does not exist. The facts are kept.
func (k Kind) Explain(ctx context.Context, r *Facts, ns, name string) (c chain.Chain, found bool, err error) {
	if err := k.read(r, ctx, ns, name); err != nil {
		return c, false, err
	}
	c, found = k.Tell(why.Of(r.Objects), ns, name)
	return c, found, nil
}

// Chain explains an object of a type that word names, for a caller that can do without the explanation: it returns
// false if there is none.
func (r *Facts) Chain(ctx context.Context, word, ns, name string) (chain.Chain, bool) {
	k, known := KindNamed(word)
	if !known {
		return chain.Chain{}, false
	}
	told, found, err := k.Explain(ctx, r, ns, name)
	return told, found && err == nil
}

// Headline is the first line of Chain, or "".
func (r *Facts) Headline(ctx context.Context, word, ns, name string) string {
	if told, found := r.Chain(ctx, word, ns, name); found {
		return chain.Headline(told)
	}
	return ""
}
