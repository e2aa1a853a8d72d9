package kube

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// TestProvisionerIsKubernetes plays the same sequences to volplane's binder,
// protection and provisioner and to those of Kubernetes, each with a driver of
// its own, and compares all claims and volumes, what the driver was asked and
// what it has.
func TestProvisionerIsKubernetes(t *testing.T) {
	ours, theirs := newSide(t, "volplane"), newSide(t, "kubernetes")
	ours.ours(t, ours.storage.start(t), "binder", "protection", "provisioner")
	theirs.storage.start(t)
	theirs.theirs(t, "persistentvolume-binder-controller", "persistentvolume-protection-controller", "persistentvolumeclaim-protection-controller")
	theirs.theirProvisioner(t, theirs.storage.driver)
	compareAll(t, &differential{sides: []side{ours, theirs}, draw: drawProvisioning, allowed: provisioningMayDiffer, counted: map[string]int{}})
	for _, s := range []side{ours, theirs} {
		t.Logf("%s called %v", s.name, s.storage.calls())
	}
}

// difference is what only one side has, and all that both have.
type difference struct {
	ours, theirs         []string
	onlyOurs, onlyTheirs []string
}

// row is one reason for which lines may differ.
type row struct {
	reason   string
	explains func(d difference, line string) bool
}

// provisioningMayDiffer returns the reasons why two states after provisioning
// may differ, "" if there is a line without one.
func provisioningMayDiffer(ours, theirs []string) string {
	d := difference{ours: ours, theirs: theirs, onlyOurs: without(ours, theirs), onlyTheirs: without(theirs, ours)}
	var reasons []string
	for _, line := range slices.Concat(d.onlyOurs, d.onlyTheirs) {
		i := slices.IndexFunc(rows(), func(r row) bool { return r.explains(d, line) })
		if i < 0 {
			return ""
		}
		reasons = append(reasons, rows()[i].reason)
	}
	slices.Sort(reasons)
	return strings.Join(slices.Compact(reasons), "; and ")
}

func rows() []row {
	return []row{
		{
			"after InvalidArgument the provisioner of Kubernetes asks again in five minutes, whatever happens; here after a pause that grows, or when somebody edits the claim",
			func(d difference, _ string) bool {
				return has(d.theirs, "answered CreateVolume", "with InvalidArgument")
			},
		},
		{
			"a volume that a user made by hand, without provisioned-by, is the user's to delete; the provisioner of Kubernetes deletes it by its driver's name",
			func(d difference, line string) bool {
				return about(line, names(d.ours, "volume v", func(l string) bool { return !strings.Contains(l, "provisioned-by") }))
			},
		},
		{
			"volplane writes down that it may call CreateVolume, then reads the secret: a claim without its secret goes only when there is one, and the driver is asked for a volume and to delete it",
			func(d difference, line string) bool {
				volume := regexp.MustCompile(`"(id-)?pvc-c[0-9]+"`).FindString(line)
				return slices.Contains(d.onlyOurs, line) && strings.Contains(line, `"secrets"`) && !has(d.theirs, "asked CreateVolume", strings.Replace(volume, "id-", "", 1))
			},
		},
		{
			"a template of a secret with a $ that begins no ${token} is a mistake; Kubernetes makes something of it",
			func(d difference, line string) bool { return about(line, claimsOf(d, `\$[^{]|\$"|\$\{[^}"]*"`)) },
		},
		{
			"a volume that was not made here has no deletion secret; Kubernetes looks for one in the class that has that name now",
			func(d difference, line string) bool {
				return has(d.ours, "parameters", "provisioner-secret") && about(line, names(slices.Concat(d.ours, d.theirs), "volume v", func(string) bool { return true }))
			},
		},
	}
}

// claimsOf returns the claims of the classes whose lines match.
func claimsOf(d difference, pattern string) []string {
	match := regexp.MustCompile(pattern)
	classes := names(d.ours, "class ", match.MatchString)
	return names(slices.Concat(d.ours, d.theirs), "claim ", func(l string) bool {
		return slices.ContainsFunc(classes, func(c string) bool { return strings.Contains(l, " class="+c+" ") })
	})
}

// names returns the second words of the lines that begin so and are such.
func names(lines []string, begin string, such func(string) bool) []string {
	var out []string
	for _, l := range lines {
		if strings.HasPrefix(l, begin) && such(l) {
			out = append(out, strings.Fields(l)[1])
		}
	}
	return out
}

// about says whether a line is about an object of one of the names.
func about(line string, names []string) bool {
	words := strings.FieldsFunc(line, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	return slices.ContainsFunc(names, func(n string) bool { return slices.Contains(words, n) })
}

// without returns the lines that are not among the others.
func without(lines, others []string) []string {
	var out []string
	for _, l := range lines {
		if !slices.Contains(others, l) {
			out = append(out, l)
		}
	}
	return out
}
