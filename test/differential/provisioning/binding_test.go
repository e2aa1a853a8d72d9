package provisioning

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/test/internal/differential"
	"volplane.dev/volplane/test/internal/upstream"
)

// TestBinderIsKubernetes plays the same sequences to volplane's binder and protection and to those of Kubernetes, and
// compares all claims and volumes when both are at rest. The seed is the number of the sequence, so every run can
// repeat an earlier one.
func TestBinderIsKubernetes(t *testing.T) {
	t.Parallel()
	differential.CompareAll(t, bindingDifferential(t))
}

// TestBindingDiffersByDesign plays a sequence after which both sides differ for a reason: without one, the reason
// would be an excuse.
func TestBindingDiffersByDesign(t *testing.T) {
	t.Parallel()
	bindingDifferential(t).Show(t, []design{{Reason: reasonTogether, Ops: draw(2026112800009, differential.Length).Ops}},
		[]string{reasonTogether})
}

// bindingDifferential starts both sides.
func bindingDifferential(t *testing.T) *differential.Differential {
	t.Helper()
	ours, theirs := differential.NewSide(t, "volplane", provisioning()), differential.NewSide(t, "kubernetes",
		provisioning())
	ours.StartController(func() func() { return ours.Ours(t, csi.NewSet(), "binder", "protection") })
	theirs.StartController(func() func() { return theirs.Theirs(t, upstream.TheirBinder...) })
	return &differential.Differential{
		Sides: []side{ours, theirs}, Few: 20, Draw: draw, Allowed: bindingMayDiffer, Counted: map[string]int{},
	}
}

// bindingMayDiffer returns the reason why two states after binding may differ, or "".
func bindingMayDiffer(ours, theirs []string) string {
	switch {
	case slices.Equal(anonymous(unreserved(ours, theirs)), anonymous(unreserved(theirs, ours))),
		goesToAnother(ours, theirs):
		return "which of several claims that wait gets a volume is not promised"
	case slices.Equal(kept(ours), kept(theirs)):
		return reasonTogether
	case len(ours) == len(theirs)+1 && differential.Has(ours, "volume", "Bound", "going=true") &&
		differential.Has(theirs, "claim", "Lost"):
		return "when a user takes the claim from a volume that is being deleted, protection and binder race in Kubernetes, " +
			"and the claim may lose its volume; here it keeps it"
	}
	return ""
}

// reasonTogether is why a volume that Kubernetes releases, and whose data its provisioner deletes, stays as it is.
const reasonTogether = "a volume is neither released nor deleted while the claim that it names also names it, even " +
	"if the UID is another one"

// kept removes the phase of each volume that would be deleted once it is released, if the claim in its reference names
// the volume but has another UID.
func kept(lines []string) []string {
	strange := regexp.MustCompile(
		`^volume (\S+) (\S+) for (c[0-9]+) uid of gone .*"persistentVolumeReclaimPolicy":"Delete"`)
	var out []string
	for _, l := range lines {
		m := strange.FindStringSubmatch(l)
		if m != nil && differential.Has(lines, "claim "+m[3]+" ", "-"+m[1]+"\" capacity=") {
			l = strings.Replace(l, " "+m[2]+" for ", " for ", 1)
		}
		out = append(out, l)
	}
	return out
}

// unreserved removes the binder's reservation of a volume for a claim that waits here and has another volume at the
// other side, where the volume then became free again.
func unreserved(lines, other []string) []string {
	held := regexp.MustCompile(
		`^(volume \S+ Available for )(c[0-9]+) uid of (c[0-9]+) annotations=\[bound-by-controller=yes\]`)
	var out []string
	for _, l := range lines {
		m := held.FindStringSubmatch(l)
		if m != nil && m[2] == m[3] && differential.Has(lines, "claim "+m[2]+" Pending ") &&
			differential.Has(other, "claim "+m[2]+" Bound ") {
			l = m[1] + "none annotations=[]" + l[len(m[0]):]
		}
		out = append(out, l)
	}
	return out
}

// anonymous removes the names of claims from the lines.
func anonymous(lines []string) []string {
	claim := regexp.MustCompile(`\bc[0-9]+\b`)
	var out []string
	for _, l := range lines {
		out = append(out, claim.ReplaceAllString(l, "c"))
	}
	slices.Sort(out)
	return out
}
